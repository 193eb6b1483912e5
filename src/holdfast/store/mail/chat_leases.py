"""Leases on chats, for the process that works on a chat or sends to it.

A lease only avoids duplicate work; outcomes are recorded once without it. Its token increases each time it is taken,
and every write under a lease compares the token in the same transaction, so a holder that was overtaken writes nothing.
Expiry and holders are those of leases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from holdfast import errors, types
from holdfast.store import leases, validation, write_step
from holdfast.store.driver import LeaseClock, Query, Row, Tx
from holdfast.store.facet import Facet

CHAT_LEASE_TTL = 30.0
# Longer than a route, which most leases are about.
MAX_KEY = validation.MAX_ROUTE + 100


class ChatLeases(Facet):
    """The lease methods of `db.mail`: which process works on a chat."""

    @write_step.shareable
    def acquire_chat_lease(
        self, key: str, ttl: float = CHAT_LEASE_TTL, holder: str | None = None
    ) -> write_step.WriteStep[types.ChatLease]:
        """Take a lease; Busy when another holder has it.

        A lease can be taken when it is free, expired, or its holder is dead. A holder that takes it again gets a new
        token, which voids the old one.
        """
        named = validation.check_text(key, "key", MAX_KEY)
        leases.check_terms("turn", holder, ttl)
        who = leases.this_process(holder)
        # Not synced: a power loss ends the holder too. One with a given name may come back, so its lease is synced.
        return write_step.WriteStep(
            "take", lambda tx: take(tx, named, who, ttl, last=True)[0], durable=holder is not None
        )

    def renew_chat_lease(self, lease: types.ChatLease) -> None:
        """Extend a lease by its TTL; LeaseLost when it is not held any more."""
        checked(lease)
        self.driver.write("take", lambda tx: renew(tx, lease), durable=False)

    @write_step.shareable
    def release_chat_lease(self, lease: types.ChatLease) -> write_step.WriteStep[bool]:
        """Release a lease; return whether it was still held."""
        checked(lease)
        return write_step.WriteStep("take", lambda tx: free(tx, lease), durable=False)

    def chat_leases(self) -> list[types.ChatLeaseHeld]:
        """List the leases that have a holder, with their state."""
        return self.driver.read(lambda tx: [_as_seen(tx.clock, row) for row in tx.all("claims_all")])


def checked(lease: object) -> types.ChatLease:
    return validation.check_type(types.ChatLease, lease, "lease")


def take(
    tx: Tx, key: str, holder: leases.Holder, ttl: float, *reads: Query, last: bool = False
) -> tuple[types.ChatLease, list[list[Row]]]:
    """Take a lease, or raise Busy; return it with the rows of the queries that are to be read under it.

    `last`: the transaction ends with it.
    """
    encoded = leases.encode_holder(holder)
    values = {"key": key, "holder": encoded, "expires": tx.clock.now + ttl, "boot": tx.clock.boot}
    taken, *rows = (tx.finish if last else tx.batch)(("claim_put", values), *reads)
    if taken:
        return types.ChatLease(key, taken[0][0], holder.name, ttl), rows
    return _take_over(tx, key, holder, encoded, ttl), tx.batch(*reads) if reads else []


def _take_over(tx: Tx, key: str, holder: leases.Holder, encoded: str, ttl: float) -> types.ChatLease:
    row = tx.one("claim_row", key=key)
    assert row is not None  # leases are never deleted
    if row[1] == encoded:
        return types.ChatLease(key, row[0], holder.name, ttl)  # an earlier attempt whose commit outcome is unknown
    if _state(tx.clock, row) == "held" and _name(row) != holder.name:
        raise errors.Busy(_name(row), tx.clock.left(row[3], row[2]))
    token, expires = row[0] + 1, tx.clock.now + ttl
    tx.run("claim_take", key=key, token=token, holder=encoded, expires=expires, boot=tx.clock.boot)
    return types.ChatLease(key, token, holder.name, ttl)


def renew(tx: Tx, lease: types.ChatLease) -> None:
    verify(lease, tx.batch(locked(lease))[0])
    tx.finish(("claim_extend", {"key": lease.key, "expires": tx.clock.now + lease.ttl, "boot": tx.clock.boot}))


def free(tx: Tx, lease: types.ChatLease) -> bool:
    (freed,) = tx.finish(("claim_free", {"key": lease.key, "token": lease.token}))
    return bool(freed)


def locked(lease: types.ChatLease) -> Query:
    """The query that locks the row of a lease; `verify` checks what it returns."""
    return "claim_row", {"key": lease.key}


def verify(lease: types.ChatLease, rows: Sequence[Row]) -> None:
    """Raise LeaseLost unless the lease is still held; one that expired and was not taken over is."""
    if not rows or not _is_of(lease, rows[0]):
        raise errors.LeaseLost("The lease was given back or taken over; nothing was written.")


def _is_of(lease: types.ChatLease, row: Row) -> bool:
    return bool(row[0] == lease.token and row[1] is not None and _name(row) == lease.holder)


def _name(row: Row) -> str:
    return leases.decode_holder(row[1]).name


def _state(clock: LeaseClock, row: Row) -> Literal["free", "held", "expired", "dead"]:
    if row[1] is None:
        return "free"
    if clock.left(row[3], row[2]) <= 0:
        return "expired"
    return "dead" if leases.decode_holder(row[1]).is_dead() else "held"


def _as_seen(clock: LeaseClock, row: Row) -> types.ChatLeaseHeld:
    key, *rest = row
    state = _state(clock, tuple(rest))
    assert state != "free"  # those are not asked for
    return types.ChatLeaseHeld(key, rest[0], _name(tuple(rest)), max(0.0, clock.left(rest[3], rest[2])), state)
