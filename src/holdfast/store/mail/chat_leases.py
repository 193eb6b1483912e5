"""Claims: who works on a chat, or sends to one, just now.

A claim saves work and nothing more: two who do the same thing find in the store that it was done. Its token rises
each time it is taken, and what is written under a claim compares it in the very transaction that writes; so one
that was overtaken writes nothing. It goes by the clock and the holders of leases.
"""

from __future__ import annotations

from typing import Literal

from holdfast import errors, types
from holdfast.store import leases, store_meta, validation, write_step
from holdfast.store.driver import LeaseClock, Row, Tx
from holdfast.store.facet import Facet

CLAIM_TTL = 30.0
# Longer than a route, which most claims are about.
MAX_KEY = validation.MAX_ROUTE + 100


class Claims(Facet):
    """The claim methods of `db.mail`: which process works on a chat."""

    @write_step.shareable
    def claim(self, key: str, ttl: float = CLAIM_TTL, holder: str | None = None) -> write_step.WriteStep[types.Claim]:
        """The right to work on what the key names; Busy when another has it.

        Taken when it is free, has run out, or its holder is dead. The same holder asking again gets a new token,
        and its old one is dead.
        """
        named = checked_key(key)
        leases.check_terms("turn", holder, ttl)
        who = leases.this_process(holder)
        # Not synced: with the power goes whoever held it, and a server that forgot it is told by the holder; but not
        # by one whose name was given, and may be given again.
        return write_step.WriteStep("take", lambda tx: take(tx, named, who, ttl), lasting=holder is not None)

    def renew_claim(self, claim: types.Claim) -> None:
        """Start its time anew; LeaseLost when it is not held any more: stop the work at once."""
        checked(claim)
        self.driver.write("take", lambda tx: renew(tx, claim), lasting=False)

    @write_step.shareable
    def release_claim(self, claim: types.Claim) -> write_step.WriteStep[bool]:
        """Free it if it is still held; whether it was."""
        checked(claim)
        return write_step.WriteStep("take", lambda tx: free(tx, claim), lasting=False)

    def claims(self) -> list[types.ClaimHeld]:
        """Every claim somebody has, and whether it is held, has run out, or its holder is dead."""
        return self.driver.read(lambda tx: [_as_seen(tx.clock, row) for row in tx.all("claims_all")])


def checked_key(key: object) -> str:
    if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY or not key.isprintable():
        raise errors.InvalidArgument(f"A claim's key is printable text of 1 to {MAX_KEY} characters.")
    return key


def checked(claim: object) -> types.Claim:
    if not isinstance(claim, types.Claim):
        raise errors.InvalidArgument("This takes a claim.")
    return claim


def take(tx: Tx, key: str, holder: leases.Holder, ttl: float) -> types.Claim:
    row, encoded = tx.one("claim_row", key=key), leases.encode_holder(holder)
    if row is not None and row[1] == encoded:
        return types.Claim(key, row[0], holder.name, ttl)  # by an attempt that nobody heard the end of
    if row is None:
        # Tokens of a restored or copied store begin past all that were given before.
        token = (store_meta.generation(tx) << 32) + 1
    else:
        token = row[0] + 1
        if _state(tx.clock, row) == "held" and _name(row) != holder.name:
            raise errors.Busy(_name(row), tx.clock.left(row[3], row[2]))
    tx.run(
        "claim_insert" if row is None else "claim_take",
        key=key,
        token=token,
        holder=encoded,
        expires=tx.clock.now + ttl,
        boot=tx.clock.boot,
    )
    return types.Claim(key, token, holder.name, ttl)


def renew(tx: Tx, claim: types.Claim) -> None:
    check(tx, claim)
    tx.run("claim_extend", key=claim.key, expires=tx.clock.now + claim.ttl, boot=tx.clock.boot)


def free(tx: Tx, claim: types.Claim) -> bool:
    row = tx.one("claim_row", key=claim.key)
    return row is not None and _is_of(claim, row) and tx.run("claim_free", key=claim.key, token=claim.token) == 1


def check(tx: Tx, claim: types.Claim) -> Row:
    """The claim's own row, locked. One that ran out and that nobody took is as good as before: the token says so."""
    row = tx.one("claim_row", key=claim.key)
    if row is None or not _is_of(claim, row):
        raise errors.LeaseLost("The claim was given back or taken over; nothing was written.")
    return row


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
