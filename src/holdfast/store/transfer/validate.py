"""Validate the lines of one conversation before they are written.

The database refuses impossible states. This module refuses input that the database cannot recognise: values that no
method of the store accepts, bodies that no append writes, and lines in the wrong order.
"""

from __future__ import annotations

import contextlib
from typing import TypeVar

import msgspec

from holdfast import errors, types
from holdfast.store import compactions, message_codec, sessions, titles, validation
from holdfast.store.blobs import blobs
from holdfast.store.transfer import jsonl

T = TypeVar("T", bound=msgspec.Struct)


class ConversationValidator:
    """Checks the lines of one conversation in order. Raises InvalidArgument for the first invalid line."""

    def __init__(self, conversation: jsonl.ConversationLine) -> None:
        self._conversation = conversation
        self._session: jsonl.SessionLine | None = None
        self._ordinal = 0
        self._seq = conversation.forked_at or 0
        self._begun = False
        self._blobs = set[str]()

    def finish(self) -> None:
        """Check that the conversation is complete."""
        declared, session = self._conversation, self._session
        self._check_session_complete()
        live = session is not None and session.ended_at is None
        complete = (declared.head, declared.last_seq, declared.live) == (self._ordinal, self._seq, live)
        _require(complete, "The sessions and messages do not match the conversation's line.")

    def check(self, line: jsonl.Line) -> None:
        match line:
            case jsonl.MessageLine():
                self._check_message(line)
            case jsonl.SessionLine():
                self._check_session(line)
            case jsonl.CompactionLine():
                self._check_compaction(line)
            case jsonl.RouteLine():
                validation.check_route(line.key)
            case jsonl.BlobLine():
                _require(line.digest in self._blobs, "No message before this line refers to this attachment.")
                _require((line.size is None) == (line.media_type is None), "An attachment has a size and a media type.")
            case jsonl.ConversationLine():
                _require(not self._begun, "A conversation has exactly one conversation line, its first.")
                self._begun = True
                _check_conversation(line)
            case _:
                pass  # The other lines hold only numbers, which the database checks.

    def _check_message(self, line: jsonl.MessageLine) -> None:
        session = self._session
        _require(line.seq == self._seq + 1, f"Expected message {self._seq + 1}, not message {line.seq}.")
        in_session = session is not None and line.session == session.ordinal
        _require(in_session, f"Message {line.seq} is in the wrong session.")
        ended = session is not None and session.last_seq is not None and line.seq > session.last_seq
        _require(not ended, f"Message {line.seq} is after the end of its session.")
        redacted = line.redacted_at is not None
        _require(redacted == (line.body == jsonl.NO_BODY), "A message has no body only if it is redacted.")
        validation.check_id(line.uid, "uid")
        validation.check_time(line.at)
        if not redacted:
            self._blobs |= blobs.find_references(_check_body(bytes(line.body)))
        self._seq = line.seq

    def _check_session(self, line: jsonl.SessionLine) -> None:
        self._check_session_complete()
        before, open_fields = self._session, {line.ended_at is None, line.end_reason is None, line.last_seq is None}
        _require(line.ordinal == self._ordinal + 1, f"Expected session {self._ordinal + 1}.")
        _require(before is None or before.ended_at is not None, "The session before has not ended.")
        _require(line.first_seq == self._seq + 1, "A session begins after the last message of the one before.")
        _require(len(open_fields) == 1, "An ended session has an end time, a reason and a last message.")
        _require(line.ordinal > 1 or line.id == self._conversation.id, "The first session has the conversation's id.")
        validation.check_id(line.id)
        validation.check_id(line.source, "source")
        if line.model is not None:
            validation.check_id(line.model, "model")
        if line.end_reason is not None:
            validation.check_text(line.end_reason, "end_reason", sessions.MAX_REASON)
        self._session, self._ordinal = line, line.ordinal

    def _check_session_complete(self) -> None:
        last = self._session.last_seq if self._session else None
        _require(last in (None, self._seq), f"The session should end with message {last}.")

    def _check_compaction(self, line: jsonl.CompactionLine) -> None:
        opens = self._session is not None and line.session == self._ordinal and self._session.first_seq == self._seq + 1
        _require(opens, "A compaction follows the session that it opened.")
        text = bytes(line.body)
        body = _decode(text, compactions.CompactionBody)
        made = compactions.make_draft(line.cut_seq, line.seen_seq, body.summary, body.pinned, body.ledger, None)
        _require_canonical(text, made.text.encode())
        empty = not (body.summary or body.ledger)
        _require(line.redacted_at is None or empty, "A redacted compaction has no summary and no ledger.")


def _check_conversation(line: jsonl.ConversationLine) -> None:
    validation.check_id(line.id)
    validation.check_id(line.source, "source")
    for other in (line.owner or None, line.forked_from, line.origin):
        if other is not None:
            validation.check_id(other)
    _require(line.title is None or titles.clean(line.title) == line.title, "The title is not in its stored form.")
    _require(titles.clean_folder_or_none(line.folder) == line.folder, "The folder is not in its stored form.")
    message_codec.check_metadata(line.metadata)


def _check_body(text: bytes) -> str:
    """Check that an append of the same content stores exactly this body, because a repeated uid is compared with it."""
    body = _decode(text, types.Body)
    for call in body.tool_calls:
        message_codec.to_tool_call(call)
    message_codec.check_metadata(body.metadata)
    stored = message_codec.encode_exact(body, "message").encode()
    # An append stores empty text explicitly.
    _require_canonical(text, message_codec.encode("").encode() if stored == b"{}" else stored, stored)
    return text.decode()


def _decode(text: bytes, kind: type[T]) -> T:
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return msgspec.json.decode(text, type=kind)
    # Raised outside of a handler: the original error may hold the text.
    raise errors.InvalidArgument("The body cannot be decoded.")


def _require_canonical(text: bytes, *forms: bytes) -> None:
    _require(text in forms, "The body is not in its stored form; upgrade Holdfast if a newer version wrote it.")


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise errors.InvalidArgument(problem)
