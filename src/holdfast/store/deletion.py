"""Taking things out of the store for good: a message's text, or a whole conversation."""

from __future__ import annotations

from collections.abc import Iterator
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
    """Remove a message's text, every summary made from it and every title that repeats it, here and in branches.

    So does what its calls did, in the audit, what came in and became it, and what was sent of it. Memories are for
    their owner to forget.

    The epoch rises wherever something went, so a compaction in flight cannot bring the text back. Returns
    the key of the conversation in whose log the message stands.
    """
    owner, readers = _locked(tx, session_id, seq)
    uid, role, redacted = tx.one("message_identity", conversation=owner.key, seq=seq) or ("", "", True)
    meant = tx.meant.setdefault("redact", owner.epoch)
    if redacted and owner.epoch > meant:
        return owner.key
    if not redacted:
        digest = message_codec.digest(owner.id, seq, uid, role, "")
        blobs.mark_dropped(tx, owner.key, seq - 1, seq, now)
        for key, _ in _named_after(tx, owner.key, seq):
            tx.run("title_set", key=key, title=None)
        _redact_acts(tx, owner.key, seq, now)
        tx.run("message_redact", conversation=owner.key, seq=seq, digest=digest, at=now)
    for reader in readers:
        _blank_summaries(tx, reader, seq, now)
        conversation_row.moved(tx, reader, redo_epoch=None)
    return owner.key


def _owner_of(tx: Tx, here: conversation_row.State, seq: int) -> conversation_row.State:
    """The conversation in whose log the message stands: this one, or an origin of it."""
    if not 1 <= seq <= here.last_seq:
        raise errors.InvalidArgument(f"There is no message {seq}: the last is {here.last_seq}.", parameter="seq")
    while seq <= here.forked_at and here.origin is not None:
        origin = _by_key(tx, here.origin)
        if origin is None:
            raise errors.NoSuchSession(here.id)  # deleted with its origin, just now
        here = origin
    return here


def _locked(tx: Tx, session_id: str, seq: int) -> tuple[conversation_row.State, list[conversation_row.State]]:
    """The owner of the message and all who read it, itself among them; the owner first, as origins come before
    branches. Looked for again until no branch was made in between."""
    owner = _owner_of(tx, conversation_row.look(tx, session_id), seq)
    known: list[conversation_row.State] = []
    while len(found := _readers(tx, owner, seq)) > len(known):
        known = found
        conversation_row.lock_all(tx, (reader.id for reader in known))
    locked = [conversation_row.lock(tx, reader.id) for reader in found]
    return locked[0], locked


def titles_going(tx: Tx, session_id: str, seq: int) -> list[str]:
    """The titles a redaction of this message would take away."""
    owner = _owner_of(tx, conversation_row.look(tx, session_id), seq)
    return [title for _, title in _named_after(tx, owner.key, seq)]


def _named_after(tx: Tx, conversation: int, seq: int) -> list[tuple[int, str]]:
    """Return keys and titles of this conversation and its branches where the title repeats the message.

    A branch has the title of its origin whether it reads the message or not.
    """
    (body,) = tx.one("redacted_body", conversation=conversation, seq=seq) or (b"",)
    try:
        said = query_parser.text_of(msgspec.json.decode(body, type=types.Body))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        said = body.decode(errors="replace")  # a damaged message can be redacted too
    found = tx.all("titles_of_branches", conversation=conversation) if body else []
    folded = titles.folded(said) if found else ""
    return [(key, title) for key, title in found if titles.repeats(title, folded)]


def _redact_acts(tx: Tx, conversation: int, seq: int, now: float) -> None:
    """What came in and became this message, what its calls did, and the commands they started, or it told of."""
    tx.run("process_redact_noticed", conversation=conversation, seq=seq)
    inbound.redact(tx, conversation, seq, now)
    tx.run("inbound_redact_message", conversation=conversation, seq=seq, at=now)
    (body,) = tx.one("redacted_body", conversation=conversation, seq=seq) or (b"",)
    try:
        calls = msgspec.json.decode(body, type=types.Body).tool_calls
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return  # What a damaged message called, nobody can tell.
    for call in calls:
        tx.run("audit_redact", conversation=conversation, call_id=permissions.clipped(call.id), at=now)
    asked = {text for call in calls for text in _texts(call.arguments)}
    for process_id, command in tx.all("commands_of", conversation=conversation) if asked else ():
        if command in asked:
            tx.run("process_redact", id=process_id)
            tx.run("inbound_redact_key", key=processes.notice_key(process_id), at=now)


def _texts(arguments: str | dict[str, Any]) -> Iterator[str]:
    """The texts that were given to a call, if they can be told."""
    try:
        found = msgspec.json.decode(arguments) if isinstance(arguments, str) else arguments
    except (msgspec.DecodeError, RecursionError):
        return
    yield from (value for value in found.values() if isinstance(value, str)) if isinstance(found, dict) else ()


def _readers(tx: Tx, here: conversation_row.State, seq: int) -> list[conversation_row.State]:
    """This conversation and every branch, at any depth, that reads this message."""
    found = [here]
    for key, _, forked_at in tx.all("branches_reading", conversation=here.key):
        branch = _by_key(tx, key) if forked_at >= seq else None
        if branch is not None:
            found += _readers(tx, branch, seq)
    return found


def _by_key(tx: Tx, key: int) -> conversation_row.State | None:
    """None when it was deleted since its key was read: nothing is locked yet."""
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
    """Everything of a conversation; its ids stay known as deleted. Refused while branches read from it.

    Returns its key.
    """
    try:
        here = conversation_row.lock(tx, session_id)
    except errors.ConversationDeleted:
        if session_id not in tx.meant:
            raise
        return int(tx.meant[session_id])
    tx.meant[session_id] = here.key
    branches = [row[1] for row in tx.all("branches_reading", conversation=here.key)]
    if branches:
        raise errors.HasBranches(branches, here.id)
    tx.run("tombstone_insert", conversation=here.key, at=now)
    tx.run("routes_unbind", conversation=here.key, at=now)
    blobs.mark_dropped(tx, here.key, 0, blobs.MAX_SEQ, now)
    remove(tx, here.key)
    return here.key


def unscrubbed(tx: Tx) -> float | None:
    """When something was removed that no scrub came after; None when all that is removed is gone from the files."""
    removed, scrubbed = tx.one("removed_at") or (0.0,), tx.one("meta_get", key="scrubbed_at")
    return float(removed[0]) if removed[0] > (float(scrubbed[0]) if scrubbed else 0.0) else None


def remove(tx: Tx, key: int) -> None:
    """All rows of a conversation; the conversation first, since nothing else may go while it exists."""
    for query in (
        "erase_conversation",
        "erase_messages",
        "erase_compactions",
        "erase_hides",
        "erase_leases",
        "erase_sessions",
    ):
        tx.run(query, conversation=key)
