"""Server-sent events, and what is overheard of a turn while it goes. Nothing of this is kept.

The answer itself comes from the store; what is overheard only shows it sooner, and is made up for at the end.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec

from holdfast import events

EVERY, SOON = 1.0, 0.05
"""Seconds until the store is asked what became of it: while its turn runs, and once that is over."""
KEEP_ALIVE = 15.0
DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"


def event(data: object) -> bytes:
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


class Overheard:
    """The turn of one arrival, as its connections see it: they read at their own pace and may join late."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.answer = ""
        """The words of the message that is being said."""
        self._stored = False
        self.over = False
        """Whether the turn has ended; what became of it stands in the store soon."""
        self.readers = 0
        self.admitting = asyncio.Lock()
        """Held while the request is taken in, so that the same request again finds it."""
        self.stopped = False
        self.written = asyncio.Event()
        """Set once a connection has been given the whole answer."""
        self.gone = asyncio.Event()
        """Set while nobody listens any more."""
        self.sent = False
        """Whether what became of it stands in the store."""
        self.version = 0
        self._woken = asyncio.Event()

    def hear(self, told: events.AnyEvent) -> None:
        match told:
            case events.TextDelta(text):
                if self._stored and self.answer.strip():
                    self.pieces.append("\n\n")
                if self._stored:
                    self.answer, self._stored = "", False
                self.answer += text
                self.pieces.append(text)
            case events.MessageStored(role="assistant"):
                self._stored = True
            case events.TurnFinished():
                self.over = True
            case _:
                return
        self.wake()

    def rest(self, reply: str) -> str:
        """What is still to be said, so that whoever has heard everything has the reply."""
        if self.answer.strip() == reply.strip():
            return ""
        if reply.startswith(self.answer):
            return reply[len(self.answer) :]
        return f"\n\n{reply}" if self.pieces else reply

    def wake(self) -> None:
        self.version += 1
        self._woken.set()
        self._woken = asyncio.Event()

    async def wait(self, seen: int, seconds: float) -> None:
        """Until there is something newer than `seen`, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.version == seen:
                    await self._woken.wait()
