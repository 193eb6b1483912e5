"""Housekeeping of rows that were brought from elsewhere or left behind. Nobody's message is lost by it."""

from __future__ import annotations

from holdfast import errors
from holdfast.store import compactions, conversation_row, deletion, leases, sessions
from holdfast.store.driver import Tx

GHOST_AGE = 24 * 3600.0


def finalize_orphans(tx: Tx, older_than_days: float, now: float) -> int:
    """End live continuations nothing stands behind; a later message resumes them all the same."""
    ended, before = 0, now - older_than_days * 86_400
    found = tx.all("orphan_candidates", before=before)
    conversation_row.lock_all(tx, (row[0] for row in found))
    # Looked for again: somebody may have written to one before it was locked.
    for (session_id,) in sorted({*found} & {*tx.all("orphan_candidates", before=before)}, key=found.index):
        here = conversation_row.lock(tx, session_id)
        base = compactions.current(tx, here)
        if (base is None or not base.summary) and not leased(tx, session_id):
            ended += sessions.end(tx, session_id, "orphaned_compression", now, whole=False)
    return ended


def prune_ghosts(tx: Tx, now: float) -> int:
    """Remove conversations that never had a message. No tombstone: nobody ever wrote to them."""
    removed, before = 0, now - GHOST_AGE
    found = tx.all("ghosts", before=before)
    conversation_row.lock_all(tx, (row[1] for row in found))
    for key, conversation_id in sorted({*found} & {*tx.all("ghosts", before=before)}, key=found.index):
        conversation_row.lock(tx, conversation_id)
        if not (
            tx.all("branches_reading", conversation=key) or leased(tx, conversation_id) or awaited(tx, conversation_id)
        ):
            deletion.remove(tx, key)
            removed += 1
    return removed


def leased(tx: Tx, session_id: str) -> bool:
    """Whether somebody works on it just now."""
    try:
        with tx.savepoint():
            return any(leases.holder_name(tx, session_id, purpose) for purpose in leases.PURPOSES)
    except errors.LeasesUnavailable:
        return False


def awaited(tx: Tx, session_id: str) -> bool:
    """Whether something waits to be answered in its conversation, or a process of it runs."""
    row = tx.one("conversation_awaited", conversation=conversation_row.look(tx, session_id).key)
    return row is not None and bool(row[0])
