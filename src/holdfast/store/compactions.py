"""Commit a compaction, read the current one, undo and redo.

A lease only avoids duplicate work: `commit` locks the conversation and compares head, epoch and, if there is a lease,
its token. It changes no message, so its cost does not grow with the log.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence, Set
from contextlib import nullcontext
from typing import Any, NamedTuple

import msgspec

from holdfast import errors, types
from holdfast.store import conversation_row, leases, message_codec, sessions, validation
from holdfast.store.conversation_row import ConversationRow
from holdfast.store.driver import QueryCall, Row, Tx


class CompactionBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stored content of a compaction."""

    summary: str = ""
    pinned: tuple[int, ...] = ()
    ledger: dict[str, Any] = {}


class CompactionDraft(msgspec.Struct, frozen=True):
    """A compaction to be committed, validated and encoded."""

    cut_seq: int
    seen_seq: int
    text: str
    model: str | None
    keep_lease: bool = False


def make_draft(
    cut_seq: int,
    seen_seq: int,
    summary: str,
    pinned: Sequence[int],
    ledger: Mapping[str, Any] | None,
    model: str | None,
    keep_lease: bool = False,
) -> CompactionDraft:
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
    body = CompactionBody(summary, kept, dict(ledger or {}))
    text = message_codec.encode_exact(body, "summary or its ledger")
    return CompactionDraft(cut_seq, seen_seq, text, model, keep_lease)


def commit(
    tx: Tx, work: types.Lease | types.Snapshot, child_id: str, draft: CompactionDraft, now: float
) -> types.Session:
    """End the head session, open its continuation with this compaction in force, and return the continuation.

    Raises LeaseLost if the lease is no longer held, and Superseded if the head or the epoch is not that of the
    snapshot. A retry with the same child id finds its result and changes nothing.
    """
    lease = work if isinstance(work, types.Lease) else None
    seen = work.snapshot if isinstance(work, types.Lease) else work
    here, stored = _lock(tx, seen, child_id, lease)
    if _was_committed(tx, here, child_id, stored, draft, lease):
        found = sessions.get(tx, child_id)
        assert found is not None  # a foreign key keeps it
        return found
    if lease is not None:
        leases.check_row(tx, here, lease, leases.LeaseRow(*stored.lease) if stored.lease else None)
    if (here.head_id, here.epoch, here.live) != (seen.head_id, seen.epoch, 1):
        raise errors.Superseded(here.head_id, here.epoch)
    base = current(tx, here) if stored.compaction is None else from_row(stored.compaction)
    if draft.seen_seq > seen.last_seq:
        raise errors.InvalidArgument(
            f"`seen_seq` must be at most {seen.last_seq}, the last message when the work began, not {draft.seen_seq}."
        )
    if base and draft.cut_seq < base.cut_seq:
        raise errors.InvalidArgument(f"`cut_seq` must be at least {base.cut_seq}, the last cut, not {draft.cut_seq}.")
    if stored.head is None:
        raise errors.StoreCorrupt(f"The head of conversation {here.id} is missing. Run `holdfast doctor`.")
    head = sessions.from_row(stored.head)
    model = draft.model or head.model
    last: list[QueryCall] = []
    if lease is not None and not draft.keep_lease:
        last.append(("lease_delete", {"conversation": here.key, "purpose": lease.purpose, "token": lease.token}))
    write(tx, here, child_id, draft, lease.token if lease else None, now, head.source, model, *last)
    return msgspec.structs.replace(
        head,
        id=child_id,
        ordinal=here.head + 1,
        parent_session_id=here.head_id,
        model=model,
        started_at=now,
        first_seq=here.last_seq + 1,
        active_at=head.active_at if here.last_seq > here.forked_at else now,
    )


class _CommitState(NamedTuple):
    """The rows that a commit compares, None for a row that does not exist."""

    place: Row | None
    tombstone: Row | None
    head: Row | None
    compaction: Row | None
    lease: Row | None = None


def _lock(
    tx: Tx, seen: types.Snapshot, child_id: str, lease: types.Lease | None
) -> tuple[ConversationRow, _CommitState]:
    """Lock the conversation and read everything that the commit compares, in one round trip."""
    conversation_id = validation.check_id(seen.conversation_id)
    queries: list[QueryCall] = [
        ("lock_conversation", {"id": conversation_id}),
        ("session_place", {"id": child_id}),
        ("tombstone", {"id": child_id}),
        ("session_get", {"id": validation.check_id(seen.head_id)}),
        ("compaction_in_force", {"id": conversation_id}),
    ]
    if lease is not None:
        queries.append(("lease_of_session", {"id": conversation_id, "purpose": lease.purpose}))
    with leases.lease_table_errors() if lease is not None else nullcontext():
        row, *rest = (rows[0] if rows else None for rows in tx.batch(*queries))
    return conversation_row.require(tx, conversation_id, row), _CommitState(*rest)


