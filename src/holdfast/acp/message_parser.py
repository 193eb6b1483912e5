"""Parse a line into a message, or into the error to answer it with. Pure.

A response that cannot be parsed is turned into an error response, so that the pending request does not wait for ever.
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

HEAD_BYTES = 1_000
"""Bytes at the beginning of a broken response in which its id is looked for."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_SIMPLE = rb'\s*(?:"(?:jsonrpc|id)"\s*:\s*(?:"[^"\\]*"|-?\d+|null)|"method"\s*:\s*null)\s*,'
# The beginning of a response whose id comes first.
_RESPONSE = re.compile(rb"\s*(\{(?:" + _SIMPLE + rb')*)\s*"(?:result|error)"\s*:')


class InvalidFrame(NamedTuple):
    """A line that is not a message: the error to answer, and the message to process instead, if any."""

    id: object
    code: int
    error: str
    substitute: Frame | None = None


def parse(line: bytes, max_bytes: int) -> Frame | InvalidFrame:
    """Parse a line. One that is too long may be cut after its first byte too many."""
    if len(line) > max_bytes:
        error = f"A frame can have at most {max_bytes:,} bytes."
        return InvalidFrame(None, frames.INVALID_REQUEST, error, _error_response(_parse_head(line), error))
    try:
        message = _decode(line)
    except (ValueError, RecursionError):
        error = "Invalid JSON."
        return InvalidFrame(None, frames.PARSE_ERROR, error, _error_response(_parse_head(line), error))
    if not isinstance(message, dict):
        return InvalidFrame(None, frames.INVALID_REQUEST, "A message must be an object.")
    error = _validate(message) or ""
    if not error:
        return _normalize(message)
    if "method" in message and (isinstance(message["method"], str) or not ("result" in message or "error" in message)):
        return InvalidFrame(message.get("id"), frames.INVALID_REQUEST, error)
    # The id of a response is one of ours; a request of the editor may have the same, so it is not repeated.
    return InvalidFrame(None, frames.INVALID_REQUEST, error, _error_response(message, error))


def _decode(line: bytes) -> Any:
    """Decode JSON, with unpaired surrogates, too: editors send them when they cut a text within a character."""
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError:
        if _SURROGATE.search(line) is None:
            raise
    return surrogates.repair(json.loads(line.decode(), parse_constant=_reject_constant, parse_float=_parse_float))


def _reject_constant(name: str) -> object:
    raise ValueError(f"{name} is not valid JSON.")


def _parse_float(digits: str) -> float:
    if math.isinf(number := float(digits)):
        raise ValueError(f"{digits} is too large.")
    return number


def _validate(message: Frame) -> str | None:
    """Return why an object is not a message; None if it is one."""
    if message.get("jsonrpc") != "2.0":
        return 'A message must contain "jsonrpc": "2.0".'
    if isinstance(message.get("id"), bool | float | list | dict):
        return "`id` must be an integer or a string."
    if "method" in message:
        return None if isinstance(message["method"], str) else "`method` must be a string."
    is_response = "id" in message and ("result" in message or "error" in message)
    return None if is_response else "The message is neither a request nor a response."


def _normalize(message: Frame) -> Frame:
    """Adapt a message to the SDK: parameters are present, without `_meta`, which the SDK would take for one of them,
    and an invalid error is replaced by a valid one."""
    match message:
        case {"method": _, "params": {"_meta": _, **params}}:
            return {**message, "params": params}
        case {"method": _} if message.get("params") is None:
            return {**message, "params": {}}
        case {"method": _} | {"error": {"code": int(), "message": str()}}:
            return message
        case {"error": _}:
            return {**message, "error": {"code": frames.INTERNAL_ERROR, "message": "The editor sent an invalid error."}}
        case _:
            return message


def _error_response(message: Frame, error: str) -> Frame | None:
    """Return an error response to the request of ours that a broken response belongs to."""
    match message.get("id"):
        case bool():
            return None
        case int() | float() | str() as id:
            failure = {"code": frames.INTERNAL_ERROR, "message": f"The response is invalid: {error}"}
            return {"jsonrpc": "2.0", "id": id, "error": failure}
        case _:
            return None


def _parse_head(line: bytes) -> Frame:
    """Parse the beginning of a broken response; {} if it cannot be recognised as one."""
    found = _RESPONSE.match(line, 0, HEAD_BYTES)
    try:
        head = _decode(found[1].rstrip(b", \t\r\n") + b"}") if found else None
    except (ValueError, RecursionError):
        return {}
    return head if isinstance(head, dict) else {}
