"""The compaction commit, and taking one back.

The lease saves work; the commit decides: it compares head, epoch and, when a lease was taken, token,
under the conversation's lock. Its cost does not grow with the history: no message is touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import msgspec

from holdfast import errors, types
from holdfast.store import conversation_row, leases, message_codec, notifications, sessions, validation
from holdfast.store.driver import Asked, Row, Tx


class Body(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a compaction says."""

    summary: str = ""
    pinned: tuple[int, ...] = ()
    ledger: dict[str, Any] = {}


class Draft(msgspec.Struct, frozen=True):
    """A finished summary on its way to the commit."""

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
        raise errors.MessageInvalid("A summary is text.")
    if not isinstance(ledger, Mapping | None):
        raise errors.MessageInvalid("A ledger is an object.")
    validation.check(validation.WholeNumber, cut_seq=cut_seq, seen_seq=seen_seq)
    for number in pinned if isinstance(pinned, Sequence | Set) else (None,):
        validation.check(validation.WholeNumber, pinned=number)
    kept = tuple(sorted(set(pinned)))
    if kept and (kept[0] < 1 or kept[-1] > cut_seq):
        raise errors.InvalidArgument(f"Pinned messages lie within 1 to cut_seq, which is {cut_seq}.")
    if not 0 <= cut_seq <= seen_seq:
        raise errors.InvalidArgument(f"cut_seq {cut_seq} lies outside 0 to seen_seq, which is {seen_seq}.")
    body = Body(summary, kept, dict(ledger or {}))
    return Draft(cut_seq, seen_seq, body, message_codec.exact(body, "summary or its ledger"), model, keep_lease)


def commit(tx: Tx, work: types.Lease | types.Snapshot, child_id: str, draft: Draft, now: float) -> None:
    """End the head, open its continuation, and let the context stand on the summary: all or nothing.

    Raises LeaseLost when the lease no longer holds, Superseded when head or view changed meanwhile.
    A commit repeated with the same child id finds its result and changes nothing.
    """
    lease = work if isinstance(work, types.Lease) else None
    seen = lease.snapshot if lease else work
    assert isinstance(seen, types.Snapshot)
    here = conversation_row.lock(tx, seen.conversation_id)
    if _committed_before(tx, here, child_id, draft, lease):
        return
    if lease is not None:
        leases.check_held(tx, here, lease)
    if (here.head_id, here.epoch, here.live) != (seen.head_id, seen.epoch, 1):
        raise errors.Superseded(here.head_id, here.epoch)
    _check_cut(tx, here, draft, seen)
    rotate(tx, here, child_id, draft, lease.token if lease else None, now)
    if lease is not None and not draft.keep_lease:
        leases.free(tx, here, lease.purpose, lease.token)


class Commit:
    """A commit as a step of its own, which gives the new head; it may run again."""

    def __init__(
        self, work: types.Lease | types.Snapshot, child: conversation_row.NewId, made: Draft, now: float
    ) -> None:
        self._work, self._child, self._draft, self._now = work, child, made, now
        self._lease = work if isinstance(work, types.Lease) else None
        self._seen = work.snapshot if isinstance(work, types.Lease) else work
        self._tried = False

    def __call__(self, tx: Tx) -> types.Session:
        if self._tried and tx.one("session_place", id=self._child.id):
            # Ours, if the attempt nobody heard the end of was done; or an id that somebody else has.
            self._child.keep(tx, self._seen.conversation_id)
        commit(tx, self._work, self._child.settle(tx), self._draft, self._now)
        found = sessions.get(tx, self._child.id)
        assert found is not None  # it was just made
        return found

    def plain(self) -> Asked | None:
        made, seen, lease = self._draft, self._seen, self._lease
        if made.seen_seq > seen.last_seq:
            return None
        self._tried = True
        values = {
            "conversation": seen.conversation_id,
            "head": seen.head_id,
            "epoch": seen.epoch,
            "child": self._child.id,
            "token": lease.token if lease else None,
            "holder": lease.holder if lease else None,
            "now": None,
            "at": self._now,
            "cut_seq": made.cut_seq,
            "seen_seq": made.seen_seq,
            "body": made.text,
            "digest": message_codec.summary_digest(seen.conversation_id, seen.epoch + 1, made.text),
            "model": made.model,
            "keep_lease": made.keep_lease,
        }
        told = [notifications.Hint("moved", seen.conversation_id)]
        if lease and not made.keep_lease:
            told.append(notifications.Hint("freed", seen.conversation_id))
        return Asked("commit_plain", values, told)

    def answered(self, row: Row) -> types.Session:
        return types.Session(*row)


