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
from typing import Any, TypeAlias

import msgspec

from holdfast import errors
from holdfast.model import surrogates
from holdfast.rpc import frames, peer

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

    def __init__(self, transport: peer.Channel, version: str, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._transport, self._version = transport, version
        self._limits = frames.FrameLimits(max_bytes=max_frame_bytes)
        self._unread = deque[Frame]()
        self._prompts: dict[frames.Id, str] = {}
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
            match decode(line, self._limits):
                case frames.RpcBatch():
                    await self._send_error(None, frames.INVALID_REQUEST, "Batches are not supported.")
                case frames.InvalidMessage(error, request_id, response_to):
                    await self._send_error(request_id, error.code, error.message)
                    if response_to is not None:
                        return _repair_error({"jsonrpc": "2.0", "id": response_to, "error": None})
                case frames.RpcRequest(request_id, method, params):
                    return await self._receive_request(request_id, method, params)
                case frames.RpcNotification(method, params):
                    if (session := self._cancelled_session(method, params)) is not None:
                        return {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": session}}
                case frames.RpcResponse(body=body):
                    return _repair_error(body)
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

    async def _receive_request(self, request_id: frames.Id, method: str, params: frames.Params) -> Frame:
        if method == "initialize":
            await self._initialize(request_id, params)
        if method == "session/prompt":
            self._prompts[request_id] = _session_id(params) or ""
            self._no_prompts.clear()
        if isinstance(params, dict):
            # The SDK would take its items for parameters.
            params.pop("_meta", None)
        return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": {} if params is None else params}

    def _cancelled_session(self, method: str, params: frames.Params) -> str | None:
        """Return the session that a notification cancels; all other notifications are ignored."""
        match method, params:
            case "session/cancel", _:
                return _session_id(params)
            case "$/cancel_request", {"requestId": str() | int() as request_id}:
                return self._prompts.get(request_id)  # The SDK does not know this notification.
            case _:
                return None

    async def _initialize(self, request_id: frames.Id, params: frames.Params) -> None:
        result = initialize_result(params, self._version)
        if result is None:
            await self._send_error(request_id, frames.INVALID_PARAMS, "`protocolVersion` must be an integer.")
            return
        self.client_capabilities = parse_client_capabilities(params)
        await self.send({"jsonrpc": "2.0", "id": request_id, "result": result})

    async def _send_error(self, request_id: frames.Id, code: int, error: str) -> None:
        await self.send({"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": error}})


def _session_id(params: frames.Params) -> str | None:
    session = params.get("sessionId") if isinstance(params, dict) else None
    return session if isinstance(session, str) else None


def _shorten_errors(response: Frame) -> Frame:
    """Remove the input from validation errors of the SDK, which repeats all of it."""
    match response:
        case {"error": {"data": {"errors": list(found)}} as error}:
            kept = [{"loc": each.get("loc"), "msg": each.get("msg")} for each in found[:MAX_VALIDATION_ERRORS]]
            return {**response, "error": {**error, "data": {"errors": kept}}}
        case _:
            return response


def _repair_error(response: Frame) -> Frame:
    """Replace an invalid error response, so that the pending request ends."""
    match response:
        case {"error": {"code": int(), "message": str()}}:
            return response
        case {"error": _}:
            error = {"code": frames.INTERNAL_ERROR, "message": "The editor sent an invalid response."}
            return {**response, "error": error}
        case _:
            return response


def decode(line: bytes, limits: frames.FrameLimits) -> frames.Message | frames.RpcBatch:
    """Decode a frame, with unpaired surrogates, too: editors send them when they cut a text within a character."""
    if _SURROGATE.search(line) is not None:
        with suppress(ValueError, RecursionError):
            line = msgspec.json.encode(surrogates.repair(json.loads(line)))
    return frames.decode(line, limits)
