"""Hide ranges of messages from the context and show them again (undo and redo of turns), and pin messages.

Nothing is deleted. A compaction keeps pinned messages verbatim. Setting a pin increments the epoch, so a compaction
that began earlier cannot be committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from holdfast import errors, types
from holdfast.store import compactions, conversation_row, validation
from holdfast.store.conversation_row import ConversationRow
from holdfast.store.driver import Driver, Tx

SeqRange = tuple[int, int]
MAX_PINS = 100


def hide(tx: Tx, session_id: str, from_seq: int, to_seq: int | None) -> types.Hide:
    here = conversation_row.lock(tx, session_id)
    if "hide" in tx.retry_state and tx.retry_state["hide"] in list_hides(tx, here.key):
        return cast("types.Hide", tx.retry_state["hide"])
    last = here.last_seq if to_seq is None else to_seq
    if not 1 <= from_seq <= last <= here.last_seq:
        raise errors.InvalidArgument(f"Messages {from_seq} to {last} must be within 1 to {here.last_seq}.")
    after = conversation_row.update(tx, here, redo_epoch=None)
    tx.run("hide_insert", conversation=here.key, epoch=after.epoch, from_seq=from_seq, to_seq=last)
    hidden = tx.retry_state["hide"] = types.Hide(after.epoch, from_seq, last, None)
    return hidden


def show(tx: Tx, session_id: str, epoch: int | None) -> types.Hide:
    """Show the messages of one hide again, by its epoch, or of the newest in force."""
    here = conversation_row.lock(tx, session_id)
    known = list_hides(tx, here.key)
    if tx.retry_state.get("show") in known:
        return cast("types.Hide", tx.retry_state["show"])
    found = [hide for hide in known if hide.shown_epoch is None and epoch in (None, hide.epoch)]
    if not found:
        raise errors.NothingToUndo("Nothing to show: no messages are hidden.")
    hidden = found[-1]
    compaction = compactions.current(tx, here)
    # The summary was made without these messages: they would be neither in it nor after it.
    if compaction and hidden.from_seq <= compaction.cut_seq:
        remedy = "Undo that compaction first." if here.compaction_epoch else "This branch inherited that summary."
        raise errors.ShowRefused(
            f"Cannot show messages {hidden.from_seq} to {hidden.to_seq}: the summary that replaces messages up to "
            f"{compaction.cut_seq} was made without them. {remedy}"
        )
    # A compaction that was undone was made without them too, so it can no longer be redone.
    after = conversation_row.update(tx, here, redo_epoch=None)
    tx.run("hide_shown", conversation=here.key, epoch=hidden.epoch, from_seq=hidden.from_seq, shown_epoch=after.epoch)
    shown = tx.retry_state["show"] = types.Hide(hidden.epoch, hidden.from_seq, hidden.to_seq, after.epoch)
    return shown


def list_hides(tx: Tx, key: int) -> list[types.Hide]:
    return [types.Hide(*row) for row in tx.all("hides_of", conversation=key)]


def hidden_ranges(tx: Tx, key: int) -> list[SeqRange]:
    return [(row[0], row[1]) for row in tx.all("hides_in_force", conversation=key)]


def is_hidden(ranges: Sequence[SeqRange], seq: int) -> bool:
    return any(low <= seq <= high for low, high in ranges)


def copy_to_branch(tx: Tx, origin: int, branch: ConversationRow) -> None:
    """Copy the hides in force and the pins to a branch, up to its fork point."""
    for low, high in merge_ranges(hidden_ranges(tx, origin), branch.forked_at):
        tx.run("hide_insert", conversation=branch.key, epoch=branch.epoch, from_seq=low, to_seq=high)
    for each in pins(tx, origin):
        if each.seq <= branch.forked_at:
            tx.run("pin_insert", conversation=branch.key, seq=each.seq, at=each.at)


def merge_ranges(ranges: Sequence[SeqRange], limit: int) -> list[SeqRange]:
    """Merge overlapping and adjacent ranges, and cut them off at `limit`."""
    result: list[SeqRange] = []
    for low, high in sorted((low, min(high, limit)) for low, high in ranges if low <= limit):
        if result and low <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(result[-1][1], high))
        else:
            result.append((low, high))
    return result


class PinMixin:
    """The pin methods of SessionDB."""

    driver: Driver
    _clock: Callable[[], float]

    def pin(self, session_id: str, seq: int) -> types.Pin:
        """Pin a message of the conversation, also one inherited from its origin. Repeating it returns the same pin.

        InvalidArgument when there is no such message, or 100 are pinned already.
        """
        validation.check(validation.WholeNumber, seq=seq)
        now = self._clock()
        return self.driver.write("pin", lambda tx: pin(tx, session_id, seq, now))

    def unpin(self, session_id: str, seq: int) -> bool:
        """Unpin a message, so that compactions may summarize it; return whether it was pinned."""
        validation.check(validation.WholeNumber, seq=seq)
        return self.driver.write(
            "pin", lambda tx: tx.run("pin_delete", conversation=conversation_row.lock(tx, session_id).key, seq=seq) == 1
        )

    def pins(self, session_id: str) -> list[types.Pin]:
        """Return the pinned messages in the order of the log."""
        return self.driver.read(lambda tx: pins(tx, conversation_row.read(tx, session_id).key))


def pin(tx: Tx, session_id: str, seq: int, now: float) -> types.Pin:
    here = conversation_row.lock(tx, session_id)
    if not 1 <= seq <= here.last_seq:
        raise errors.InvalidArgument(f"Messages are numbered 1 to {here.last_seq}; there is no {seq} to pin.")
    known = pins(tx, here.key)
    for each in known:
        if each.seq == seq:
            return each
    if len(known) >= MAX_PINS:
        raise errors.InvalidArgument(f"{MAX_PINS} messages are pinned already; unpin some first.")
    tx.run("pin_insert", conversation=here.key, seq=seq, at=now)
    # A new epoch, because a compaction in progress may be about to replace this message.
    conversation_row.update(tx, here)
    return types.Pin(seq, now)


def pins(tx: Tx, key: int) -> list[types.Pin]:
    return [types.Pin(*row) for row in tx.all("pins_of", conversation=key)]
