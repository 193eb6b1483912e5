"""Frames of JSON-RPC 2.0: bytes to messages, and back. Pure.

Nothing that comes in raises: what is no message is `Wrong`, with the error its sender is told. Ids are given back as
they came, numbers of any length among them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgspec

from holdfast import errors

PARSE: Final = -32700
INVALID: Final = -32600
UNKNOWN: Final = -32601
PARAMS: Final = -32602
INTERNAL: Final = -32603
CANCELLED: Final = -32800
"""The name and number of Microsoft's protocols, whose clients know it."""
BUSY: Final = -32001
FAILED: Final = -32000
"""Something of Holdfast said no; `data.type` names its error."""

LONGEST_ID: Final = 256
"""Characters of an id."""
LONGEST_METHOD: Final = 200
LONGEST_NUMBER: Final = 1000
"""Digits of a number: how long it takes to read one grows with their square."""

Id: TypeAlias = str | int | float | None
Params: TypeAlias = dict[str, Any] | list[Any] | None


class Limits(msgspec.Struct, frozen=True):
    """What one program may ask of another."""

    size: int = 16 << 20
    """Bytes of a frame; a picture fits in."""
    depth: int = 64
    """Lists and objects within each other."""
    values: int = 200_000
    """Values in a frame: small ones take many times the bytes they were sent in."""
    batch: int = 100
    """Messages of a batch."""
    at_once: int = 32
    """Requests that are worked on at once. While there are so many, nothing more is read."""
    patience: float = 1.0
    """Seconds in which none of those may end before further ones are refused: a cancellation has to get through."""
    ending: float = 0.0
    """Seconds that what is worked on may still take when nothing more comes."""


ORDINARY: Final = Limits()


class Error(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why something was not done."""

    code: int
    message: str
    data: Any = None


class Request(msgspec.Struct, frozen=True):
    """It is answered, once."""

    id: Id
    method: str
    params: Params = None


class Notification(msgspec.Struct, frozen=True):
    """It is never answered."""

    method: str
    params: Params = None


class Response(msgspec.Struct, frozen=True):
    """An answer to something. Nothing was asked, so nobody waits for it."""

    id: Id


class Wrong(msgspec.Struct, frozen=True):
    """What is no message. The id is that of the sender, where one could be read."""

    error: Error
    id: Id = None


Message: TypeAlias = Request | Notification | Response | Wrong


class Batch(msgspec.Struct, frozen=True):
    """Several messages, answered together."""

    messages: tuple[Message, ...]


def decode(frame: bytes, limits: Limits = ORDINARY) -> Message | Batch:
    """What a frame says."""
    if len(frame) > limits.size:
        return Wrong(Error(INVALID, f"A frame has at most {limits.size:,} bytes."))
    if (too_much := excess(frame, limits)) is not None:
        return Wrong(Error(INVALID, too_much))
    try:
        said = msgspec.json.decode(frame)
    except UnicodeDecodeError:
        return Wrong(Error(PARSE, "That is not UTF-8."))
    except (msgspec.DecodeError, RecursionError) as error:
        return Wrong(Error(PARSE, f"That is not JSON: {error}."))
    if not isinstance(said, list):
        return _message(said)
    if not said:
        return Wrong(Error(INVALID, "A batch has at least one message."))
    if len(said) > limits.batch:
        return Wrong(Error(INVALID, f"A batch has at most {limits.batch} messages."))
    return Batch(tuple(map(_message, said)))


_MARKS = (b",", b"[", b"{")
"""Each value of JSON but the outermost stands behind one of these; a key and its value, behind one together."""
_AS_LISTS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_RUNS = re.compile(rb"\[+|\]+")
_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_TOO_LONG = b"0" * (LONGEST_NUMBER + 1)


def excess(frame: bytes, limits: Limits = ORDINARY) -> str | None:
    """What JSON has too much of, in words; None where it has not. It is not read for it, since that is what could take
    long: every byte is looked at a few times, and what is counted first bounds what comes after it."""
    bare = _without_strings(frame, limits.values)
    if bare is None or _marks(bare) > limits.values:
        return f"A frame has at most {limits.values:,} values."
    if _TOO_LONG in bare.translate(_AS_ZEROS):
        return f"A number has at most {LONGEST_NUMBER:,} digits."
    if _is_deeper(bare, limits.depth):
        return f"JSON is at most {limits.depth} deep here."
    return None


def _marks(frame: bytes) -> int:
    return sum(map(frame.count, _MARKS))


def _without_strings(frame: bytes, values: int) -> bytes | None:
    """The rest of JSON; None where there are more strings than so many values can have, a key each among them."""
    # JSON has backslashes in strings only. Where they stand elsewhere, reading ends there.
    plain = frame.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 4 * values + 2:
        return None
    return b"".join(plain.split(b'"')[::2])


def _is_deeper(bare: bytes, most: int) -> bool:
    depth = 0
    for run in _RUNS.findall(bare.translate(_AS_LISTS, _NO_BRACKETS)):
        depth = depth + len(run) if run.startswith(b"[") else max(0, depth - len(run))
        if depth > most:
            return True
    return False


def _message(said: Any) -> Message:
    if not isinstance(said, dict):
        return Wrong(Error(INVALID, "A message is an object."))
    named = said.get("id")
    if not _is_id(named):
        return Wrong(Error(INVALID, f"An id is a string, a number or null, of at most {LONGEST_ID} characters."))
    if said.get("jsonrpc") != "2.0":
        return Wrong(Error(INVALID, 'A message says "jsonrpc": "2.0".'), named)
    if "method" not in said and ("result" in said or "error" in said):
        return Response(named)
    method, params = said.get("method"), said.get("params")
    if not isinstance(method, str) or len(method) > LONGEST_METHOD:
        return Wrong(Error(INVALID, f"A method is a string of at most {LONGEST_METHOD} characters."), named)
    if params is not None and not isinstance(params, dict | list):
        return Wrong(Error(INVALID, "Params are an object or a list."), named)
    return Request(named, method, params) if "id" in said else Notification(method, params)


def _is_id(id: Any) -> bool:
    if isinstance(id, str):
        return len(id) <= LONGEST_ID
    if isinstance(id, int):
        return not isinstance(id, bool) and abs(id) < 10**LONGEST_ID
    return id is None or isinstance(id, float)


# --- and back -------------------------------------------------------------------------------------------


class _Result(msgspec.Struct, frozen=True, tag_field="jsonrpc", tag="2.0"):
    id: Id
    result: Any


class _Failure(msgspec.Struct, frozen=True, tag_field="jsonrpc", tag="2.0"):
    id: Id
    error: Error


class _Notified(msgspec.Struct, frozen=True, tag_field="jsonrpc", tag="2.0"):
    method: str
    params: Any


def answer(id: Id, result: object) -> bytes:
    """What was asked for. Raises ValueError, TypeError or RecursionError where it cannot be JSON; so do those below."""
    return msgspec.json.encode(_Result(id, result))


def failure(id: Id, error: Error) -> bytes:
    """An error as an answer."""
    return msgspec.json.encode(_Failure(id, error))


def notification(method: str, params: object) -> bytes:
    """Something that is said unasked."""
    return msgspec.json.encode(_Notified(method, params))


def batch(answers: Sequence[bytes]) -> bytes:
    """The answers to a batch, each as it would be alone."""
    return b"[" + b",".join(answers) + b"]"


def refusal(error: errors.HoldfastError) -> Error:
    """How an error of ours is told."""
    if isinstance(error, errors.RpcRefused):
        return Error(error.code, str(error), error.data)
    return Error(FAILED, str(error), {"type": type(error).__name__})
