"""Commit a compaction, read the current one, undo and redo.

A lease only avoids duplicate work. The commit itself compares head, epoch and the token of the lease, if there is one,
while it holds the lock of the conversation. It changes no message, so its cost does not grow with the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

import msgspec

from holdfast import errors, types
from holdfast.store import conversation_row, leases, message_codec, sessions, validation
from holdfast.store.driver import Query, Row, Tx


class Body(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stored content of a compaction."""

    summary: str = ""
    pinned: tuple[int, ...] = ()
    ledger: dict[str, Any] = {}


class Draft(msgspec.Struct, frozen=True):
    """A compaction to be committed, validated and encoded."""

    cut_seq: int
    seen_seq: int
    body: Body
    text: str
    model: str | None
    keep_lease: bool = False


def draft(
    cut_seq: int,
    seen_seq: int,
    summary: str,
    pinned: Sequence[int],
    ledger: Mapping[str, Any] | None,
    model: str | None,
    keep_lease: bool = False,
) -> Draft:
    validation.check(validation.OptionalFlag, keep_lease=keep_lease)
    if not isinstance(summary, str):
        raise errors.InvalidArgument("`summary` must be text.")
    if not isinstance(ledger, Mapping | None):
        raise errors.InvalidArgument("`ledger` must be an object.")
    validation.check(validation.WholeNumber, cut_seq=cut_seq, seen_seq=seen_seq)
    for number in pinned if isinstance(pinned, Sequence | Set) else (None,):
        validation.check(validation.WholeNumber, pinned=number)
    kept = tuple(sorted(set(pinned)))
    if kept and (kept[0] < 1 or kept[-1] > cut_seq):
        raise errors.InvalidArgument(f"`pinned` must be between 1 and `cut_seq`, which is {cut_seq}.")
    if cut_seq > seen_seq:
        raise errors.InvalidArgument(f"`cut_seq` must be at most `seen_seq`, which is {seen_seq}, not {cut_seq}.")
    body = Body(summary, kept, dict(ledger or {}))
    return Draft(cut_seq, seen_seq, body, message_codec.exact(body, "summary or its ledger"), model, keep_lease)


def commit(tx: Tx, work: types.Lease | types.Snapshot, child_id: str, draft: Draft, now: float) -> types.Session:
    """End the head session, start its continuation with the compaction in force, and return the new head.

    Raises LeaseLost if the lease is no longer held, and Superseded if head, epoch or view changed since the snapshot.
    A retry with the same child id finds its result and changes nothing.
    """
    lease = work if isinstance(work, types.Lease) else None
    seen = work.snapshot if isinstance(work, types.Lease) else work
    here = conversation_row.lock(tx, seen.conversation_id)
    look = _look(tx, here, child_id, lease)
    if _committed_before(tx, here, child_id, look, draft, lease):
        found = sessions.get(tx, child_id)
        assert found is not None  # a foreign key keeps it
        return found
    if lease is not None:
        leases.check_row(tx, here, lease, look.lease)
    if (here.head_id, here.epoch, here.live) != (seen.head_id, seen.epoch, 1):
        raise errors.Superseded(here.head_id, here.epoch)
    _check_cut(draft, seen, look.base)
    model = draft.model or look.head.model
    rotate(tx, here, child_id, draft, lease.token if lease else None, now, look.head.source, model)
    if lease is not None and not draft.keep_lease:
        tx.defer("lease_delete", conversation=here.key, purpose=lease.purpose, token=lease.token)
    return types.Session(
        child_id,
        here.id,
        here.head + 1,
        here.head_id,
        here.owner,
        look.head.source,
        model,
        here.title,
        now,
        None,
        None,
        here.last_seq + 1,
        here.last_seq,
        look.head.active_at if here.last_seq > here.forked_at else now,
        look.head.folder,
        look.head.metadata,
    )


class _Look(NamedTuple):
    """The rows that a commit compares, read in one round trip after the conversation was locked."""

    place: Row | None
    deleted: bool
    head: types.Session
    base: types.Compaction | None
    lease: Row | None


def _look(tx: Tx, here: conversation_row.State, child_id: str, lease: types.Lease | None) -> _Look:
    queries: list[Query] = [
        ("session_place", {"id": child_id}),
        ("tombstone", {"id": child_id}),
        ("session_get", {"id": here.head_id}),
    ]
    if here.compaction_epoch is not None:
        queries.append(("compaction_at", {"conversation": here.key, "epoch": here.compaction_epoch}))
    if lease is None:
        place, tombstone, head, *base = tx.batch(*queries)
        row = []
    else:
        with leases.reachable():
            asked: Query = ("lease_row", {"conversation": here.key, "purpose": lease.purpose})
            place, tombstone, head, *base, row = tx.batch(*queries, asked)
    if not head:
        raise errors.StoreCorrupt(f"The head of conversation {here.id} is missing. Run `holdfast doctor`.")
    return _Look(
        place[0] if place else None,
        bool(tombstone),
        sessions.from_row(head[0]),
        _required(here.compaction_epoch, base[0]) if base else current(tx, here),
        row[0] if row else None,
    )


