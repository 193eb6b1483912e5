"""JSON-RPC 2.0 frames: bytes to messages and back. Pure.

Decoding never raises: a frame that is not a message becomes an `InvalidMessage` with the error for its sender. Ids are
returned as they were received, numbers of any length included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgspec

from holdfast import errors

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
CANCELLED: Final = -32800
"""The code of the Language Server Protocol, which its clients know."""
BUSY: Final = -32001
FAILED: Final = -32000
"""A HoldfastError; `data.type` names its class."""

MAX_ID_CHARACTERS: Final = 256
MAX_METHOD_CHARACTERS: Final = 200

Id: TypeAlias = str | int | float | None
Params: TypeAlias = dict[str, Any] | list[Any] | None


class FrameLimits(msgspec.Struct, frozen=True):
    """The size limits of one peer."""

    max_bytes: int = 16 << 20
    """Bytes of a frame; an image fits."""
    max_running: int = 32
    """Requests that run at once, and messages of a batch. While so many run, nothing more is read."""
    busy_seconds: float = 1.0
    """Seconds without any of them ending after which further requests are refused: a cancellation must get through."""
    drain_seconds: float = 0.0
    """Seconds that running requests may take after the end of the input."""


DEFAULT_LIMITS: Final = FrameLimits()


class RpcError(msgspec.Struct, frozen=True, omit_defaults=True):
    """The error of a response."""

    code: int
    message: str
    data: Any = None


class RpcRequest(msgspec.Struct, frozen=True):
    """A request; it gets one response."""

    id: Id
    method: str
    params: Params = None


class RpcNotification(msgspec.Struct, frozen=True):
    """A notification; it gets no response."""

    method: str
    params: Params = None


class RpcResponse(msgspec.Struct, frozen=True):
    """A response, as it was received."""

    id: Id
    body: dict[str, Any]


class InvalidMessage(msgspec.Struct, frozen=True):
    """The error for a frame that is not a message, with the id of its sender if there is one."""

    error: RpcError
    id: Id = None
    response_to: Id = None
    """The pending request that an invalid response belongs to."""


Message: TypeAlias = RpcRequest | RpcNotification | RpcResponse | InvalidMessage


class RpcBatch(msgspec.Struct, frozen=True):
    """Several messages, answered together."""

    messages: tuple[Message, ...]


def decode(frame: bytes, limits: FrameLimits = DEFAULT_LIMITS) -> Message | RpcBatch:
    """Decode a frame."""
    if len(frame) > limits.max_bytes:
        return _invalid(f"A frame can have at most {limits.max_bytes:,} bytes.")
    try:
        decoded = msgspec.json.decode(frame)
    except UnicodeDecodeError:
        return InvalidMessage(RpcError(PARSE_ERROR, "The frame is not valid UTF-8."))
    except (msgspec.DecodeError, RecursionError) as error:
        return InvalidMessage(RpcError(PARSE_ERROR, f"Invalid JSON: {error}."))
    if not isinstance(decoded, list):
        return _message(decoded)
    if not decoded:
        return _invalid("A batch must have at least one message.")
    if len(decoded) > limits.max_running:
        return _invalid(f"A batch can have at most {limits.max_running} messages.")
    return RpcBatch(tuple(map(_message, decoded)))


def _invalid(error: str, id: Id = None) -> InvalidMessage:
    return InvalidMessage(RpcError(INVALID_REQUEST, error), id)


def _message(decoded: Any) -> Message:
    if not isinstance(decoded, dict):
        return _invalid("A message must be an object.")
    id_ = decoded.get("id")
    if not _is_id(id_):
        return _invalid(f"`id` must be a string, a number or null, with at most {MAX_ID_CHARACTERS} characters.")
    method, params = decoded.get("method"), decoded.get("params")
    if not isinstance(method, str) and "id" in decoded and ("result" in decoded or "error" in decoded):
        return _response(id_, decoded)
    if decoded.get("jsonrpc") != "2.0":
        return _invalid('A message must contain "jsonrpc": "2.0".', id_)
    if not isinstance(method, str) or len(method) > MAX_METHOD_CHARACTERS:
        return _invalid(f"`method` must be a string with at most {MAX_METHOD_CHARACTERS} characters.", id_)
    if params is not None and not isinstance(params, dict | list):
        return _invalid("`params` must be an object or a list.", id_)
    return RpcRequest(id_, method, params) if "id" in decoded else RpcNotification(method, params)


def _response(id: Id, decoded: dict[str, Any]) -> RpcResponse | InvalidMessage:
    if decoded.get("jsonrpc") == "2.0" and "method" not in decoded:
        return RpcResponse(id, decoded)
    # A request of the other side may have the same id, so the error does not repeat it.
    return InvalidMessage(RpcError(INVALID_REQUEST, "The response is invalid."), response_to=id)


def _is_id(id: Any) -> bool:
    if isinstance(id, str):
        return len(id) <= MAX_ID_CHARACTERS
    if isinstance(id, int):
        return not isinstance(id, bool) and abs(id) < 10**MAX_ID_CHARACTERS
    return id is None or isinstance(id, float)


# --- encoding ------------------------------------------------------------------------------------------


class _Result(msgspec.Struct, frozen=True, tag_field="jsonrpc", tag="2.0"):
    id: Id
    result: Any


class _Failure(msgspec.Struct, frozen=True, tag_field="jsonrpc", tag="2.0"):
    id: Id
    error: RpcError


class _Notice(msgspec.Struct, frozen=True, tag_field="jsonrpc", tag="2.0"):
    method: str
    params: Any


def encode_result(id: Id, result: object) -> bytes:
    """Encode a response. All encoders raise ValueError, TypeError or RecursionError for values that JSON lacks."""
    return msgspec.json.encode(_Result(id, result))


def encode_error(id: Id, error: RpcError) -> bytes:
    """Encode an error response."""
    return msgspec.json.encode(_Failure(id, error))


def encode_notification(method: str, params: object) -> bytes:
    """Encode a notification."""
    return msgspec.json.encode(_Notice(method, params))


def encode_batch(responses: Sequence[bytes]) -> bytes:
    """Join the encoded responses to a batch."""
    return b"[" + b",".join(responses) + b"]"


def convert_error(error: errors.HoldfastError) -> RpcError:
    """Return the error of a response for an exception."""
    if isinstance(error, errors.RpcRefused):
        return RpcError(error.code, str(error), error.data)
    return RpcError(FAILED, str(error), {"type": type(error).__name__})
