"""What a conversation told by lines must be like before anything of it is written. Pure.

The database refuses states that must not exist. This refuses what the database cannot know: values no
call of the store would have let in, bodies that no append would have made, and lines in another order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from holdfast import errors, types
from holdfast.store import compactions, message_codec, sessions, titles, validation
from holdfast.store.blobs import blobs
from holdfast.store.transfer import format as transfer_format

_decode_body = msgspec.json.Decoder(types.Body).decode
_decode_compaction = msgspec.json.Decoder(compactions.Body).decode

_encode = msgspec.json.Encoder().encode

_NO_MESSAGE = "The message has a body that no message has."
_NO_COMPACTION = "The compaction has a body that no compaction has."

T = TypeVar("T")

_REFUSALS = (
    errors.InvalidArgument,
    errors.InvalidArgument,
    errors.InvalidArgument,
    errors.InvalidArgument,
    errors.MessageInvalid,
)


class Vetting:
    """Follows the lines of one conversation; ImportInvalid at the first that cannot be right."""

    def __init__(self, conversation: transfer_format.Conversation) -> None:
        self._conversation = conversation
        self._session: transfer_format.Session | None = None
        self._ordinal = 0
        self._seq = conversation.forked_at or 0
        self._begun = False
        self._named = set[str]()

    def check(self, number: int, line: transfer_format.Line) -> None:
        try:
            self._check(line)
        except _REFUSALS as error:
            raise errors.ImportInvalid(number, str(error)) from None

    def finish(self, number: int) -> None:
        told, session = self._conversation, self._session
        try:
            self._session_is_whole()
        except errors.InvalidArgument as error:
            raise errors.ImportInvalid(number, str(error)) from None
        live = session is not None and session.ended_at is None
        if (told.head, told.last_seq, told.live) != (self._ordinal, self._seq, live):
            raise errors.ImportInvalid(number, "the sessions and messages are not those the conversation speaks of.")

    def _check(self, line: transfer_format.Line) -> None:
        match line:
            case transfer_format.Message():
                self._message(line)
            case transfer_format.Session():
                self._next_session(line)
            case transfer_format.Compaction():
                self._compaction(line)
            case transfer_format.Route():
                validation.check_route(line.key)
            case transfer_format.Blob():
                self._blob(line)
            case transfer_format.Conversation():
                _require(not self._begun, "A conversation begins with its own line, which comes once.")
                self._begun = True
                _conversation(line)
            case _:
                pass  # numbers only, and what they may be is the database's to say

    def _message(self, line: transfer_format.Message) -> None:
        session = self._session
        if line.seq != self._seq + 1:
            raise errors.InvalidArgument(f"Message {self._seq + 1} should stand here, not message {line.seq}.")
        if session is None or line.session != session.ordinal:
            raise errors.InvalidArgument(f"Message {line.seq} stands in the wrong session.")
        if session.last_seq is not None and line.seq > session.last_seq:
            raise errors.InvalidArgument(f"Message {line.seq} came after the end of its session.")
        _require(
            (line.redacted_at is None) == (line.body != transfer_format.NO_BODY), "Only a redacted message has no body."
        )
        validation.check_id(line.uid, "uid")
        validation.check_time(line.at)
        if line.redacted_at is None:
            self._named |= blobs.mentioned(_body(bytes(line.body)))
        self._seq = line.seq

    def _blob(self, line: transfer_format.Blob) -> None:
        """Nothing comes along that no message names: it would be nobody's."""
        _require(line.digest in self._named, "No message before this line names this attachment.")
        _require((line.size is None) == (line.media_type is None), "An attachment has a size and a media type.")
        if line.media_type is not None:
            blobs.checked_media_type(line.media_type)

    def _next_session(self, line: transfer_format.Session) -> None:
        self._session_is_whole()
        before, ended = self._session, (line.ended_at is None, line.end_reason is None, line.last_seq is None)
        _require(line.ordinal == self._ordinal + 1, f"Session {self._ordinal + 1} should stand here.")
        _require(before is None or before.ended_at is not None, "A session goes on though it has not ended.")
        _require(line.first_seq == self._seq + 1, "A session begins where its parent stopped.")
        _require(len(set(ended)) == 1, "A session is live, or has ended with time, reason and last message.")
        _require(line.ordinal > 1 or line.id == self._conversation.id, "The first session bears the conversation's id.")
        validation.check_id(line.id)
        validation.check_id(line.source, "source")
        if line.model is not None:
            validation.check_id(line.model, "model")
        if line.end_reason is not None:
            validation.check_text(line.end_reason, "end_reason", sessions.MAX_REASON)
        self._session, self._ordinal = line, line.ordinal

    def _session_is_whole(self) -> None:
        last = self._session.last_seq if self._session else None
        _require(last in (None, self._seq), f"The session should have ended at message {last}.")

    def _compaction(self, line: transfer_format.Compaction) -> None:
        opens = self._session is not None and line.session == self._ordinal and self._session.first_seq == self._seq + 1
        _require(opens, "A compaction stands right behind the session it opened.")
        text = bytes(line.body)
        body = _decoded(text, _decode_compaction, _NO_COMPACTION)
        made = compactions.draft(line.cut_seq, line.seen_seq, body.summary, body.pinned, body.ledger, None)
        forms = (made.text.encode(),)
        _require(text in forms or _adds(text, forms, compactions.Body), _NO_COMPACTION)
        silent = text in forms and not (body.summary or body.ledger)
        _require(line.redacted_at is None or silent, "A redacted compaction says nothing.")


