"""Redact messages, delete conversations, and clean up unfinished ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from holdfast import errors, types
from holdfast.store import compactions, conversation_row, leases, message_codec, sessions, titles
from holdfast.store.blobs import blobs
from holdfast.store.conversation_row import ConversationRow
from holdfast.store.driver import Tx
from holdfast.store.records import permissions, processes
from holdfast.store.search import query_parser

# Seconds after which a live conversation without messages may be removed.
MIN_EMPTY_AGE = 24 * 3600.0


def redact(tx: Tx, session_id: str, seq: int, now: float) -> int:
    """Remove the text of a message from all places that repeat it, and return the key of the conversation that has it.

    - the message itself; its attachments are collected later, unless another message refers to them
    - summaries made from it and titles derived from it, also in branches
    - the inbound messages that became it, and the outbound messages of its seq or turn
    - inbox entries that became it, and the commands of the processes that they report
    - the audit entries and processes of its tool calls

    Memories, backups, archives and exports keep the text; the search index is updated afterwards, and
    `db.admin.scrub` removes the deleted bytes from the files. The epoch of every changed conversation is incremented,
    so that a compaction in progress cannot restore the text.
    """
    owner, readers = _lock_readers(tx, session_id, seq)
    uid, role, redacted = tx.one("message_identity", conversation=owner.key, seq=seq) or ("", "", True)
    first_epoch = tx.retry_state.setdefault("redact", owner.epoch)
    if redacted and owner.epoch > first_epoch:
        return owner.key  # by an earlier attempt
    if not redacted:
        digest = message_codec.digest(owner.id, seq, uid, role, "")
        blobs.mark_for_collection(tx, owner.key, seq - 1, seq, now)
        text, calls = _read_message(tx, owner.key, seq)
        for key, _ in _find_derived(tx, owner.key, text):
            tx.run("title_set", key=key, title=None)
        _redact_related(tx, owner.key, seq, calls, now)
        tx.run("message_redact", conversation=owner.key, seq=seq, digest=digest, at=now)
    for reader in readers:
        _blank_summaries(tx, reader, seq, now)
        conversation_row.update(tx, reader, redo_epoch=None)
    return owner.key


def _find_owner(tx: Tx, here: ConversationRow, seq: int) -> ConversationRow:
    """Return the conversation whose log has the message: this one, or one that it was branched from."""
    if not 1 <= seq <= here.last_seq:
        raise errors.InvalidArgument(f"There is no message {seq}: the last is {here.last_seq}.", parameter="seq")
    found = next((_by_key(tx, log.key) for log in conversation_row.lineage(tx, here) if log.after < seq), None)
    if found is None:
        raise errors.NoSuchSession(here.id)  # both were deleted concurrently
    return found


def _lock_readers(tx: Tx, session_id: str, seq: int) -> tuple[ConversationRow, list[ConversationRow]]:
    """Lock the conversation that has the message and all branches that read it.

    Returns that conversation, and a list of it and the branches. The search is repeated until it finds no new branch.
    """
    owner = _find_owner(tx, conversation_row.read(tx, session_id), seq)
    known: list[ConversationRow] = []
    while len(found := _readers(tx, owner, seq)) > len(known):
        known = found
        conversation_row.lock_all(tx, (reader.id for reader in known))
    locked = [conversation_row.lock(tx, reader.id) for reader in found]
    return locked[0], locked


def find_derived_titles(tx: Tx, session_id: str, seq: int) -> list[str]:
    """Return the titles that redacting this message would remove."""
    owner = _find_owner(tx, conversation_row.read(tx, session_id), seq)
    return [title for _, title in _find_derived(tx, owner.key, _read_message(tx, owner.key, seq)[0])]


def _read_message(tx: Tx, conversation: int, seq: int) -> tuple[str, tuple[types.ToolCall, ...]]:
    """Return the text and the tool calls of a message. A damaged one has its raw text, and no known calls."""
    (body,) = tx.one("redacted_body", conversation=conversation, seq=seq) or (b"",)
    try:
        decoded = msgspec.json.decode(body, type=types.Body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return body.decode(errors="replace"), ()
    return query_parser.message_text(decoded), decoded.tool_calls


def _find_derived(tx: Tx, conversation: int, text: str) -> list[tuple[int, str]]:
    """Return key and title of this conversation and its branches, if the title repeats the text of a message.

    Branches are included even if they do not read the message: their titles are made from that of the origin.
    """
    found = tx.all("titles_of_branches", conversation=conversation) if text else []
    folded = titles.fold(text) if found else ""
    return [(key, title) for key, title in found if titles.is_derived_from(title, folded)]


def _redact_related(tx: Tx, conversation: int, seq: int, calls: Sequence[types.ToolCall], now: float) -> None:
    """Redact the inbound message, the audit entries and the process commands that belong to a message."""
    tx.run("process_redact_noticed", conversation=conversation, seq=seq)
    for query in ("outgoing_redact_message", "arrival_redact_message", "inbox_redact_message"):
        tx.run(query, conversation=conversation, seq=seq, at=now)
    for call in calls:
        tx.run("audit_redact", conversation=conversation, call_id=permissions.clip(call.id, "call_id"), at=now)
    arguments = {text for call in calls for text in _text_arguments(call.arguments)}
    for process_id, command in tx.all("commands_of", conversation=conversation) if arguments else ():
        if command in arguments:
            tx.run("process_redact", id=process_id)
            tx.run("inbox_redact_key", key=processes.notice_key(process_id), at=now)


def _text_arguments(arguments: str | dict[str, Any]) -> Iterator[str]:
    """Yield the text arguments of a call."""
    try:
        found = msgspec.json.decode(arguments) if isinstance(arguments, str) else arguments
    except (msgspec.DecodeError, RecursionError):
        return
    yield from (value for value in found.values() if isinstance(value, str)) if isinstance(found, dict) else ()


def _readers(tx: Tx, here: ConversationRow, seq: int) -> list[ConversationRow]:
    """Return this conversation and every branch, at any depth, that reads this message."""
    found = [here]
    for _, key, forked_at in tx.all("branches_reading", conversation=here.key):
        branch = _by_key(tx, key) if forked_at >= seq else None
        if branch is not None:
            found += _readers(tx, branch, seq)
    return found


def _by_key(tx: Tx, key: int) -> ConversationRow | None:
    """Return the conversation, or None if it was deleted since its key was read without a lock."""
    id_ = tx.one("session_id_at", conversation=key, ordinal=1)
    row = tx.one("read_conversation", id=id_[0]) if id_ else None
    return ConversationRow(*row) if row else None


def _blank_summaries(tx: Tx, here: ConversationRow, seq: int, now: float) -> None:
    for epoch, text in tx.all("compactions_seeing", conversation=here.key, seq=seq):
        body = msgspec.json.decode(text, type=compactions.CompactionBody)
        blank = msgspec.json.encode(compactions.CompactionBody(pinned=body.pinned)).decode()
        digest = message_codec.summary_digest(here.id, epoch, blank)
        tx.run("compaction_redact", conversation=here.key, epoch=epoch, body=blank, at=now, digest=digest)


def delete(tx: Tx, session_id: str, now: float) -> int:
    """Delete a conversation and return its key. Its ids stay reserved.

    Raises HasBranches while branches read from it.
    """
    try:
        here = conversation_row.lock(tx, session_id)
    except errors.ConversationDeleted:
        if session_id not in tx.retry_state:
            raise
        return int(tx.retry_state[session_id])
    tx.retry_state[session_id] = here.key
    branches = [row[0] for row in tx.all("branches_reading", conversation=here.key)]
    if branches:
        raise errors.HasBranches(branches, here.id)
    tx.run("tombstone_insert", conversation=here.key, at=now)
    tx.run("routes_unbind", conversation=here.key, at=now)
    blobs.mark_for_collection(tx, here.key, 0, blobs.MAX_SEQ, now)
    remove(tx, here.key)
    return here.key


def unscrubbed_since(tx: Tx) -> float | None:
    """Return the time of the last removal if no scrub followed it, else None."""
    removed, scrubbed = tx.one("removed_at") or (0.0,), tx.one("meta_get", key="scrubbed_at")
    return float(removed[0]) if removed[0] > (float(scrubbed[0]) if scrubbed else 0.0) else None


def remove(tx: Tx, key: int) -> None:
    """Delete a conversation and its rows.

    The `conversations` row goes first: triggers refuse to delete child rows while it exists.
    """
    for query in (
        "erase_conversation",
        "erase_messages",
        "erase_compactions",
        "erase_hides",
        "erase_sessions",
    ):
        tx.defer(query, conversation=key)
    # Not deferred: other processes are notified of a released lease only if there was one.
    tx.run("erase_leases", conversation=key)


# --- upkeep of conversations that were imported or left unfinished ----------------------------------


def finalize_orphans(tx: Tx, older_than_days: float, now: float) -> int:
    """End live continuations without a compaction; a later message resumes them."""
    ended, before = 0, now - older_than_days * 86_400
    found = tx.all("orphan_candidates", before=before)
    conversation_row.lock_all(tx, (row[0] for row in found))
    # Queried again under the locks: another process may have written to one in between.
    for (session_id,) in sorted({*found} & {*tx.all("orphan_candidates", before=before)}, key=found.index):
        here = conversation_row.lock(tx, session_id)
        base = compactions.current(tx, here)
        if (base is None or not base.summary) and not has_lease(tx, session_id):
            ended += sessions.end(tx, session_id, "orphaned_compression", now, whole=False)
    return ended


def prune_empty(tx: Tx, now: float) -> int:
    """Remove conversations that never had a message, without a tombstone."""
    removed, before = 0, now - MIN_EMPTY_AGE
    found = tx.all("empty_conversations", before=before)
    conversation_row.lock_all(tx, (row[1] for row in found))
    for key, conversation_id in sorted({*found} & {*tx.all("empty_conversations", before=before)}, key=found.index):
        conversation_row.lock(tx, conversation_id)
        if not (
            tx.all("branches_reading", conversation=key)
            or has_lease(tx, conversation_id)
            or has_pending_work(tx, conversation_id)
        ):
            remove(tx, key)
            removed += 1
    return removed


def has_lease(tx: Tx, session_id: str) -> bool:
    """Return whether a lease on the conversation is held."""
    try:
        with tx.savepoint():
            return any(leases.holder_name(tx, session_id, purpose) for purpose in leases.PURPOSES)
    except errors.LeasesUnavailable:
        return False


def has_pending_work(tx: Tx, session_id: str) -> bool:
    """Return whether the conversation has unanswered mail or a running process."""
    return any(row[0] for row in conversation_row.query(tx, "conversation_has_open_work", session_id))