def write(
    tx: Tx,
    here: ConversationRow,
    child_id: str,
    draft: CompactionDraft,
    token: int | None,
    now: float,
    source: str,
    model: str | None,
    *last: QueryCall,
) -> None:
    """Write a compaction and the session that continues with it, and finish the step with the queries in `last`.

    The head is live, or was ended by 'compression'.
    """
    if here.live:
        tx.defer(
            "session_end",
            conversation=here.key,
            ordinal=here.head,
            at=now,
            reason="compression",
            last_seq=here.last_seq,
        )
    sessions.insert_continuation(tx, here, child_id, source, model, now)
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
    conversation_row.update(
        tx, here, head=here.head + 1, live=1, compaction_epoch=here.epoch + 1, redo_epoch=None, last=last
    )


def _was_committed(
    tx: Tx,
    here: ConversationRow,
    child_id: str,
    stored: _CommitState,
    draft: CompactionDraft,
    lease: types.Lease | None,
) -> bool:
    """Return whether an earlier attempt committed this compaction. Raises IdTaken if the child is another session."""
    if stored.place is None:
        if stored.tombstone is not None:
            raise errors.ConversationDeleted(child_id)
        return False
    conversation, ordinal = stored.place
    row = tx.one("compaction_of_session", conversation=conversation, session=ordinal)
    expected = (draft.cut_seq, draft.seen_seq, lease.token if lease else None)
    if conversation == here.key and row is not None and row[1:] == expected:
        return True
    raise errors.IdTaken(child_id)


# --- reading -----------------------------------------------------------------------------------------


def current(tx: Tx, here: ConversationRow) -> types.Compaction | None:
    """Return the compaction in force: the conversation's own, or else the one that a branch inherits."""
    if here.compaction_epoch is not None:
        return get(tx, here.key, here.compaction_epoch)
    origins = itertools.islice(conversation_row.lineage(tx, here), 1, None) if here.origin is not None else ()
    for origin in origins:
        found = find_covering_upto(tx, origin.key, origin.epoch, origin.upto)
        if found:
            return found
    return None


def find_covering_upto(tx: Tx, key: int, epoch: int | None, limit: int) -> types.Compaction | None:
    """Return the compaction `epoch`, or the first of its bases, whose summary covers no message after `limit`."""
    while epoch is not None:
        found = get(tx, key, epoch)
        if found.seen_seq <= limit:
            return found
        if found.base_epoch is not None and found.base_epoch >= epoch:
            raise errors.StoreCorrupt(f"Compaction {epoch} is based on a later one.")
        epoch = found.base_epoch
    return None


def get(tx: Tx, key: int, epoch: int) -> types.Compaction:
    row = tx.one("compaction_get", conversation=key, epoch=epoch)
    if row is None:
        raise errors.StoreCorrupt(f"Compaction {epoch}, which is in force or the base of another, is missing.")
    return from_row(row)


def from_row(row: Row) -> types.Compaction:
    epoch, base_epoch, session_id, cut_seq, seen_seq, token, made_at, text = row
    try:
        body = msgspec.json.decode(text, type=CompactionBody)
    except msgspec.DecodeError:
        raise errors.StoreCorrupt(f"The summary of compaction {epoch} cannot be read.") from None
    return types.Compaction(
        epoch, base_epoch, session_id, cut_seq, seen_seq, token, made_at, body.summary, body.pinned, body.ledger
    )


# --- undo and redo -----------------------------------------------------------------------------------


def undo(tx: Tx, session_id: str) -> types.Compaction:
    """Put the base of the current compaction in force again, and return the compaction that was undone."""
    here = conversation_row.lock(tx, session_id)
    # The compaction that the first attempt found, so that a retry does not undo another one.
    target = tx.retry_state.setdefault("undo", here.compaction_epoch)
    if target is not None and not _in_force(tx, here, target):
        return get(tx, here.key, target)
    if here.compaction_epoch is None:
        raise errors.NothingToUndo("This conversation has no compaction of its own.")
    undone = get(tx, here.key, here.compaction_epoch)
    conversation_row.update(tx, here, compaction_epoch=undone.base_epoch, redo_epoch=undone.epoch)
    return undone


def redo(tx: Tx, session_id: str) -> types.Compaction:
    here = conversation_row.lock(tx, session_id)
    target = tx.retry_state.setdefault("redo", here.redo_epoch)
    if target is not None and _in_force(tx, here, target):
        return get(tx, here.key, target)
    if here.redo_epoch is None:
        raise errors.NothingToUndo()
    conversation_row.update(tx, here, compaction_epoch=here.redo_epoch, redo_epoch=None)
    return get(tx, here.key, here.redo_epoch)


def _in_force(tx: Tx, here: ConversationRow, epoch: int) -> bool:
    """Return whether this compaction is the current one or among its bases."""
    base = here.compaction_epoch
    while base is not None and base > epoch:
        base = get(tx, here.key, base).base_epoch
    return base == epoch
