"""Questions of tools at the terminal: one after the other, each answered by a letter or a word.

What was typed before a question was shown is not an answer to it: it is back at the prompt afterwards. So is a line
that is none, unless it is a command.
"""

from __future__ import annotations

import asyncio
from typing import Literal, Protocol

import msgspec

from holdfast import events

WORDS: dict[str, events.Answered] = {
    "y": "once",
    "yes": "once",
    "once": "once",
    "c": "conversation",
    "conversation": "conversation",
    "a": "always",
    "always": "always",
    "n": "deny",
    "no": "deny",
    "deny": "deny",
}
DETAIL = ("d", "detail", "details")


class Other(msgspec.Struct, frozen=True):
    """A line that is no answer."""

    line: str


Typed = events.Approve | Other | Literal["detail", "stop"] | None


class Keyboard(Protocol):
    """Where answers are typed."""

    async def line(self, words: str) -> str | None:
        """A line, typed after this is called; None: Ctrl-C."""


class Questions:
    """What is asked, until it is settled, here or elsewhere."""

    def __init__(self) -> None:
        self._asked: asyncio.Queue[events.ApprovalAsked] = asyncio.Queue()
        self._open: dict[str, asyncio.Event] = {}

    def heard(self, event: events.AnyEvent) -> None:
        """To be told of every event."""
        if isinstance(event, events.ApprovalAsked):
            self._open[event.request_id] = asyncio.Event()
            self._asked.put_nowait(event)
        elif isinstance(event, events.ApprovalSettled) and event.request_id in self._open:
            self._open.pop(event.request_id).set()

    def leave(self) -> None:
        """Nobody is there to answer them any more."""
        for settled in self._open.values():
            settled.set()
        self._open.clear()

    async def next(self) -> events.ApprovalAsked:
        """The next one that is still open."""
        while (asked := await self._asked.get()).request_id not in self._open:
            pass
        return asked

    async def answer(self, asked: events.ApprovalAsked, keyboard: Keyboard) -> Typed:
        """What was typed; None when it was settled elsewhere."""
        settled = self._open.get(asked.request_id)
        if settled is None:
            return None
        typing, elsewhere = asyncio.create_task(keyboard.line(ask(asked))), asyncio.create_task(settled.wait())
        try:
            await asyncio.wait([typing, elsewhere], return_when=asyncio.FIRST_COMPLETED)
        finally:
            typing.cancel()
            elsewhere.cancel()
            await asyncio.wait([typing, elsewhere])
        if typing.cancelled():
            return None
        line = typing.result()
        return "stop" if line is None else understood(line, asked.request_id)


def ask(asked: events.ApprovalAsked) -> str:
    """What can be answered."""
    lasting = ", c this conversation, a always" if asked.remembers else ""
    return f"Allow it? y once{lasting}, n no, d all of it > "


def understood(line: str, request_id: str) -> Typed:
    """An answer from what was typed; what comes after a no is told to the model."""
    word, _, rest = line.strip().partition(" ")
    word = word.lower().rstrip(",:.;")
    if word in DETAIL and not rest:
        return "detail"
    answer = WORDS.get(word)
    if answer is None or (rest.strip() and answer != "deny"):
        return Other(line)
    reason = rest.strip().encode("utf-8", "replace").decode()
    return events.Approve(request_id, answer, "at the terminal", reason)
