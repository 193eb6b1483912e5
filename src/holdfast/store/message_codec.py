"""Encode messages as JSON, compute digests, and generate uids.

Content that would not be read back unchanged is refused.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from holdfast import errors, types
from holdfast.store import validation

MAX_BODY = 64 * 1024 * 1024
MAX_DEPTH = 100
MAX_METADATA = 4096
MAX_METADATA_DEPTH = 8
# Longer plain text is checked like other content.
MAX_PLAIN = 1024 * 1024

# Keys are sorted: the same content gives the same text, which is compared when a uid is repeated.
_encode = msgspec.json.Encoder(order="deterministic").encode


class EncodedMessage(msgspec.Struct, frozen=True):
    """A validated and encoded message."""

    uid: str
    is_uid_generated: bool
    role: str
    at: float
    body: str


def to_new_message(message: types.NewMessage | Mapping[str, Any]) -> types.NewMessage:
    """Convert a message of a batch; a mapping has the fields of NewMessage."""
    if isinstance(message, types.NewMessage):
        return message
    if not isinstance(message, Mapping):
        raise errors.InvalidArgument("`messages` must be a list of NewMessage, or of mappings with role and content.")
    unknown = set(message) - set(types.NewMessage.__struct_fields__)
    if unknown:
        raise errors.InvalidArgument(f"A message has no field {errors.quote(str(sorted(map(str, unknown))))}.")
    if "role" not in message:
        raise errors.InvalidArgument("A message needs a role.")
    return types.NewMessage(**message)


def encode_message(message: types.NewMessage, now: float) -> EncodedMessage:
    role, uid, at = message.role, message.uid, message.at
    if role not in types.ROLES:
        raise errors.InvalidArgument(f"`role` must be one of {', '.join(types.ROLES)}, not {errors.quote(role)}.")
    body = encode(
        message.content, message.tool_calls, message.tool_call_id, message.model, message.usage, message.metadata
    )
    return EncodedMessage(
        generate_uid() if uid is None else validation.check_id(uid, "uid"),
        uid is None,
        role,
        validation.check_time(now if at is None else at),
        body,
    )


_process = os.urandom(4).hex()
_uid_counter = itertools.count(int.from_bytes(os.urandom(2), "big"))


def _change_process() -> None:
    global _process  # noqa: PLW0603 -- a forked child must not generate its parent's uids
    _process = os.urandom(4).hex()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_change_process)


def generate_uid() -> str:
    """Return a new uid: time, process and a counter. The time comes first, so the index of uids grows at its end."""
    return f"{time.time_ns():016x}{_process}{next(_uid_counter) & 0xFFFF:04x}"


def encode(
    content: object,
    tool_calls: Sequence[types.ToolCall | Mapping[str, Any]] = (),
    tool_call_id: str | None = None,
    model: str | None = None,
    usage: types.Usage | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> str:
    """Return the body as JSON text; raise InvalidArgument if it cannot be stored."""
    # Nearly every message is plain text, which needs no further checks.
    plain = not (tool_calls or model or usage) and tool_call_id is None and metadata is None
    if plain and type(content) is str and len(content) < MAX_PLAIN:
        try:
            return f'{{"content":{_encode(content).decode()}}}'
        except UnicodeEncodeError:  # Reported below, because this error carries the text.
            pass
    if not isinstance(tool_calls or (), list | tuple):
        raise errors.InvalidArgument("`tool_calls` must be a list.")
    calls = tuple(to_tool_call(call) for call in tool_calls or ())
    if not isinstance(model, str | None) or not isinstance(usage, types.Usage | None):
        raise errors.InvalidArgument("`model` must be text, and `usage` a Usage.")
    body = types.Body(calls, tool_call_id, _content(content), model, usage, check_metadata(metadata))
    return encode_exact(body, "message")


class _Object(msgspec.Struct, frozen=True):
    value: dict[str, Any]


def check_object(value: object, name: str, max_bytes: int, max_depth: int = MAX_DEPTH) -> dict[str, Any]:
    """Return a small JSON object as a dict, or raise InvalidArgument."""
    if not isinstance(value, Mapping):
        raise errors.InvalidArgument(f"`{name}` must be an object.", parameter=name)
    found = dict(value)
    if is_too_deep(found, max_depth):
        raise errors.InvalidArgument(f"`{name}` must be nested at most {max_depth} deep.", parameter=name)
    encode_exact(_Object(found), name)
    size = len(_encode(found))
    if size > max_bytes:
        raise errors.InvalidArgument(
            f"`{name}` must have at most {max_bytes:,} bytes as JSON, not {size:,}.", parameter=name
        )
    return found


def check_metadata(metadata: object) -> dict[str, Any]:
    """Return metadata as a dict, empty for None; raise InvalidArgument if it is not a small JSON object."""
    return {} if metadata is None else check_object(metadata, "metadata", MAX_METADATA, MAX_METADATA_DEPTH)


def encode_metadata(metadata: object) -> str | None:
    """Return the metadata of a conversation as JSON text, None when it is empty."""
    found = check_metadata(metadata)
    return _encode(found).decode() if found else None


def decode_metadata(text: str | None, conversation_id: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any]) if text else {}
    except msgspec.DecodeError:
        raise errors.StoreCorrupt(f"The metadata of conversation {conversation_id} cannot be read.") from None


def encode_exact(value: msgspec.Struct, what: str) -> str:
    """Return JSON text that decodes to the same value, or raise InvalidArgument.

    The error is raised outside of any handler, because the error being handled may carry the text.
    """
    problem, text = _try_encode(value)
    if problem:
        raise errors.InvalidArgument(f"The {what} {problem}.")
    if len(text) > MAX_BODY:
        raise errors.InvalidArgument(
            f"The {what} has {len(text):,} bytes; at most {MAX_BODY:,} can be stored. Store a file instead."
        )
    return text.decode()


def _try_encode(value: msgspec.Struct) -> tuple[str, bytes]:
    if any(is_too_deep(getattr(value, field), MAX_DEPTH) for field in value.__struct_fields__):
        return f"is nested more than {MAX_DEPTH} deep", b""
    try:
        text = _encode(value)
        # JSON has no bytes, dates, tuples or NaN: msgspec would store something else without an error.
        same = msgspec.json.decode(text, type=type(value)) == value
    except UnicodeError:
        return "holds text that is not valid Unicode", b""
    except (TypeError, ValueError, OverflowError, RecursionError):
        return "holds a value that JSON cannot represent", b""
    return ("", text) if same else ("holds a value that JSON does not return unchanged, such as a tuple or NaN", b"")


def is_too_deep(value: object, left: int) -> bool:
    """Return whether a value is nested more than `left` deep."""
    if isinstance(value, types.ToolCall):
        return is_too_deep(value.arguments, left) or is_too_deep(value.extra, left)
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return False
    return left == 0 or any(is_too_deep(inner, left - 1) for inner in value)


def encode_synthetic(content: types.Content, tool_call_id: str | None = None) -> str:
    """Encode a message that is not stored, such as a summary in the context. Its content was validated before."""
    return _encode(types.Body(content=content, tool_call_id=tool_call_id)).decode()


def _content(content: object) -> types.Content:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple) and all(isinstance(part, Mapping) for part in content):
        return [dict(part) for part in content]
    raise errors.InvalidArgument("`content` must be text, or a list of parts that are objects.")


_CALL_KEYS = {"id", "type", "function", "name", "arguments", "extra"}


def to_tool_call(call: types.ToolCall | Mapping[str, Any]) -> types.ToolCall:
    """Convert a mapping, also in the format of chat APIs with an inner `function`, and validate the call."""
    if isinstance(call, Mapping):
        inner = call.get("function", call)
        if not isinstance(inner, Mapping):
            raise errors.InvalidArgument("The function of a tool call must be an object with name and arguments.")
        extra = {key: value for key, value in call.items() if key not in _CALL_KEYS}
        extra |= call.get("extra", {}) if isinstance(call.get("extra"), Mapping) else {}
        call = types.ToolCall(call.get("id", ""), inner.get("name", ""), inner.get("arguments", ""), extra)
    if not isinstance(call, types.ToolCall):
        raise errors.InvalidArgument("A tool call must be an object with id, name and arguments.")
    if not isinstance(call.id, str) or not call.id:
        raise errors.InvalidArgument("A tool call needs an id.")
    if not isinstance(call.name, str) or not isinstance(call.arguments, str | dict):
        raise errors.InvalidArgument("A tool call needs a name that is text, and arguments that are text or an object.")
    return call


def summary_digest(conversation_id: str, epoch: int, body: str) -> bytes:
    """Return the digest of a compaction's summary, which a model reads like a message."""
    return blake2b(f"{conversation_id}\0{epoch}\0summary\0{body}".encode(), digest_size=16).digest()


def digest(conversation_id: str, seq: int, uid: str, role: str, body: str) -> bytes:
    """Return the digest of a message. It covers the position: a row in the wrong place does not verify."""
    return blake2b(f"{conversation_id}\0{seq}\0{uid}\0{role}\0{body}".encode(), digest_size=16).digest()
