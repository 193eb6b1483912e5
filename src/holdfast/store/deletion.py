"""Redact messages and delete conversations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from holdfast import errors, types
from holdfast.store import compactions, conversation_row, message_codec, titles
from holdfast.store.blobs import blobs
from holdfast.store.driver import Tx
from holdfast.store.mail import inbound
from holdfast.store.records import permissions, processes
from holdfast.store.search import query_parser


def redact(tx: Tx, session_id: str, seq: int, now: float) -> int:
    """Remove the text of a message, the summaries made from it and the titles that repeat it, also in branches.

    This includes the inbound and outgoing messages with the same text, and the audit entries and processes of its tool
    calls. Memories are not changed.

    The epoch of every changed conversation rises, so that a compaction in progress cannot restore the text. Returns the
    key of the conversation whose log has the message.
    """
    owner, readers = _locked(tx, session_id, seq)
    uid, role, redacted = tx.one("message_identity", conversation=owner.key, seq=seq) or ("", "", True)
    meant = tx.retry_state.setdefault("redact", owner.epoch)
    if redacted and owner.epoch > meant:
        return owner.key
    if not redacted:
        digest = message_codec.digest(owner.id, seq, uid, role, "")
        blobs.mark_dropped(tx, owner.key, seq - 1, seq, now)
        said, calls = _read_message(tx, owner.key, seq)
        for key, _ in _named_after(tx, owner.key, said):
            tx.run("title_set", key=key, title=None)
        _redact_acts(tx, owner.key, seq, calls, now)
        tx.run("message_redact", conversation=owner.key, seq=seq, digest=digest, at=now)
    for reader in readers:
        _blank_summaries(tx, reader, seq, now)
        conversation_row.moved(tx, reader, redo_epoch=None)
    return owner.key


def _owner_of(tx: Tx, here: conversation_row.State, seq: int) -> conversation_row.State:
    """Return the conversation whose log has the message: this one, or one that it was branched from."""
    if not 1 <= seq <= here.last_seq:
        raise errors.InvalidArgument(f"There is no message {seq}: the last is {here.last_seq}.", parameter="seq")
    while seq <= here.forked_at and here.origin is not None:
        origin = _by_key(tx, here.origin)
        if origin is None:
            raise errors.NoSuchSession(here.id)  # both were deleted concurrently
        here = origin
    return here


def _locked(tx: Tx, session_id: str, seq: int) -> tuple[conversation_row.State, list[conversation_row.State]]:
    """Lock the conversation that has the message and all branches that read it; return it and all of them.

    Repeats the look-up until no branch was made in between. Conversations are locked before their branches.
    """
    owner = _owner_of(tx, conversation_row.look(tx, session_id), seq)
    known: list[conversation_row.State] = []
    while len(found := _readers(tx, owner, seq)) > len(known):
        known = found
        conversation_row.lock_all(tx, (reader.id for reader in known))
    locked = [conversation_row.lock(tx, reader.id) for reader in found]
    return locked[0], locked


def titles_going(tx: Tx, session_id: str, seq: int) -> list[str]:
    """Return the titles that redacting this message would remove."""
    owner = _owner_of(tx, conversation_row.look(tx, session_id), seq)
    return [title for _, title in _named_after(tx, owner.key, _read_message(tx, owner.key, seq)[0])]


def _read_message(tx: Tx, conversation: int, seq: int) -> tuple[str, tuple[types.ToolCall, ...]]:
    """Return the text and the tool calls of a message. A damaged one has its raw text, and no known calls."""
    (body,) = tx.one("redacted_body", conversation=conversation, seq=seq) or (b"",)
    try:
        decoded = msgspec.json.decode(body, type=types.Body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return body.decode(errors="replace"), ()
    return query_parser.text_of(decoded), decoded.tool_calls


def _named_after(tx: Tx, conversation: int, said: str) -> list[tuple[int, str]]:
    """Return keys and titles of this conversation and its branches where the title repeats the text of a message.

    A branch has the title of its origin whether it reads the message or not.
    """
    found = tx.all("titles_of_branches", conversation=conversation) if said else []
    folded = titles.folded(said) if found else ""
    return [(key, title) for key, title in found if titles.repeats(title, folded)]


def _redact_acts(tx: Tx, conversation: int, seq: int, calls: Sequence[types.ToolCall], now: float) -> None:
    """Redact the inbound message, the audit entries and the process commands that belong to a message."""
    tx.run("process_redact_noticed", conversation=conversation, seq=seq)
    inbound.redact(tx, conversation, seq, now)
    tx.run("inbound_redact_message", conversation=conversation, seq=seq, at=now)
    for call in calls:
        tx.run("audit_redact", conversation=conversation, call_id=permissions.clipped(call.id), at=now)
    asked = {text for call in calls for text in _texts(call.arguments)}
    for process_id, command in tx.all("commands_of", conversation=conversation) if asked else ():
        if command in asked:
            tx.run("process_redact", id=process_id)
            tx.run("inbound_redact_key", key=processes.notice_key(process_id), at=now)


def _texts(arguments: str | dict[str, Any]) -> Iterator[str]:
    """Yield the text arguments of a call."""
    try:
        found = msgspec.json.decode(arguments) if isinstance(arguments, str) else arguments
    except (msgspec.DecodeError, RecursionError):
        return
    yield from (value for value in found.values() if isinstance(value, str)) if isinstance(found, dict) else ()


def _readers(tx: Tx, here: conversation_row.State, seq: int) -> list[conversation_row.State]:
    """Return this conversation and every branch, at any depth, that reads this message."""
    found = [here]
    for key, _, forked_at in tx.all("branches_reading", conversation=here.key):
        branch = _by_key(tx, key) if forked_at >= seq else None
        if branch is not None:
            found += _readers(tx, branch, seq)
    return found


def _by_key(tx: Tx, key: int) -> conversation_row.State | None:
    """Return the conversation, or None if it was deleted since its key was read without a lock."""
    id_ = tx.one("session_id_at", conversation=key, ordinal=1)
    row = tx.one("look_conversation", id=id_[0]) if id_ else None
    return conversation_row.State(*row) if row else None


def _blank_summaries(tx: Tx, here: conversation_row.State, seq: int, now: float) -> None:
    for epoch, text in tx.all("compactions_seeing", conversation=here.key, seq=seq):
        body = msgspec.json.decode(text, type=compactions.Body)
        blank = msgspec.json.encode(compactions.Body(pinned=body.pinned)).decode()
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
    branches = [row[1] for row in tx.all("branches_reading", conversation=here.key)]
    if branches:
        raise errors.HasBranches(branches, here.id)
    tx.run("tombstone_insert", conversation=here.key, at=now)
    tx.run("routes_unbind", conversation=here.key, at=now)
    blobs.mark_dropped(tx, here.key, 0, blobs.MAX_SEQ, now)
    remove(tx, here.key)
    return here.key


def unscrubbed(tx: Tx) -> float | None:
    """Return the time of the last removal if no scrub followed it, else None."""
    removed, scrubbed = tx.one("removed_at") or (0.0,), tx.one("meta_get", key="scrubbed_at")
    return float(removed[0]) if removed[0] > (float(scrubbed[0]) if scrubbed else 0.0) else None


def remove(tx: Tx, key: int) -> None:
    """Delete all rows of a conversation, its own first: the database refuses to delete the others before."""
    for query in (
        "erase_conversation",
        "erase_messages",
        "erase_compactions",
        "erase_hides",
        "erase_leases",
        "erase_sessions",
    ):
        tx.run(query, conversation=key)