def rotate(
    tx: Tx,
    here: conversation_row.State,
    child_id: str,
    draft: Draft,
    token: int | None,
    now: float,
    source: str | None = None,
) -> conversation_row.State:
    """The one way a compaction is written; the head is live, or was ended for this very purpose."""
    origin, model, _ = tx.one("session_origin", conversation=here.key, ordinal=here.head) or ("", None, None)
    if here.live:
        sessions.end_head(tx, here, "compression", now)
    sessions.add(tx, here, child_id, source or origin, draft.model or model, now)
    tx.run(
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
    tx: Tx, here: conversation_row.State, child_id: str, draft: Draft, lease: types.Lease | None
) -> bool:
    row = tx.one("session_place", id=child_id)
    if row is None:
        sessions.refuse_taken(tx, child_id)
        return False
    conversation, ordinal = row
    made = tx.one("compaction_of_session", conversation=conversation, session=ordinal)
    mine = (draft.cut_seq, draft.seen_seq, lease.token if lease else None)
    if conversation == here.key and made is not None and made[1:] == mine:
        return True
    raise errors.IdTaken(child_id)


def _check_cut(tx: Tx, here: conversation_row.State, draft: Draft, seen: types.Snapshot) -> None:
    if draft.seen_seq > seen.last_seq:
        raise errors.InvalidArgument(
            f"seen_seq {draft.seen_seq} lies beyond {seen.last_seq}, the last message when the work began."
        )
    base = current(tx, here)
    if base and draft.cut_seq < base.cut_seq:
        raise errors.InvalidArgument(f"cut_seq {draft.cut_seq} lies before {base.cut_seq}, where the last cut was.")


# --- reading -----------------------------------------------------------------------------------------


def current(tx: Tx, here: conversation_row.State) -> types.Compaction | None:
    """The compaction the context stands on: the conversation's own, else the one inherited by a branch."""
    if here.compaction_epoch is not None:
        return at(tx, here.key, here.compaction_epoch)
    return _inherited(tx, here.origin, here.forked_at, here.forked_epoch)


def _inherited(tx: Tx, origin: int | None, limit: int, epoch: int | None) -> types.Compaction | None:
    # No epoch: nothing on the origin's own chain fits, so what the origin itself inherited may.
    passed: set[int] = set()
    while origin is not None:
        if origin in passed:
            raise errors.StoreCorrupt("A conversation branches off itself.")
        passed.add(origin)
        found = newest_seen(tx, origin, epoch, limit)
        if found:
            return found
        origin, forked_at, epoch, _ = tx.one("origin_of", key=origin) or (None, 0, None, None)
        limit = min(limit, forked_at)
    return None


def newest_seen(tx: Tx, key: int, epoch: int | None, limit: int) -> types.Compaction | None:
    """Down the chain of bases from epoch: the newest compaction made from nothing after limit."""
    while epoch is not None:
        found = at(tx, key, epoch)
        if found.seen_seq <= limit:
            return found
        if found.base_epoch is not None and found.base_epoch >= epoch:
            raise errors.StoreCorrupt(f"Compaction {epoch} stands on one that came after it.")
        epoch = found.base_epoch
    return None


def at(tx: Tx, key: int, epoch: int) -> types.Compaction:
    row = tx.one("compaction_at", conversation=key, epoch=epoch)
    if row is None:
        raise errors.StoreCorrupt(f"Compaction {epoch}, on which a context stands, does not exist.")
    return from_row(row)


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
    """The context stands on what the current compaction stood on; every message is still there."""
    here = conversation_row.lock(tx, session_id)
    meant = tx.meant.setdefault("undo", here.compaction_epoch)
    if meant is not None and not _in_force(tx, here, meant):
        return at(tx, here.key, meant)
    if here.compaction_epoch is None:
        raise errors.NothingToUndo("This conversation stands on no compaction of its own.")
    undone = at(tx, here.key, here.compaction_epoch)
    conversation_row.moved(tx, here, compaction_epoch=undone.base_epoch, redo_epoch=undone.epoch)
    return undone


def redo(tx: Tx, session_id: str) -> types.Compaction:
    here = conversation_row.lock(tx, session_id)
    meant = tx.meant.setdefault("redo", here.redo_epoch)
    if meant is not None and _in_force(tx, here, meant):
        return at(tx, here.key, meant)
    if here.redo_epoch is None:
        raise errors.NothingToUndo()
    conversation_row.moved(tx, here, compaction_epoch=here.redo_epoch, redo_epoch=None)
    return at(tx, here.key, here.redo_epoch)


def _in_force(tx: Tx, here: conversation_row.State, epoch: int) -> bool:
    """Whether the context stands on this compaction, itself or beneath those made since."""
    stands = here.compaction_epoch
    while stands is not None and stands > epoch:
        stands = at(tx, here.key, stands).base_epoch
    return stands == epoch
