"""Turns what a caller gives into what the log keeps, and refuses what could not come back exactly."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from holdfast import errors, types

MAX_BODY = 64 * 1024 * 1024
MAX_ID = 200
MAX_DEPTH = 100
PLAIN = 1024 * 1024

# Sorted keys: the same content always gives the same text, and so the same answer to a repeated uid.
_encode = msgspec.json.Encoder(order="deterministic").encode


class Prepared(msgspec.Struct, frozen=True):
    """A message checked and encoded, ready for any number of attempts to append it."""

    uid: str
    minted: bool
    role: str
    at: float
    body: str


def given(message: types.NewMessage | Mapping[str, Any]) -> types.NewMessage:
    """A message of a batch, from the value or from an object with its fields."""
    if isinstance(message, types.NewMessage):
        return message
    if not isinstance(message, Mapping):
        raise errors.MessageInvalid("A batch is made of messages or of objects with role and content.")
    unknown = set(message) - set(types.NewMessage.__struct_fields__)
    if unknown or "role" not in message:
        raise errors.MessageInvalid(
            f"A message has no {errors.shown(str(sorted(map(str, unknown))))}."
            if unknown
            else "A message needs a role."
        )
    return types.NewMessage(**message)


def prepare(message: types.NewMessage, now: float) -> Prepared:
    role, uid, at = message.role, message.uid, message.at
    if role not in types.ROLES:
        raise errors.MessageInvalid(f"The role {errors.shown(role)} is none of {', '.join(types.ROLES)}.")
    body = encode(message.content, message.tool_calls, message.tool_call_id, message.model, message.usage)
    return Prepared(
        mint_uid() if uid is None else checked_id(uid, "uid"),
        uid is None,
        role,
        checked_time(now if at is None else at),
        body,
    )


_process = os.urandom(4).hex()
_minted = itertools.count(int.from_bytes(os.urandom(2), "big"))


def _new_process() -> None:
    global _process  # noqa: PLW0603 -- a forked child must not mint its parent's uids
    _process = os.urandom(4).hex()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_process)


def mint_uid() -> str:
    """Ordered by time, so that the index of uids grows at its end; then the process, and a count."""
    return f"{time.time_ns():016x}{_process}{next(_minted) & 0xFFFF:04x}"


def checked_time(at: object) -> float:
    if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at < 1e12:
        raise errors.MessageInvalid("`at` is a time in Unix seconds.")
    return float(at)


def encode(
    content: object,
    tool_calls: Sequence[types.ToolCall | Mapping[str, Any]] = (),
    tool_call_id: str | None = None,
    model: str | None = None,
    usage: types.Usage | None = None,
) -> str:
    """The body as JSON text, or MessageInvalid saying what is wrong with it."""
    # Nearly every message: plain text needs no looking at, and this is on the path of each of them.
    if type(content) is str and len(content) < PLAIN and not (tool_calls or model or usage) and tool_call_id is None:
        try:
            return f'{{"content":{_encode(content).decode()}}}'
        except UnicodeEncodeError:  # said below, where the error at hand does not carry the text
            pass
    if not isinstance(tool_calls or (), list | tuple):
        raise errors.MessageInvalid("Tool calls are a list.")
    calls = tuple(tool_call(call) for call in tool_calls or ())
    if not isinstance(model, str | None) or not isinstance(usage, types.Usage | None):
        raise errors.MessageInvalid("A model is named by text, and what it used is a Usage.")
    return exact(types.Body(calls, tool_call_id, _content(content), model, usage), "message")


def exact(value: msgspec.Struct, what: str) -> str:
    """A value as JSON text that gives back the same value, or MessageInvalid.

    Raised outside of any handler: the error at hand might hold the text itself.
    """
    problem, text = _encoded(value)
    if problem:
        raise errors.MessageInvalid(f"The {what} {problem}.")
    if len(text) > MAX_BODY:
        raise errors.MessageInvalid(
            f"The {what} has {len(text):,} bytes; at most {MAX_BODY:,} can be stored. Store a file instead."
        )
    return text.decode()


def _encoded(value: msgspec.Struct) -> tuple[str, bytes]:
    if any(too_deep(getattr(value, field), MAX_DEPTH) for field in value.__struct_fields__):
        return f"is nested more than {MAX_DEPTH} deep", b""
    try:
        text = _encode(value)
        # JSON would quietly make something else of bytes, dates, tuples and numbers that are none.
        same = msgspec.json.decode(text, type=type(value)) == value
    except UnicodeError:
        return "holds text that is not valid Unicode", b""
    except (TypeError, ValueError, OverflowError, RecursionError):
        return "holds something that is not JSON", b""
    return ("", text) if same else ("holds something that JSON cannot give back as it was", b"")


def too_deep(value: object, left: int) -> bool:
    """Within this depth a body can be read however deep the stack of its reader is already."""
    if isinstance(value, types.ToolCall):
        return too_deep(value.arguments, left) or too_deep(value.extra, left)
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return False
    return left == 0 or any(too_deep(inner, left - 1) for inner in value)


def written(content: types.Content, tool_call_id: str | None = None) -> str:
    """The body of a message that stands in no log, made from what was checked when it came in."""
    return _encode(types.Body(content=content, tool_call_id=tool_call_id)).decode()


def _content(content: object) -> types.Content:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple) and all(isinstance(part, Mapping) for part in content):
        return [dict(part) for part in content]
    raise errors.MessageInvalid("Content is text, or a list of parts that are objects.")


_CALL_KEYS = {"id", "type", "function", "name", "arguments", "extra"}


def tool_call(call: types.ToolCall | Mapping[str, Any]) -> types.ToolCall:
    """A call in our form, or in the form most chat APIs use (with `function` inside)."""
    if isinstance(call, Mapping):
        inner = call.get("function", call)
        if not isinstance(inner, Mapping):
            raise errors.MessageInvalid("A tool call's function is an object with name and arguments.")
        extra = {key: value for key, value in call.items() if key not in _CALL_KEYS}
        extra |= call.get("extra", {}) if isinstance(call.get("extra"), Mapping) else {}
        call = types.ToolCall(call.get("id", ""), inner.get("name", ""), inner.get("arguments", ""), extra)
    if not isinstance(call, types.ToolCall):
        raise errors.MessageInvalid("A tool call is an object with id, name and arguments.")
    if not isinstance(call.id, str) or not call.id:
        raise errors.MessageInvalid("A tool call needs an id.")
    if not isinstance(call.name, str) or not isinstance(call.arguments, str | dict):
        raise errors.MessageInvalid("A tool call has a name that is text, and arguments that are text or an object.")
    return call


def checked_id(text: object, what: str = "session_id") -> str:
    """An id from outside: any printable text of sensible length. It is data, never a path or SQL."""
    if not isinstance(text, str) or not text or len(text) > MAX_ID:
        raise errors.InvalidArgument(
            f"`{what}` must be text of 1 to {MAX_ID} characters, not {errors.shown(text)}.", parameter=what
        )
    if not text.isprintable():
        raise errors.InvalidArgument(
            f"`{what}` must be printable text; {errors.shown(text)} holds other characters.", parameter=what
        )
    return text


def summary_digest(conversation_id: str, epoch: int, body: str) -> bytes:
    """The same for what a compaction says, which a model reads as it reads a message."""
    return blake2b(f"{conversation_id}\0{epoch}\0summary\0{body}".encode(), digest_size=16).digest()


def digest(conversation_id: str, seq: int, uid: str, role: str, body: str) -> bytes:
    """Covers where a message stands as well as what it says: a row in the wrong place does not verify."""
    return blake2b(f"{conversation_id}\0{seq}\0{uid}\0{role}\0{body}".encode(), digest_size=16).digest()
