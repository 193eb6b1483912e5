"""Leases: the right to do slow work on a conversation.

A lease is a row with a token from the conversation's one fence counter, whatever its purpose: a newer
token is always larger, so an older holder is recognised everywhere. It saves work and nothing more:
what may be written is decided by the commit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Literal

from holdfast import errors, types
from holdfast.store import conversation_row, holders
from holdfast.store.driver import Row, Tx

PURPOSES: tuple[types.Purpose, ...] = ("compact", "turn")
MAX_TTL = 86_400.0
NO_RIGHTS = "42501"
"""PostgreSQL's code for a role without rights on a table: a table that another role restored has no grants."""


def checked(purpose: types.Purpose, holder: str | None, ttl: float) -> None:
    if purpose not in PURPOSES:
        raise errors.OutOfRange(f"A lease is for {' or '.join(PURPOSES)}, not {errors.shown(purpose)}.")
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 0 < ttl <= MAX_TTL:
        raise errors.OutOfRange(f"A lease lasts more than 0 and at most {MAX_TTL:.0f} seconds.")
    if holder is not None and not (isinstance(holder, str) and 0 < len(holder) <= 200 and holder.isprintable()):
        raise errors.OutOfRange("A holder is printable text of 1 to 200 characters.")


def checked_lease(lease: object, purpose: types.Purpose | None = None) -> None:
    if not isinstance(lease, types.Lease) or purpose not in (None, lease.purpose):
        raise errors.OutOfRange(f"This takes a lease{f' to {purpose}' if purpose else ''}.")


@contextmanager
def reachable() -> Iterator[None]:
    """The lease table is the one part the store can do without: say so by a type of its own."""
    try:
        yield
    except (errors.StoreBroken, errors.StoreRefused, errors.StoreCorrupt) as error:
        raise errors.LeasesUnavailable() from error
    except errors.StoreUnusable as error:
        if error.sqlstate != NO_RIGHTS:
            raise
        raise errors.LeasesUnavailable() from error


def acquire(
    tx: Tx,
    session_id: str,
    purpose: types.Purpose,
    holder: holders.Holder,
    ttl: float,
    abandoned: Collection[str] = (),
) -> types.Lease:
    """Take the lease if it is free, expired, its holder dead, or already this holder's; else Busy.

    abandoned: names of holders whose leases this process could not release, and may take.
    """
    here = conversation_row.lock(tx, session_id)
    with reachable():
        row = tx.one("lease_row", conversation=here.key, purpose=purpose)
        if row is not None:
            _refuse_if_held(tx.clock, row, holder.name, abandoned)
        tx.run("fence_next", conversation=here.key)
        (token,) = tx.one("fence", conversation=here.key) or (0,)
        tx.run(
            "lease_insert" if row is None else "lease_take_over",
            conversation=here.key,
            purpose=purpose,
            token=token,
            holder=holders.encode(holder),
            expires=tx.clock.now + ttl,
            boot=tx.clock.boot,
            snap_seq=here.last_seq,
            acquired_at=tx.clock.unix,
        )
    return types.Lease(snapshot(here), purpose, token, holder.name, ttl)


def _refuse_if_held(clock: holders.Timeline, row: Row, name: str, abandoned: Collection[str]) -> None:
    _, text, expires, boot, _ = row
    holder, left = holders.decode(text), clock.left(boot, expires)
    if holder.name != name and left > 0 and not holder.is_dead() and holder.name not in abandoned:
        raise errors.Busy(holder.name, left)


def snapshot(here: conversation_row.State) -> types.Snapshot:
    return types.Snapshot(here.id, here.head_id, here.epoch, here.last_seq)


def check_held(tx: Tx, here: conversation_row.State, lease: types.Lease) -> None:
    """The lease's own row, under the conversation's lock: this token, this holder, not run out."""
    if lease.conversation_id != here.id:
        raise errors.LeaseLost("The lease belongs to another conversation.")
    with reachable():
        row = tx.one("lease_row", conversation=here.key, purpose=lease.purpose)
        left = 0.0
        if row is not None and row[0] == lease.token and holders.decode(row[1]).name == lease.holder:
            left = tx.clock.left(row[3], row[2])
    if left <= 0:
        raise errors.LeaseLost()


