"""Pins: messages a person wants word for word in the context, whatever a compaction sums up.

A pin says nothing about the log and hides nothing: compactions look at the pins when they choose what goes. One
that was chosen for before a pin was set cannot be committed after it, since a pin raises the epoch.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast import errors, types
from holdfast.store import arguments, conversation_row
from holdfast.store.driver import Driver, Tx

MOST = 100


class Pins:
    """The part of SessionDB that keeps what people pinned."""

    driver: Driver
    _clock: Callable[[], float]

    def pin(self, session_id: str, seq: int) -> types.Pin:
        """Pin a message of the conversation, one it shares with its origin too; pinned again, it is the same pin.

        OutOfRange when there is no such message, or 100 are pinned already.
        """
        arguments.whole(seq)
        now = self._clock()
        return self.driver.write("pin", lambda tx: pin(tx, session_id, seq, now))

    def unpin(self, session_id: str, seq: int) -> bool:
        """Let the next compaction have the message; whether it was pinned."""
        arguments.whole(seq)
        return self.driver.write("pin", lambda tx: unpin(tx, session_id, seq))

    def pins(self, session_id: str) -> list[types.Pin]:
        """What is pinned, in the order of the log."""
        return self.driver.read(lambda tx: every(tx, conversation_row.look(tx, session_id).key))


def pin(tx: Tx, session_id: str, seq: int, now: float) -> types.Pin:
    here = conversation_row.lock(tx, session_id)
    if not 1 <= seq <= here.last_seq:
        raise errors.OutOfRange(f"Messages are numbered 1 to {here.last_seq}; there is no {seq} to pin.")
    known = every(tx, here.key)
    for each in known:
        if each.seq == seq:
            return each
    if len(known) >= MOST:
        raise errors.OutOfRange(f"{MOST} messages are pinned already; unpin some first.")
    tx.run("pin_insert", conversation=here.key, seq=seq, at=now)
    # A compaction in flight may have this message among what goes.
    conversation_row.moved(tx, here)
    return types.Pin(seq, now)


def unpin(tx: Tx, session_id: str, seq: int) -> bool:
    return tx.run("pin_delete", conversation=conversation_row.lock(tx, session_id).key, seq=seq) == 1


def every(tx: Tx, key: int) -> list[types.Pin]:
    return [types.Pin(*row) for row in tx.all("pins_of", conversation=key)]


def copy_to_branch(tx: Tx, origin: int, branch: conversation_row.State) -> None:
    """A branch begins with what was pinned of what it reads."""
    for each in every(tx, origin):
        if each.seq <= branch.forked_at:
            tx.run("pin_insert", conversation=branch.key, seq=each.seq, at=each.at)