def _conversation(line: transfer_format.Conversation) -> None:
    validation.check_id(line.id)
    validation.check_id(line.source, "source")
    for other in (line.owner or None, line.forked_from, line.origin):
        if other is not None:
            validation.check_id(other)
    _require(line.title is None or titles.clean(line.title) == line.title, "The title is not one that can be kept.")
    _require(titles.clean_folder_or_none(line.folder) == line.folder, "The folder is not one that can be kept.")


def _body(text: bytes) -> str:
    """Exactly what an append of the same content would store, since a repeated uid is told by it.

    A newer version may have said more: keys that are not known here stay with the rest, and are not read.
    """
    body = _decoded(text, _decode_body, _NO_MESSAGE)
    for call in body.tool_calls:
        message_codec.tool_call(call)
    known = message_codec.exact(body, "message").encode()
    # Text that is empty is written down all the same.
    forms = (known, message_codec.encode("").encode()) if known == b"{}" else (known,)
    _require(text in forms or _adds(text, forms, types.Body), _NO_MESSAGE)
    return text.decode()


def _decoded(text: bytes, decode: Callable[[bytes], T], problem: str) -> T:
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return decode(text)
    # Raised outside of a handler: the error at hand may hold the text itself.
    raise errors.MessageInvalid(problem)


def _adds(text: bytes, forms: tuple[bytes, ...], kind: type[msgspec.Struct]) -> bool:
    """Whether this is the known body with keys added that mean nothing here, written as we would write them."""
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        whole = msgspec.json.decode(text)
        deep = message_codec.too_deep(
            whole, message_codec.MAX_DEPTH + 3
        )  # inside of the body, its calls and one of them
        if deep or len(text) > message_codec.MAX_BODY or _encode(whole) != text:
            return False
        less = _known_of(whole, kind)
        # What is known comes first: readers tell by the first key whether there are calls.
        return _encode(less) in forms and [*whole][: len(less)] == [*less]
    return False


def _known_of(body: dict[str, Any], kind: type[msgspec.Struct]) -> dict[str, Any]:
    """A body without the keys that are not known here, and its calls without theirs."""
    kept = {key: value for key, value in body.items() if key in kind.__struct_fields__}
    if kept.get("tool_calls"):
        known = types.ToolCall.__struct_fields__
        kept["tool_calls"] = [{key: call[key] for key in call if key in known} for call in kept["tool_calls"]]
    return kept


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise errors.InvalidArgument(problem)