def renew(tx: Tx, lease: types.Lease) -> None:
    here = conversation_row.lock(tx, lease.conversation_id)
    check_held(tx, here, lease)
    with reachable():
        tx.run(
            "lease_extend",
            conversation=here.key,
            purpose=lease.purpose,
            token=lease.token,
            expires=tx.clock.now + lease.ttl,
            boot=tx.clock.boot,
        )


def release(tx: Tx, lease: types.Lease) -> bool:
    """Free the lease if it is still this one; whether it was."""
    return free(tx, conversation_row.lock(tx, lease.conversation_id), lease.purpose, lease.token)


def free(tx: Tx, here: conversation_row.State, purpose: types.Purpose, token: int) -> bool:
    with reachable():
        return tx.run("lease_delete", conversation=here.key, purpose=purpose, token=token) == 1


def named(tx: Tx, session_id: str, purpose: types.Purpose, holder: str, ttl: float) -> types.Lease | None:
    """The lease that goes by this holder's name, for callers that keep no lease of their own."""
    here = conversation_row.lock(tx, session_id)
    with reachable():
        row = tx.one("lease_row", conversation=here.key, purpose=purpose)
    if row is None or holders.decode(row[1]).name != holder:
        return None
    return types.Lease(snapshot(here), purpose, row[0], holder, ttl)


def holder_name(tx: Tx, session_id: str, purpose: types.Purpose) -> str | None:
    """Who holds it now; a lease that ran out or whose holder died is held by nobody."""
    here = conversation_row.look(tx, session_id)
    with reachable():
        row = tx.one("lease_row", conversation=here.key, purpose=purpose)
    if row is None:
        return None
    return holders.decode(row[1]).name if _state(tx.clock, row) == "held" else None


def turn_began(tx: Tx, here: conversation_row.State) -> int | None:
    """The last seq before the running turn began; None when no turn runs (or nobody can tell)."""
    try:
        with reachable():
            row = tx.one("lease_row", conversation=here.key, purpose="turn")
        return row[4] if row is not None and _state(tx.clock, row) == "held" else None
    except errors.LeasesUnavailable:
        return None


def every(tx: Tx) -> list[types.LeaseHeld]:
    with reachable():
        rows = tx.all("leases_all")
    return [_as_seen(tx.clock, row[0], row[1], row[2:]) for row in rows]


def free_stale(tx: Tx) -> int:
    """Free every lease that ran out or whose holder died; how many. Nobody's work is touched by it."""
    conversation_row.lock_all(tx, (lease.conversation_id for lease in every(tx) if lease.state != "held"))
    # Looked at again: one may have been taken anew, or gone with its conversation, before it was locked.
    stale = [lease for lease in every(tx) if lease.state != "held"]
    return sum(
        free(tx, conversation_row.lock(tx, lease.conversation_id), lease.purpose, lease.token) for lease in stale
    )


def _as_seen(clock: holders.Timeline, conversation: str, purpose: types.Purpose, row: Row) -> types.LeaseHeld:
    token, text, expires, boot, snap_seq, acquired_at = row
    holder = holders.decode(text)
    return types.LeaseHeld(
        conversation_id=conversation,
        purpose=purpose,
        token=token,
        holder=holder.name,
        host=holder.host,
        pid=holder.pid,
        expires_in=max(0.0, clock.left(boot, expires)),
        state=_state(clock, row),
        snap_seq=snap_seq,
        thread=holder.thread,
        agent=holder.agent,
        acquired_at=acquired_at,
    )


def _state(clock: holders.Timeline, row: Row) -> Literal["held", "expired", "dead"]:
    if clock.left(row[3], row[2]) <= 0:
        return "expired"
    return "dead" if holders.decode(row[1]).is_dead() else "held"
