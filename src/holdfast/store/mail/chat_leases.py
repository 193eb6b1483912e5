"""Leases on chats, for the process that works on a route or sends to a chat.

A lease only avoids duplicate work: outcomes are recorded once without it, too. Its token increases whenever it is
acquired, and every write under a lease compares the token in the same transaction, so that a process that lost its
lease writes nothing. Holders and expiry are those of `leases`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast import errors, types
from holdfast.store import leases, validation, write_step
from holdfast.store.driver import Facet, LeaseClock, QueryCall, Row, Tx

CHAT_LEASE_TTL = 30.0
# Most keys are a prefix and a route.
MAX_KEY = validation.MAX_ROUTE + 100


class ChatLeases(Facet):
    """The lease methods of `db.mail`."""

    @write_step.shareable
    def acquire_chat_lease(
        self, key: str, ttl: float = CHAT_LEASE_TTL, holder: str | None = None
    ) -> write_step.WriteStep[types.ChatLease]:
        """Acquire a lease that is free or expired, or whose holder is dead; Busy when another holder has it.

        A holder that acquires its lease again gets a new token, which voids the old one.
        """
        validation.check_text(key, "key", MAX_KEY)
        leases.check_lease_arguments("turn", holder, ttl)
        claimant = leases.current_holder(holder)
        # Not synced: a power loss ends the holder too. A holder with a given name may come back, so that is synced.
        return write_step.WriteStep(
            "take", lambda tx: acquire(tx, key, claimant, ttl, last=True)[0], durable=holder is not None
        )

    def renew_chat_lease(self, lease: types.ChatLease) -> None:
        """Extend a lease by its TTL; LeaseLost when it is no longer held."""
        check_lease(lease)
        self.driver.write("take", lambda tx: renew(tx, lease), durable=False)

    @write_step.shareable
    def release_chat_lease(self, lease: types.ChatLease) -> write_step.WriteStep[bool]:
        """Release a lease; return whether it was still held."""
        check_lease(lease)
        return write_step.WriteStep("take", lambda tx: release(tx, lease), durable=False)

    def chat_leases(self) -> list[types.ChatLeaseHeld]:
        """Return the leases that have a holder, with their state."""
        return self.driver.read(lambda tx: [_describe(tx.clock, row) for row in tx.all("claims_all")])


def check_lease(lease: object) -> types.ChatLease:
    return validation.check_type(types.ChatLease, lease, "lease")


def acquire(
    tx: Tx, key: str, holder: leases.Holder, ttl: float, *reads: QueryCall, last: bool = False
) -> tuple[types.ChatLease, list[list[Row]]]:
    """Acquire a lease or raise Busy; return it with the rows of the queries to run under it.

    `last`: these are the last queries of the transaction.
    """
    encoded = leases.encode_holder(holder)
    values = {"key": key, "holder": encoded, "expires": tx.clock.now + ttl, "boot": tx.clock.boot}
    acquired, *rows = (tx.finish if last else tx.batch)(("claim_acquire", values), *reads)
    if acquired:
        return types.ChatLease(key, acquired[0][0], holder.name, ttl), rows
    return _take_over(tx, key, holder, encoded, ttl), tx.batch(*reads) if reads else []


def _take_over(tx: Tx, key: str, holder: leases.Holder, encoded: str, ttl: float) -> types.ChatLease:
    row = tx.one("claim_row", key=key)
    assert row is not None  # rows of leases are never deleted
    if row[1] == encoded:
        return types.ChatLease(key, row[0], holder.name, ttl)  # an earlier attempt whose commit outcome is unknown
    if row[1] is not None:
        leases.refuse_if_held(tx.clock, leases.LeaseRow(*row[:4]), holder.name)
    token, expires = row[0] + 1, tx.clock.now + ttl
    tx.run("claim_take_over", key=key, token=token, holder=encoded, expires=expires, boot=tx.clock.boot)
    return types.ChatLease(key, token, holder.name, ttl)


def renew(tx: Tx, lease: types.ChatLease) -> None:
    expiry = {"expires": tx.clock.now + lease.ttl, "boot": tx.clock.boot}
    (renewed,) = tx.finish(("claim_extend", {**lease_values(lease), **expiry}))
    if not renewed:
        raise _lease_lost()


def release(tx: Tx, lease: types.ChatLease) -> bool:
    (released,) = tx.finish(("claim_release", lease_values(lease)))
    return bool(released)


def lock_query(lease: types.ChatLease) -> QueryCall:
    """Return the query that locks the row of a lease, for `check_held`."""
    return "claim_row", {"key": lease.key}


def lease_values(lease: types.ChatLease | None) -> dict[str, Any]:
    """Return the parameters of a query that writes only if the lease is held: like `check_held`, by token and holder.

    No lease has an empty key and token 0. (An optional condition, `:lease IS NULL OR …`, would make PostgreSQL plan the
    query again for each call.)
    """
    if lease is None:
        return {"lease": "", "token": 0, "holder": ""}
    # An encoded holder begins with its name.
    name = msgspec.json.encode({"name": lease.holder})[:-1].decode() + ","
    return {"lease": lease.key, "token": lease.token, "holder": name}


def check_held(lease: types.ChatLease, rows: Sequence[Row]) -> None:
    """Raise LeaseLost if the locked row has another token or holder. An expired lease is held until it is taken.

    A power loss may undo an acquisition, after which another holder gets the same token.
    """
    token, holder = rows[0][:2] if rows else (None, None)
    if token != lease.token or holder is None or not holder.startswith(lease_values(lease)["holder"]):
        raise _lease_lost()


def _lease_lost() -> errors.LeaseLost:
    return errors.LeaseLost("The chat lease was released or taken over; nothing was written.")


def _describe(clock: LeaseClock, row: Row) -> types.ChatLeaseHeld:
    held = leases.LeaseRow(*row[1:])
    left = max(0.0, held.seconds_left(clock))
    return types.ChatLeaseHeld(row[0], held.token, held.decoded.name, left, held.state(clock))
