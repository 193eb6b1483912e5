"""The connection to an editor: a transport for the SDK that passes on valid messages only.

Invalid frames are answered with an error of the protocol. `initialize` is answered here, so that the editor is greeted
before the SDK and the agent are loaded, which takes most of the start-up time. Frames leave in the order of the `send`
calls.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from importlib import util
from typing import Any, Protocol

import msgspec

from holdfast import errors
from holdfast.acp import message_parser
from holdfast.rpc import frames

PROTOCOL_VERSION = 1
NAME, TITLE = "holdfast", "Holdfast"
MAX_FRAME_BYTES = 64 << 20
"""Bytes of a frame; an embedded file fits."""
MAX_VALIDATION_ERRORS = 20
"""Validation errors listed in one response."""
CANCEL_REQUEST = "$/cancel_request"
CANCEL_SESSION = "session/cancel"

Frame = message_parser.Frame

CURRENT_REQUEST: ContextVar[Frame | None] = ContextVar("current_request", default=None)
"""The request being handled, unmodified: the SDK passes on neither its id nor the values that it could not parse."""


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
        self.on_cancel: Callable[[str, object], object] = lambda *_: None
        """Called with the session and the request id of a cancelled prompt."""

    async def wait_initialized(self) -> bool:
        """Wait for `initialize` or another message; return False if the input ended."""
        while (frame := await self._next()) is not None:
            if frame.get("method") == "initialize":
                return True
            if self._should_pass(frame):
                self._unread.append(frame)
                return True
        return False

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
        found = self._unread.popleft() if self._unread else None
        while found is None and (frame := await self._next()) is not None:
            if frame.get("method") != "initialize" and self._should_pass(frame):
                found = frame
        # The SDK starts the handler next, in a copy of this context.
        CURRENT_REQUEST.set(found)
        return found

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
                self._prompts.pop(_key(message.get("id")), None)
                if not self._prompts:
                    self._no_prompts.set()

    async def close(self) -> None:
        """The transport is closed by its owner."""

    # --- receiving -----------------------------------------------------------------------------------

    async def _next(self) -> Frame | None:
        """Return the next message; answer invalid frames and `initialize`."""
        while (line := await self._receive_line()) is not None:
            parsed = message_parser.parse(line, self._max_frame_bytes)
            if isinstance(parsed, message_parser.InvalidFrame):
                await self._send_error(parsed.id, parsed.code, parsed.error)
                found = parsed.substitute
            else:
                found = await self._handle(parsed)
            if found is not None:
                return found
        return None

    async def _handle(self, frame: Frame) -> Frame | None:
        if frame.get("method") == "initialize":
            await self._initialize(frame)
        is_request = frame.get("method") == CANCEL_SESSION and "id" in frame
        return await self._answer_cancel(frame) if is_request else frame

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

    async def _answer_cancel(self, frame: Frame) -> Frame | None:
        """Accept a cancel with an id, too, although the protocol defines it as a notification."""
        match frame["params"]:
            case {"sessionId": str(session)}:
                await self.send({"jsonrpc": "2.0", "id": frame["id"], "result": {}})
                return {"jsonrpc": "2.0", "method": CANCEL_SESSION, "params": {"sessionId": session}}
            case _:
                await self._send_error(frame["id"], frames.INVALID_PARAMS, "`sessionId` must be a string.")
                return None

    async def _initialize(self, frame: Frame) -> None:
        if "id" not in frame:
            return
        result = initialize_result(frame.get("params"), self._version)
        if result is None:
            await self._send_error(frame["id"], frames.INVALID_PARAMS, "`protocolVersion` must be an integer.")
            return
        self.client_capabilities = parse_client_capabilities(frame["params"])
        await self.send({"jsonrpc": "2.0", "id": frame["id"], "result": result})

    async def _send_error(self, id: object, code: int, error: str) -> None:
        known = id if isinstance(id, str | int) and not isinstance(id, bool) else None
        await self.send({"jsonrpc": "2.0", "id": known, "error": {"code": code, "message": error}})

    def _should_pass(self, frame: Frame) -> bool:
        """Return whether the SDK gets this message; the SDK does not know `$/cancel_request`."""
        params = frame.get("params")
        given = params if isinstance(params, dict) else {}
        if frame.get("method") == CANCEL_REQUEST:
            request_id = _key(given.get("requestId"))
            if (session := self._prompts.get(request_id)) is not None:
                # The SDK may not have started the handler of the prompt yet.
                asyncio.get_running_loop().call_soon(self.on_cancel, session, request_id)
            return False
        if "method" in frame and "id" not in frame:
            # Unknown notifications are ignored.
            return frame["method"] == CANCEL_SESSION and isinstance(given.get("sessionId"), str)
        if frame.get("method") == "session/prompt":
            self._prompts[_key(frame["id"])] = str(given.get("sessionId"))
            self._no_prompts.clear()
        return True


def _key(id: object) -> object:
    return id if isinstance(id, str | int) else None


def _shorten_errors(response: Frame) -> Frame:
    """Remove the input from validation errors of the SDK, which repeats all of it."""
    match response:
        case {"error": {"data": {"errors": list(found)}} as error}:
            kept = [
                {key: each.get(key) for key in ("loc", "msg")}
                for each in found[:MAX_VALIDATION_ERRORS]
                if isinstance(each, dict)
            ]
            return {**response, "error": {**error, "data": {"errors": kept}}}
        case _:
            return response
