"""The connection to an editor: a transport for the SDK that passes on valid messages only.

Invalid frames are answered with an error of the protocol. `initialize` is answered here, so that the editor is greeted
before the SDK and the agent are loaded, which takes most of the start-up time. Frames leave in the order of the `send`
calls.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from importlib import util
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

from holdfast import errors
from holdfast.model import surrogates
from holdfast.rpc import frames

PROTOCOL_VERSION = 1
NAME, TITLE = "holdfast", "Holdfast"
MAX_FRAME_BYTES = 64 << 20
"""Bytes of a frame; an embedded file fits."""
MAX_VALIDATION_ERRORS = 20
"""Validation errors listed in one response."""

Frame: TypeAlias = dict[str, Any]

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class EditorGone(errors.Gone, ConnectionError):
    """Raised when the editor closed the connection."""

    default_message = "The editor has disconnected."


class FrameTransport(Protocol):
    """Carries frames."""

    async def receive(self) -> bytes | None:
        """Return the next frame, or None at the end."""

    async def send(self, frame: bytes) -> None:
        """Raises Gone when the connection is closed."""

    async def unread(self) -> None:
        """Return when it is known that the other side reads no more."""


def initialize_result(params: object, version: str) -> dict[str, Any] | None:
    """Return the result of `initialize`; None if the parameters are invalid.

    The answer is always our protocol version: an editor that does not support it disconnects.
    """
    if not isinstance(params, Mapping):
        return None
    requested = params.get("protocolVersion")
    if isinstance(requested, bool) or not isinstance(requested, int) or not 0 <= requested <= 0xFFFF:
        return None
    has_mcp = util.find_spec("mcp") is not None
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "agentCapabilities": {
            "loadSession": True,
            "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
            "mcpCapabilities": {"http": has_mcp, "sse": has_mcp},
            "sessionCapabilities": {"list": {}, "resume": {}, "close": {}, "fork": {}, "additionalDirectories": {}},
        },
        "agentInfo": {"name": NAME, "title": TITLE, "version": version},
        "authMethods": [],
    }


def parse_client_capabilities(params: object) -> dict[str, Any]:
    """Return the capabilities that the editor declares; {} if they are missing or invalid."""
    declared = params.get("clientCapabilities") if isinstance(params, Mapping) else None
    return dict(declared) if isinstance(declared, Mapping) else {}


class EditorChannel:
    """A transport of the SDK. One task receives, any task sends. When the editor reads no more, the input ends."""

    def __init__(self, transport: FrameTransport, version: str, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._transport, self._version, self._max_frame_bytes = transport, version, max_frame_bytes
        self._unread = deque[Frame]()
        self._prompts: dict[object, str] = {}
        """The session of each pending prompt, by request id."""
        self._no_prompts = asyncio.Event()
        self._no_prompts.set()
        self.client_capabilities: Frame = {}
        self.is_served = False
        """Whether a server handles the requests."""

    async def wait_initialized(self) -> bool:
        """Wait for `initialize` or another message; return False if the input ended."""
        frame = await self._next()
        if frame is not None and frame.get("method") != "initialize":
            self._unread.append(frame)
        return frame is not None

    async def refuse_all(self, error: str) -> None:
        """Answer every request with this error until the input ends. Does nothing once a server has started."""
        if self.is_served:
            return
        while (frame := await self.receive()) is not None:
            if "method" in frame and "id" in frame:
                await self._send_error(frame["id"], frames.INTERNAL_ERROR, error)

    async def wait_prompts(self, seconds: float) -> None:
        """Wait until every prompt is answered, or until the timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._no_prompts.wait()

    # --- the transport -------------------------------------------------------------------------------

    async def receive(self) -> Frame | None:
        while (frame := self._unread.popleft() if self._unread else await self._next()) is not None:
            if frame.get("method") != "initialize":
                return frame
        return None

    async def send(self, message: Frame) -> None:
        is_response = "method" not in message
        try:
            frame = _shorten_errors(message) if is_response else message
            await self._transport.send(msgspec.json.encode(frame, enc_hook=str))
        except errors.Gone:
            if not is_response:
                raise EditorGone from None
        finally:
            if is_response:
                self._prompts.pop(message.get("id"), None)
                if not self._prompts:
                    self._no_prompts.set()

    async def close(self) -> None:
        """The transport is closed by its owner."""

    # --- receiving -----------------------------------------------------------------------------------

    async def _next(self) -> Frame | None:
        """Return the next message for the SDK, or `initialize` after it was answered; answer invalid frames."""
        while (line := await self._receive_line()) is not None:
            parsed = parse_frame(line, self._max_frame_bytes)
            if isinstance(parsed, InvalidFrame):
                await self._send_error(parsed.id, parsed.code, parsed.error)
                found = parsed.substitute
            else:
                found = self._filter(parsed)
            if found is not None:
                if found.get("method") == "initialize":
                    await self._initialize(found)
                return found
        return None

    async def _receive_line(self) -> bytes | None:
        receiving = asyncio.ensure_future(self._transport.receive())
        unread = asyncio.ensure_future(self._transport.unread())
        try:
            await asyncio.wait([receiving, unread], return_when=asyncio.FIRST_COMPLETED)
            if unread.done() and unread.exception() is None:
                return None  # Requests that cannot be answered are not carried out.
            return await receiving
        finally:
            receiving.cancel()
            unread.cancel()

    def _filter(self, frame: Frame) -> Frame | None:
        """Return the message for the SDK; None if it is ignored, as unknown notifications are."""
        params = frame.get("params")
        session = params.get("sessionId") if isinstance(params, dict) else None
        match frame:
            case {"method": "$/cancel_request", "params": {"requestId": str() | int() as request_id}}:
                # The SDK does not know it.
                session = self._prompts.get(request_id)
                return _cancellation(session) if session is not None else None
            case {"method": "session/cancel"} if "id" not in frame:
                return _cancellation(session) if isinstance(session, str) else None
            case {"method": "session/prompt", "id": str() | int() as request_id}:
                self._prompts[request_id] = str(session)
                self._no_prompts.clear()
        return frame if "id" in frame else None

    async def _initialize(self, frame: Frame) -> None:
        result = initialize_result(frame.get("params"), self._version)
        if result is None:
            await self._send_error(frame["id"], frames.INVALID_PARAMS, "`protocolVersion` must be an integer.")
            return
        self.client_capabilities = parse_client_capabilities(frame["params"])
        await self.send({"jsonrpc": "2.0", "id": frame["id"], "result": result})

    async def _send_error(self, id: object, code: int, error: str) -> None:
        known = id if isinstance(id, str | int) and not isinstance(id, bool) else None
        await self.send({"jsonrpc": "2.0", "id": known, "error": {"code": code, "message": error}})


