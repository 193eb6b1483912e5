"""Server-sent events, and the progress of a turn as its HTTP connections see it. Nothing of this is stored.

The final answer comes from the store. The events of the turn only show it earlier.
"""

from __future__ import annotations

import asyncio

import msgspec

from holdfast import events
from holdfast.gateway import gateway_context

POLL_AFTER_TURN_SECONDS = 0.05
"""The interval between two reads of the outcome after the turn."""
KEEP_ALIVE_SECONDS = 15.0
DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"


def encode_event(data: object) -> bytes:
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


class TurnStream:
    """The text of one turn. Its connections read it at their own pace and may join late."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.answer = ""
        """The text of the current message."""
        self._is_stored = False
        self.over = False
        """Whether the turn has ended; the outcome is in the store soon."""
        self.readers = 0
        self.admission = asyncio.Lock()
        """Held while the request is stored, so that a repeated request finds it."""
        self.stopped = False
        self.is_written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Whether a connection has sent the whole answer; known once one has, or none is left."""
        self.settled = False
        """Whether the outcome is in the store."""
        self.version = 0
        self._changed = asyncio.Event()

    def on_event(self, event: events.AnyEvent) -> None:
        match event:
            case events.TextDelta(text):
                if self._is_stored and self.answer.strip():
                    self.pieces.append("\n\n")
                if self._is_stored:
                    self.answer, self._is_stored = "", False
                self.answer += text
                self.pieces.append(text)
            case events.MessageStored(role="assistant"):
                self._is_stored = True
            case events.TurnFinished():
                self.over = True
            case _:
                return
        self.notify()

    def rest(self, reply: str) -> str:
        """Return what a connection that sent all pieces still has to send of a reply."""
        if self.answer.strip() == reply.strip():
            return ""
        if reply.startswith(self.answer):
            return reply[len(self.answer) :]
        return f"\n\n{reply}" if self.pieces else reply

    def notify(self) -> None:
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, seen: int, seconds: float) -> None:
        """Wait until there is a newer version than `seen`, or the time is over."""
        if self.version == seen:
            await gateway_context.wait_event(self._changed, seconds)
