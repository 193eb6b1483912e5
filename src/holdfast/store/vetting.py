"""What a conversation told by lines must be like before anything of it is written. Pure.

The database refuses states that must not exist. This refuses what the database cannot know: values no
call of the store would have let in, bodies that no append would have made, and lines in another order.
"""

from __future__ import annotations

import msgspec

from holdfast import errors, types
from holdfast.store import bodies, compactions, lines, routes, sessions, titles

_decode_body = msgspec.json.Decoder(types.Body).decode
_decode_compaction = msgspec.json.Decoder(compactions.Body).decode

_REFUSALS = (errors.IdInvalid, errors.TitleInvalid, errors.OutOfRange, errors.MessageInvalid)


class Vetting:
    """Follows the lines of one conversation; ImportInvalid at the first that cannot be right."""

    def __init__(self, conversation: lines.Conversation) -> None:
        self._conversation = conversation
        self._session: lines.Session | None = None
        self._ordinal = 0
        self._seq = conversation.forked_at or 0
        self._begun = False

    def check(self, number: int, line: lines.Any) -> None:
        try:
            self._check(line)
        except _REFUSALS as error:
            raise errors.ImportInvalid(number, str(error)) from None

    def finish(self, number: int) -> None:
        told, session = self._conversation, self._session
        try:
            self._session_is_whole()
        except errors.OutOfRange as error:
            raise errors.ImportInvalid(number, str(error)) from None
        live = session is not None and session.ended_at is None
        if (told.head, told.last_seq, told.live) != (self._ordinal, self._seq, live):
            raise errors.ImportInvalid(number, "the sessions and messages are not those the conversation speaks of.")

    def _check(self, line: lines.Any) -> None:
        match line:
            case lines.Message():
                self._message(line)
            case lines.Session():
                self._next_session(line)
            case lines.Compaction():
                self._compaction(line)
            case lines.Route():
                routes.checked(line.key)
            case lines.Conversation():
                _require(not self._begun, "A conversation begins with its own line, which comes once.")
                self._begun = True
                _conversation(line)
            case _:
                pass  # numbers only, and what they may be is the database's to say

    def _message(self, line: lines.Message) -> None:
        session = self._session
        if line.seq != self._seq + 1:
            raise errors.OutOfRange(f"Message {self._seq + 1} should stand here, not message {line.seq}.")
        if session is None or line.session != session.ordinal:
            raise errors.OutOfRange(f"Message {line.seq} stands in the wrong session.")
        if session.last_seq is not None and line.seq > session.last_seq:
            raise errors.OutOfRange(f"Message {line.seq} came after the end of its session.")
        _require((line.redacted_at is None) == (line.body != lines.NOTHING), "Only a redacted message has no body.")
        bodies.checked_id(line.uid, "uid")
        bodies.checked_time(line.at)
        if line.redacted_at is None:
            _body(bytes(line.body))
        self._seq = line.seq

    def _next_session(self, line: lines.Session) -> None:
        self._session_is_whole()
        before, ended = self._session, (line.ended_at is None, line.end_reason is None, line.last_seq is None)
        _require(line.ordinal == self._ordinal + 1, f"Session {self._ordinal + 1} should stand here.")
        _require(before is None or before.ended_at is not None, "A session goes on though it has not ended.")
        _require(line.first_seq == self._seq + 1, "A session begins where its parent stopped.")
        _require(len(set(ended)) == 1, "A session is live, or has ended with time, reason and last message.")
        _require(line.ordinal > 1 or line.id == self._conversation.id, "The first session bears the conversation's id.")
        bodies.checked_id(line.id)
        bodies.checked_id(line.source, "source")
        if line.model is not None:
            bodies.checked_id(line.model, "model")
        if line.end_reason is not None:
            sessions.checked_reason(line.end_reason)
        self._session, self._ordinal = line, line.ordinal

    def _session_is_whole(self) -> None:
        last = self._session.last_seq if self._session else None
        _require(last in (None, self._seq), f"The session should have ended at message {last}.")

    def _compaction(self, line: lines.Compaction) -> None:
        opens = self._session is not None and line.session == self._ordinal and self._session.first_seq == self._seq + 1
        _require(opens, "A compaction stands right behind the session it opened.")
        try:
            body = _decode_compaction(bytes(line.body))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            body = None
        if body is None:
            raise errors.MessageInvalid("The compaction has a body that no compaction has.")
        text = compactions.draft(line.cut_seq, line.seen_seq, body.summary, body.pinned, body.ledger, None).text
        _require(text.encode() == bytes(line.body), "The compaction has a body that no compaction has.")
        _require(line.redacted_at is None or not (body.summary or body.ledger), "A redacted compaction says nothing.")


def _conversation(line: lines.Conversation) -> None:
    bodies.checked_id(line.id)
    bodies.checked_id(line.source, "source")
    for other in (line.owner or None, line.forked_from, line.origin):
        if other is not None:
            bodies.checked_id(other)
    _require(line.title is None or titles.clean(line.title) == line.title, "The title is not one that can be kept.")


def _body(text: bytes) -> None:
    """Exactly what an append of the same content would store: a repeated uid is told by it."""
    try:
        body = _decode_body(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        body = None
    if body is None:
        raise errors.MessageInvalid("The message has a body that no message has.")
    stored = bodies.encode(body.content, body.tool_calls, body.tool_call_id)
    _require(text in (stored.encode(), b"{}"), "The message has a body that no message has.")


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise errors.OutOfRange(problem)
