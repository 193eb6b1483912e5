"""Frames between an editor and the SDK, which sees only what is a message.

What is no JSON, or no message, is answered with the protocol's error and changes nothing else; where it can only be an
answer, whoever waits for that is told that there is none. `initialize` is answered here, at once: what answers all the
rest is loaded after it. A frame goes out in the order in which `send` was called.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Protocol

import msgspec

from holdfast import errors
from holdfast.acp import capabilities, message_parser
from holdfast.rpc import frames

logger = logging.getLogger("holdfast.acp")

LONGEST = 64 << 20
"""Bytes of a frame: a file that an editor sends along fits in."""
MOST = 20
"""So many of the things that are wrong with a request are told."""
CANCEL = "$/cancel_request"
STOP = "session/cancel"

Frame = message_parser.Frame

ASKED: ContextVar[Frame | None] = ContextVar("asked", default=None)
"""The request at hand, as it came: the SDK tells neither its id nor what of it could not be read."""


class EditorGone(errors.Gone, ConnectionError):
    """Raised when the editor closed the connection."""

    default_message = "The editor is gone."


class Lines(Protocol):
    """What carries the frames."""

    async def receive(self) -> bytes | None:
        """The next frame; None when nothing more comes."""

    async def send(self, frame: bytes) -> None:
        """Raises Gone when nobody is there any more."""

    async def unread(self) -> None:
        """Until it is known that nobody reads what is sent any more."""


class Channel:
    """A transport as the SDK wants one. One reads, anybody sends. When nobody reads any more, nothing more comes."""

    def __init__(self, lines: Lines, release: str, longest: int = LONGEST) -> None:
        self._lines, self._release, self._longest = lines, release, longest
        self._kept = deque[Frame]()
        self._prompts: dict[object, str] = {}
        self.offered: Frame = {}
        """What the editor can do, once it has said so."""
        self._settled = asyncio.Event()
        self._settled.set()
        self.served = False
        """Whether somebody began to answer what is asked."""
        self.cancelled: Callable[[str, object], object] = lambda *_: None
        """Called with the session and the id of a prompt whose answer is not wanted any more."""

    async def greeted(self) -> bool:
        """Until `initialize` was answered, or something else came; whether anything did."""
        while (frame := await self._next()) is not None:
            if frame.get("method") == "initialize":
                return True
            if self._counts(frame):
                self._kept.append(frame)
                return True
        return False

    async def turn_away(self, why: str) -> None:
        """Answer whatever is asked with this sentence, for as long as anybody asks. Too late once it was served."""
        if self.served:
            return
        while (frame := await self.receive()) is not None:
            if "method" in frame and "id" in frame:
                await self._refuse(frame["id"], frames.INTERNAL, why)

    async def settled(self, seconds: float) -> None:
        """Until every prompt is answered; no longer than this."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._settled.wait()

    # --- what the SDK calls --------------------------------------------------------------------------

    async def receive(self) -> Frame | None:
        found = self._kept.popleft() if self._kept else None
        while found is None and (frame := await self._next()) is not None:
            if frame.get("method") != "initialize" and self._counts(frame):
                found = frame
        # The SDK begins the work on it right after this, in a copy of this context.
        ASKED.set(found)
        return found

    async def send(self, message: Frame) -> None:
        is_answer = "method" not in message
        try:
            await self._lines.send(msgspec.json.encode(_brief(message) if is_answer else message, enc_hook=str))
        except errors.Gone:
            # To whom an answer cannot be given any more, none is owed.
            if not is_answer:
                raise EditorGone from None
        finally:
            if is_answer:
                self._prompts.pop(_key(message.get("id")), None)
                if not self._prompts:
                    self._settled.set()

    async def close(self) -> None:
        """The lines belong to whoever opened them."""

    # --- inside --------------------------------------------------------------------------------------

    async def _next(self) -> Frame | None:
        """The next message; what is none is answered, and `initialize` as well."""
        while (line := await self._line()) is not None:
            read = message_parser.read(line, self._longest)
            found = await self._refused(read) if isinstance(read, message_parser.Wrong) else await self._met(read)
            if found is not None:
                return found
        return None

    async def _refused(self, wrong: message_parser.Wrong) -> Frame | None:
        await self._refuse(wrong.id, wrong.code, wrong.why)
        return wrong.instead

    async def _met(self, frame: Frame) -> Frame | None:
        if frame.get("method") == "initialize":
            await self._greet(frame)
        return await self._stopped(frame) if frame.get("method") == STOP and "id" in frame else frame

    async def _line(self) -> bytes | None:
        receiving = asyncio.ensure_future(self._lines.receive())
        unread = asyncio.ensure_future(self._lines.unread())
        try:
            await asyncio.wait([receiving, unread], return_when=asyncio.FIRST_COMPLETED)
            if unread.done() and unread.exception() is None:
                return None  # Whatever was said before: to whom it cannot be answered, it is not done.
            # Where it cannot be known, whoever sends finds out.
            return await receiving
        finally:
            receiving.cancel()
            unread.cancel()

    async def _stopped(self, frame: Frame) -> Frame | None:
        """A cancel that waits for an answer is one all the same, though by the protocol nobody answers it."""
        match frame["params"]:
            case {"sessionId": str(session)}:
                await self.send({"jsonrpc": "2.0", "id": frame["id"], "result": {}})
                return {"jsonrpc": "2.0", "method": STOP, "params": {"sessionId": session}}
            case _:
                await self._refuse(frame["id"], frames.PARAMS, f"{STOP} has a sessionId, which is a text.")
                return None

    async def _greet(self, frame: Frame) -> None:
        if "id" not in frame:
            return
        answer = capabilities.answer(frame.get("params"), self._release)
        if answer is None:
            await self._refuse(frame["id"], frames.PARAMS, "initialize has a protocolVersion, which is a number.")
            return
        self.offered = capabilities.offered(frame["params"])
        await self.send({"jsonrpc": "2.0", "id": frame["id"], "result": answer})

    async def _refuse(self, id: object, code: int, why: str) -> None:
        known = id if isinstance(id, str | int) and not isinstance(id, bool) else None
        await self.send({"jsonrpc": "2.0", "id": known, "error": {"code": code, "message": why}})

    def _counts(self, frame: Frame) -> bool:
        """Whether the SDK is to see it. That a request is not wanted any more is something it does not know."""
        params = frame.get("params")
        given = params if isinstance(params, dict) else {}
        if frame.get("method") == CANCEL:
            unwanted = _key(given.get("requestId"))
            if (session := self._prompts.get(unwanted)) is not None:
                # The SDK may still be about to begin with it.
                asyncio.get_running_loop().call_soon(self.cancelled, session, unwanted)
            return False
        if "method" in frame and "id" not in frame:
            # Nobody has to know a notification, and nobody is told that it is not known.
            return frame["method"] == STOP and isinstance(given.get("sessionId"), str)
        if frame.get("method") == "session/prompt":
            self._prompts[_key(frame["id"])] = str(given.get("sessionId"))
            self._settled.clear()
        return True


def _key(id: object) -> object:
    return id if isinstance(id, str | int) else None


def _brief(answer: Frame) -> Frame:
    """The same, without what was asked: of parameters that do not fit, the SDK says all that they are."""
    match answer:
        case {"error": {"data": {"errors": list(found)}} as error}:
            kept = [{key: each.get(key) for key in ("loc", "msg")} for each in found[:MOST] if isinstance(each, dict)]
            return {**answer, "error": {**error, "data": {"errors": kept}}}
        case _:
            return answer
