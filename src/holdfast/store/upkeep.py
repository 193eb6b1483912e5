"""Upkeep of conversations that were imported or left unfinished. It deletes no message."""

from __future__ import annotations

from holdfast import errors
from holdfast.store import compactions, conversation_row, deletion, leases, sessions
from holdfast.store.driver import Tx

GHOST_AGE = 24 * 3600.0


def finalize_orphans(tx: Tx, older_than_days: float, now: float) -> int:
    """End live continuations without a compaction; a later message resumes them."""
    ended, before = 0, now - older_than_days * 86_400
    found = tx.all("orphan_candidates", before=before)
    conversation_row.lock_all(tx, (row[0] for row in found))
    # Queried again under the locks: another process may have written to one in between.
    for (session_id,) in sorted({*found} & {*tx.all("orphan_candidates", before=before)}, key=found.index):
        here = conversation_row.lock(tx, session_id)
        base = compactions.current(tx, here)
        if (base is None or not base.summary) and not leased(tx, session_id):
            ended += sessions.end(tx, session_id, "orphaned_compression", now, whole=False)
    return ended


def prune_ghosts(tx: Tx, now: float) -> int:
    """Remove conversations that never had a message, without a tombstone."""
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
    """Return whether a lease on the conversation is held."""
    try:
        with tx.savepoint():
            return any(leases.holder_name(tx, session_id, purpose) for purpose in leases.PURPOSES)
    except errors.LeasesUnavailable:
        return False


def awaited(tx: Tx, session_id: str) -> bool:
    """Return whether the conversation has unanswered mail or a running process."""
    row = tx.one("conversation_awaited", conversation=conversation_row.look(tx, session_id).key)
    return row is not None and bool(row[0])
