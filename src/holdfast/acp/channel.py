"""Frames between an editor and the SDK, which sees only what is a message.

What is no JSON, or no message, is answered with the protocol's error and changes nothing else. `initialize` is answered
here, at once: what answers all the rest is loaded after it. A frame goes out in the order in which `send` was called.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Protocol

import msgspec

from holdfast import errors
from holdfast.acp import greeting
from holdfast.rpc import frames

logger = logging.getLogger("holdfast.acp")

LONGEST = 64 << 20
"""Bytes of a frame: a file that an editor sends along fits in."""
MOST = 20
"""So many of the things that are wrong with a request are told."""
CANCEL = "$/cancel_request"

Frame = dict[str, Any]

ASKED: ContextVar[Frame | None] = ContextVar("asked", default=None)
"""The request at hand, as it came: the SDK tells neither its id nor what of it could not be read."""
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


class Lines(Protocol):
    """What carries the frames."""

    async def receive(self) -> bytes | None:
        """The next frame; None when nothing more comes."""

    async def send(self, frame: bytes) -> None:
        """Raises Gone when nobody is there any more."""


class Channel:
    """A transport as the SDK wants one. One reads, anybody sends."""

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
                raise ConnectionError("The editor is gone.") from None
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
        while (line := await self._lines.receive()) is not None:
            read = self._read(line)
            if isinstance(read, dict):
                if read.get("method") == "initialize":
                    await self._greet(read)
                return read
            await self._refuse(*read)
        return None

    def _read(self, line: bytes) -> Frame | tuple[object, int, str]:
        if len(line) > self._longest:
            return None, frames.INVALID, f"A frame has at most {self._longest:,} bytes."
        try:
            said = _decoded(line)
        except (ValueError, RecursionError):
            return None, frames.PARSE, "That is not JSON."
        if not isinstance(said, dict):
            return None, frames.INVALID, "A message is an object."
        wrong = _wrong(said)
        return (said.get("id"), frames.INVALID, wrong) if wrong else _mended(said)

    async def _greet(self, frame: Frame) -> None:
        if "id" not in frame:
            return
        answer = greeting.answer(frame.get("params"), self._release)
        if answer is None:
            await self._refuse(frame["id"], frames.PARAMS, "initialize has a protocolVersion, which is a number.")
            return
        self.offered = greeting.offered(frame["params"])
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
            return frame["method"] == "session/cancel" and isinstance(given.get("sessionId"), str)
        if frame.get("method") == "session/prompt":
            self._prompts[_key(frame["id"])] = str(given.get("sessionId"))
            self._settled.clear()
        return True


def _decoded(line: bytes) -> Any:
    """JSON; also with half a character in it, which editors send where they cut a text in the middle of one."""
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError:
        if _HALF.search(line) is None:
            raise
    return _whole(json.loads(line.decode(), parse_constant=_refuse_constant, parse_float=_finite))


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no value of JSON.")


def _finite(digits: str) -> float:
    if math.isinf(number := float(digits)):
        raise ValueError(f"{digits} is too large a number.")
    return number


def _whole(value: Any) -> Any:
    """The same, with a sign in the place of half a character."""
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case list():
            return [_whole(each) for each in value]
        case dict():
            return {_whole(key): _whole(each) for key, each in value.items()}
        case _:
            return value


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
    """An answer whose error is none is one all the same: whoever waits for it must not wait for ever. What stands
    beside parameters is left out: nothing is made of it here, and the SDK takes it for some of them."""
    match said:
        case {"method": _, "params": {"_meta": _, **params}}:
            return {**said, "params": params}
        case {"method": _} | {"error": {"code": int(), "message": str()}}:
            return said
        case {"error": _}:
            return {**said, "error": {"code": frames.INTERNAL, "message": "The editor answered with something odd."}}
        case _:
            return said


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
