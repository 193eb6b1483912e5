"""Approval requests in the chat: one after the other, each answered with a letter or a word.

Text typed before a request appeared is not an answer to it and returns to the prompt afterwards. So does a line that is
not an answer, unless it is a command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from holdfast import events

ANSWERS: dict[str, events.Answered] = {
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
BY = "at the terminal"


class OtherLine(msgspec.Struct, frozen=True):
    """A line that is not an answer."""

    line: str


Reply = events.Approve | OtherLine | Literal["detail", "stop"] | None

ReadLine = Callable[[str], Awaitable[str | None]]
"""Shows a text and returns the line typed after it; None for Ctrl-C."""


class ApprovalQueue:
    """The open requests, until they are settled by any front end."""

    def __init__(self) -> None:
        self._requests: asyncio.Queue[events.ApprovalAsked] = asyncio.Queue()
        self._open: dict[str, asyncio.Event] = {}

    def handle(self, event: events.AnyEvent) -> None:
        """Take note of an event of the conversation."""
        if isinstance(event, events.ApprovalAsked):
            self._open[event.request_id] = asyncio.Event()
            self._requests.put_nowait(event)
        elif isinstance(event, events.ApprovalSettled) and event.request_id in self._open:
            self._open.pop(event.request_id).set()

    def clear(self) -> None:
        """Forget all requests, because the conversation is left."""
        for settled in self._open.values():
            settled.set()
        self._open.clear()

    async def next(self) -> events.ApprovalAsked:
        """Wait for the next open request."""
        while (asked := await self._requests.get()).request_id not in self._open:
            pass
        return asked

    async def ask(self, asked: events.ApprovalAsked, read_line: ReadLine) -> Reply:
        """Ask once and return what was typed; None if the request was settled elsewhere."""
        settled = self._open.get(asked.request_id)
        if settled is None:
            return None
        typing = asyncio.ensure_future(read_line(question_text(asked)))
        elsewhere = asyncio.create_task(settled.wait())
        try:
            await asyncio.wait([typing, elsewhere], return_when=asyncio.FIRST_COMPLETED)
        finally:
            typing.cancel()
            elsewhere.cancel()
            await asyncio.wait([typing, elsewhere])
        if typing.cancelled():
            return None
        line = typing.result()
        return "stop" if line is None else parse_reply(line, asked.request_id)


def question_text(asked: events.ApprovalAsked) -> str:
    """Return the prompt that lists the possible answers."""
    lasting = ", c this conversation, a always" if asked.remembers else ""
    return f"Allow? y once{lasting}, n no, d details > "


def parse_reply(line: str, request_id: str) -> Reply:
    """Parse a typed answer; the model is sent the text after a no."""
    word, _, rest = line.strip().partition(" ")
    word = word.lower().rstrip(",:.;")
    if word in DETAIL and not rest:
        return "detail"
    answer = ANSWERS.get(word)
    if answer is None or (rest.strip() and answer != "deny"):
        return OtherLine(line)
    reason = rest.strip().encode("utf-8", "replace").decode()
    return events.Approve(request_id, answer, BY, reason)