def _cancellation(session: str) -> Frame:
    return {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}}


def _shorten_errors(response: Frame) -> Frame:
    """Remove the input from validation errors of the SDK, which repeats all of it."""
    match response:
        case {"error": {"data": {"errors": list(found)}} as error}:
            kept = [{"loc": each.get("loc"), "msg": each.get("msg")} for each in found[:MAX_VALIDATION_ERRORS]]
            return {**response, "error": {**error, "data": {"errors": kept}}}
        case _:
            return response


# --- parsing -------------------------------------------------------------------------------------------


class InvalidFrame(NamedTuple):
    """A line that is not a message: the error to answer, and the message to process instead, if any."""

    id: object
    code: int
    error: str
    substitute: Frame | None = None


def parse_frame(line: bytes, max_bytes: int) -> Frame | InvalidFrame:
    """Parse a line. One that is too long may be cut after its first byte too many."""
    if len(line) > max_bytes:
        return InvalidFrame(None, frames.INVALID_REQUEST, f"A frame can have at most {max_bytes:,} bytes.")
    try:
        message = _decode(line)
    except (ValueError, RecursionError):
        return InvalidFrame(None, frames.PARSE_ERROR, "Invalid JSON.")
    if not isinstance(message, dict):
        return InvalidFrame(None, frames.INVALID_REQUEST, "A message must be an object.")
    error = _validate(message)
    if error is None:
        return _normalize(message)
    if isinstance(message.get("method"), str):
        return InvalidFrame(message.get("id"), frames.INVALID_REQUEST, error)
    # The id of a response is one of ours; a request of the editor may have the same, so it is not repeated.
    return InvalidFrame(None, frames.INVALID_REQUEST, error, _error_response(message.get("id"), error))


def _decode(line: bytes) -> Any:
    """Decode JSON, with unpaired surrogates, too: editors send them when they cut a text within a character."""
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError:
        if _SURROGATE.search(line) is None:
            raise
    return surrogates.repair(json.loads(line))


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


def _error_response(id: object, error: str) -> Frame | None:
    """Return an error response, so that the request of ours that an invalid response belongs to does not wait."""
    if not isinstance(id, int | str) or isinstance(id, bool):
        return None
    failure = {"code": frames.INTERNAL_ERROR, "message": f"The response is invalid: {error}"}
    return {"jsonrpc": "2.0", "id": id, "error": failure}
