"""Claims: leases on chats, for the process that works on a chat or sends to it.

A claim only avoids duplicate work; outcomes are recorded once without it. Its token increases each time it is taken,
and every write under a claim compares the token in the same transaction, so a holder that was overtaken writes nothing.
Expiry and holders are those of leases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from holdfast import errors, types
from holdfast.store import leases, validation, write_step
from holdfast.store.driver import LeaseClock, Query, Row, Tx
from holdfast.store.facet import Facet

CLAIM_TTL = 30.0
# Longer than a route, which most claims are about.
MAX_KEY = validation.MAX_ROUTE + 100


class Claims(Facet):
    """The claim methods of `db.mail`: which process works on a chat."""

    @write_step.shareable
    def claim(self, key: str, ttl: float = CLAIM_TTL, holder: str | None = None) -> write_step.WriteStep[types.Claim]:
        """Take a claim; Busy when another holder has it.

        A claim can be taken when it is free, expired, or its holder is dead. A holder that takes it again gets a new
        token, which voids the old one.
        """
        named = validation.check_text(key, "key", MAX_KEY)
        leases.check_terms("turn", holder, ttl)
        who = leases.this_process(holder)
        # Not synced: a power loss ends the holder too. One with a given name may come back, so its claim is synced.
        return write_step.WriteStep(
            "take", lambda tx: take(tx, named, who, ttl, last=True)[0], durable=holder is not None
        )

    def renew_claim(self, claim: types.Claim) -> None:
        """Extend a claim by its TTL; LeaseLost when it is not held any more."""
        checked(claim)
        self.driver.write("take", lambda tx: renew(tx, claim), durable=False)

    @write_step.shareable
    def release_claim(self, claim: types.Claim) -> write_step.WriteStep[bool]:
        """Release a claim; return whether it was still held."""
        checked(claim)
        return write_step.WriteStep("take", lambda tx: free(tx, claim), durable=False)

    def claims(self) -> list[types.ClaimHeld]:
        """List the claims that have a holder, with their state."""
        return self.driver.read(lambda tx: [_as_seen(tx.clock, row) for row in tx.all("claims_all")])


def checked(claim: object) -> types.Claim:
    return validation.check_type(types.Claim, claim, "claim")


def take(
    tx: Tx, key: str, holder: leases.Holder, ttl: float, *reads: Query, last: bool = False
) -> tuple[types.Claim, list[list[Row]]]:
    """Take a claim, or raise Busy; return it with the rows of the queries that are to be read under it.

    `last`: the transaction ends with it.
    """
    encoded = leases.encode_holder(holder)
    values = {"key": key, "holder": encoded, "expires": tx.clock.now + ttl, "boot": tx.clock.boot}
    taken, *rows = (tx.finish if last else tx.batch)(("claim_put", values), *reads)
    if taken:
        return types.Claim(key, taken[0][0], holder.name, ttl), rows
    return _take_over(tx, key, holder, encoded, ttl), tx.batch(*reads) if reads else []


def _take_over(tx: Tx, key: str, holder: leases.Holder, encoded: str, ttl: float) -> types.Claim:
    row = tx.one("claim_row", key=key)
    assert row is not None  # claims are never deleted
    if row[1] == encoded:
        return types.Claim(key, row[0], holder.name, ttl)  # an earlier attempt whose commit outcome is unknown
    if _state(tx.clock, row) == "held" and _name(row) != holder.name:
        raise errors.Busy(_name(row), tx.clock.left(row[3], row[2]))
    token, expires = row[0] + 1, tx.clock.now + ttl
    tx.run("claim_take", key=key, token=token, holder=encoded, expires=expires, boot=tx.clock.boot)
    return types.Claim(key, token, holder.name, ttl)


def renew(tx: Tx, claim: types.Claim) -> None:
    verify(claim, tx.batch(locked(claim))[0])
    tx.finish(("claim_extend", {"key": claim.key, "expires": tx.clock.now + claim.ttl, "boot": tx.clock.boot}))


def free(tx: Tx, claim: types.Claim) -> bool:
    (freed,) = tx.finish(("claim_free", {"key": claim.key, "token": claim.token}))
    return bool(freed)


def locked(claim: types.Claim) -> Query:
    """The query that locks the row of a claim; `verify` checks what it returns."""
    return "claim_row", {"key": claim.key}


def verify(claim: types.Claim, rows: Sequence[Row]) -> None:
    """Raise LeaseLost unless the claim is still held; one that expired and was not taken over is."""
    if not rows or not _is_of(claim, rows[0]):
        raise errors.LeaseLost("The claim was given back or taken over; nothing was written.")


def _is_of(claim: types.Claim, row: Row) -> bool:
    return bool(row[0] == claim.token and row[1] is not None and _name(row) == claim.holder)


def _name(row: Row) -> str:
    return leases.decode_holder(row[1]).name


def _state(clock: LeaseClock, row: Row) -> Literal["free", "held", "expired", "dead"]:
    if row[1] is None:
        return "free"
    if clock.left(row[3], row[2]) <= 0:
        return "expired"
    return "dead" if leases.decode_holder(row[1]).is_dead() else "held"


def _as_seen(clock: LeaseClock, row: Row) -> types.ClaimHeld:
    key, *rest = row
    state = _state(clock, tuple(rest))
    assert state != "free"  # those are not asked for
    return types.ClaimHeld(key, rest[0], _name(tuple(rest)), max(0.0, clock.left(rest[3], rest[2])), state)