def rotate(
    tx: Tx,
    here: conversation_row.State,
    child_id: str,
    draft: Draft,
    token: int | None,
    now: float,
    source: str,
    model: str | None,
) -> conversation_row.State:
    """Write a compaction and the session that continues with it. The head is live, or was ended for this purpose."""
    if here.live:
        tx.defer(
            "session_end",
            conversation=here.key,
            ordinal=here.head,
            at=now,
            reason="compression",
            last_seq=here.last_seq,
        )
    sessions.add(tx, here, child_id, source, model, now)
    tx.defer(
        "compaction_insert",
        conversation=here.key,
        epoch=here.epoch + 1,
        base_epoch=here.compaction_epoch,
        session=here.head + 1,
        cut_seq=draft.cut_seq,
        seen_seq=draft.seen_seq,
        token=token,
        body=draft.text,
        at=now,
        digest=message_codec.summary_digest(here.id, here.epoch + 1, draft.text),
    )
    return conversation_row.moved(
        tx, here, head=here.head + 1, live=1, compaction_epoch=here.epoch + 1, redo_epoch=None
    )._replace(head_id=child_id)


def _committed_before(
    tx: Tx, here: conversation_row.State, child_id: str, look: _Look, draft: Draft, lease: types.Lease | None
) -> bool:
    if look.place is None:
        if look.deleted:
            raise errors.ConversationDeleted(child_id)
        return False
    conversation, ordinal = look.place
    made = tx.one("compaction_of_session", conversation=conversation, session=ordinal)
    mine = (draft.cut_seq, draft.seen_seq, lease.token if lease else None)
    if conversation == here.key and made is not None and made[1:] == mine:
        return True
    raise errors.IdTaken(child_id)


def _check_cut(draft: Draft, seen: types.Snapshot, base: types.Compaction | None) -> None:
    if draft.seen_seq > seen.last_seq:
        raise errors.InvalidArgument(
            f"`seen_seq` must be at most {seen.last_seq}, the last message when the work began, not {draft.seen_seq}."
        )
    if base and draft.cut_seq < base.cut_seq:
        raise errors.InvalidArgument(f"`cut_seq` must be at least {base.cut_seq}, the last cut, not {draft.cut_seq}.")


# --- reading -----------------------------------------------------------------------------------------


def current(tx: Tx, here: conversation_row.State) -> types.Compaction | None:
    """Return the compaction in force: that of the conversation itself, else the one that a branch inherits."""
    if here.compaction_epoch is not None:
        return at(tx, here.key, here.compaction_epoch)
    return _inherited(tx, here.origin, here.forked_at, here.forked_epoch)


def _inherited(tx: Tx, origin: int | None, limit: int, epoch: int | None) -> types.Compaction | None:
    # If no compaction of the origin is old enough, the branch may have the one that the origin inherits.
    visited: set[int] = set()
    while origin is not None:
        if origin in visited:
            raise errors.StoreCorrupt("A conversation is a branch of itself.")
        visited.add(origin)
        found = newest_seen(tx, origin, epoch, limit)
        if found:
            return found
        origin, forked_at, epoch, _ = tx.one("origin_of", key=origin) or (None, 0, None, None)
        limit = min(limit, forked_at)
    return None


def newest_seen(tx: Tx, key: int, epoch: int | None, limit: int) -> types.Compaction | None:
    """Return the newest compaction, from `epoch` down its chain of bases, that saw no message after `limit`."""
    while epoch is not None:
        found = at(tx, key, epoch)
        if found.seen_seq <= limit:
            return found
        if found.base_epoch is not None and found.base_epoch >= epoch:
            raise errors.StoreCorrupt(f"Compaction {epoch} is based on a later one.")
        epoch = found.base_epoch
    return None


def at(tx: Tx, key: int, epoch: int) -> types.Compaction:
    return _required(epoch, tx.all("compaction_at", conversation=key, epoch=epoch))


def _required(epoch: int | None, rows: Sequence[Row]) -> types.Compaction:
    if not rows:
        raise errors.StoreCorrupt(f"Compaction {epoch}, which is in force or the base of another, is missing.")
    return from_row(rows[0])


def from_row(row: Row) -> types.Compaction:
    epoch, base_epoch, session_id, cut_seq, seen_seq, token, made_at, text = row
    try:
        body = msgspec.json.decode(text, type=Body)
    except msgspec.DecodeError:
        raise errors.StoreCorrupt(f"The summary of compaction {epoch} cannot be read.") from None
    return types.Compaction(
        epoch, base_epoch, session_id, cut_seq, seen_seq, token, made_at, body.summary, body.pinned, body.ledger
    )


# --- undo and redo -----------------------------------------------------------------------------------


def undo(tx: Tx, session_id: str) -> types.Compaction:
    """Put the base of the current compaction in force again, and return the compaction that was undone."""
    here = conversation_row.lock(tx, session_id)
    meant = tx.retry_state.setdefault("undo", here.compaction_epoch)
    if meant is not None and not _in_force(tx, here, meant):
        return at(tx, here.key, meant)
    if here.compaction_epoch is None:
        raise errors.NothingToUndo("This conversation has no compaction of its own.")
    undone = at(tx, here.key, here.compaction_epoch)
    conversation_row.moved(tx, here, compaction_epoch=undone.base_epoch, redo_epoch=undone.epoch)
    return undone


def redo(tx: Tx, session_id: str) -> types.Compaction:
    here = conversation_row.lock(tx, session_id)
    meant = tx.retry_state.setdefault("redo", here.redo_epoch)
    if meant is not None and _in_force(tx, here, meant):
        return at(tx, here.key, meant)
    if here.redo_epoch is None:
        raise errors.NothingToUndo()
    conversation_row.moved(tx, here, compaction_epoch=here.redo_epoch, redo_epoch=None)
    return at(tx, here.key, here.redo_epoch)


def _in_force(tx: Tx, here: conversation_row.State, epoch: int) -> bool:
    """Return whether this compaction is the current one or among its bases."""
    base = here.compaction_epoch
    while base is not None and base > epoch:
        base = at(tx, here.key, base).base_epoch
    return base == epoch
