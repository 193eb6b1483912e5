"""A line to a message: what it says, or why it is none. Pure.

What can only be an answer and cannot be read means that there is none: whoever waits for it must not wait for ever.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple

import msgspec

from holdfast.model import surrogates
from holdfast.rpc import frames

Frame = dict[str, Any]

HEAD = 1_000
"""Bytes in which it is told who an answer is to."""
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
_SIMPLE = rb'\s*(?:"(?:jsonrpc|id)"\s*:\s*(?:"[^"\\]*"|-?\d+|null)|"method"\s*:\s*null)\s*,'
_ANSWER = re.compile(rb"\s*(\{(?:" + _SIMPLE + rb')*)\s*"(?:result|error)"\s*:')
"""How an answer begins whose id comes first."""


class Wrong(NamedTuple):
    """What is no message: what is answered to it, and what it means to whoever waits for an answer."""

    id: object
    code: int
    why: str
    instead: Frame | None = None


def read(line: bytes, longest: int) -> Frame | Wrong:
    """The message of a line that has at most so many bytes; a longer one may be cut after its first byte too many."""
    if len(line) > longest:
        why = f"A frame has at most {longest:,} bytes."
        return Wrong(None, frames.INVALID, why, _no_answer(_cut(line), why))
    try:
        said = _decoded(line)
    except (ValueError, RecursionError):
        why = "That is not JSON."
        return Wrong(None, frames.PARSE, why, _no_answer(_cut(line), why))
    if not isinstance(said, dict):
        return Wrong(None, frames.INVALID, "A message is an object.")
    why = _wrong(said) or ""
    if not why:
        return _mended(said)
    if "method" in said and (isinstance(said["method"], str) or not ("result" in said or "error" in said)):
        return Wrong(said.get("id"), frames.INVALID, why)
    # Its id is one of ours: of the editor's own requests, another one may have the same.
    return Wrong(None, frames.INVALID, why, _no_answer(said, why))


def _decoded(line: bytes) -> Any:
    """JSON; also with half a character in it, which editors send where they cut a text in the middle of one."""
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError:
        if _HALF.search(line) is None:
            raise
    return surrogates.repair(json.loads(line.decode(), parse_constant=_refuse_constant, parse_float=_finite))


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no value of JSON.")


def _finite(digits: str) -> float:
    if math.isinf(number := float(digits)):
        raise ValueError(f"{digits} is too large a number.")
    return number


def _wrong(said: Frame) -> str | None:
    """Why an object is no message; None where it is one."""
    if said.get("jsonrpc") != "2.0":
        return 'A message says "jsonrpc": "2.0".'
    if isinstance(said.get("id"), bool | float | list | dict):
        return "An id is a number or a text."
    if "method" in said:
        return None if isinstance(said["method"], str) else "A method is a text."
    return None if "id" in said and ("result" in said or "error" in said) else "That is no request and no response."


def _mended(said: Frame) -> Frame:
    """An answer whose error is none is one all the same: whoever waits for it must not wait for ever. Parameters may be
    left out where all of them can. What stands beside them is left out, too: nothing is made of it here, and the SDK
    takes it for some of them."""
    match said:
        case {"method": _, "params": {"_meta": _, **params}}:
            return {**said, "params": params}
        case {"method": _} if said.get("params") is None:
            return {**said, "params": {}}
        case {"method": _} | {"error": {"code": int(), "message": str()}}:
            return said
        case {"error": _}:
            return {**said, "error": {"code": frames.INTERNAL, "message": "The editor answered with something odd."}}
        case _:
            return said


def _no_answer(said: Frame, why: str) -> Frame | None:
    """That there is no answer, for whoever this was to be one for: a wait must not last for ever."""
    match said.get("id"):
        case bool():
            return None
        case int() | float() | str() as id:
            error = {"code": frames.INTERNAL, "message": f"Its answer cannot be used: {why}"}
            return {"jsonrpc": "2.0", "id": id, "error": error}
        case _:
            return None


def _cut(line: bytes) -> Frame:
    """What can be told of an answer of which only the beginning can be read."""
    found = _ANSWER.match(line, 0, HEAD)
    try:
        said = _decoded(found[1].rstrip(b", \t\r\n") + b"}") if found else None
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
