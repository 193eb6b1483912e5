"""What an editor is still to be told of a session, in order. One that reads slowly gets fewer, longer pieces."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple, TypeAlias

from acp import schema

from holdfast import events
from holdfast.acp import telling

LONG = 64
"""So many wait before pieces of a reply are put together."""


class Ready(NamedTuple):
    """Something to be told as it is."""

    update: telling.Update


class Shown(NamedTuple):
    """Something that a tool shows of its call."""

    update: schema.ToolCallProgress


class Look(NamedTuple):
    """The log may have more than was told."""


Item: TypeAlias = events.AnyEvent | Ready | Shown | Look


class Backlog:
    """Anybody puts, one takes."""

    def __init__(self) -> None:
        self._items = deque[Item]()
        self._some, self._none = asyncio.Event(), asyncio.Event()
        self._none.set()
        self._closed = False

    def put(self, item: Item) -> None:
        if self._closed:
            return
        last = self._items[-1] if self._items and (isinstance(item, Look) or len(self._items) >= LONG) else None
        if (longer := _joined(last, item)) is not None:
            self._items[-1] = longer
        else:
            self._items.append(item)
        self._none.clear()
        self._some.set()

    @property
    def is_empty(self) -> bool:
        return not self._items

    async def first(self) -> Item:
        """What is next; it stays here until it is `done`."""
        await self._some.wait()
        return self._items[0]

    def done(self) -> None:
        self._items.popleft()
        if not self._items:
            self._some.clear()
            self._none.set()

    def close(self) -> None:
        """Nobody takes any more: what is left is not told, and nobody waits for it."""
        self._closed = True
        self._items.clear()
        self._none.set()

    async def told(self) -> None:
        """Until nothing is left."""
        await self._none.wait()


def _joined(last: Item | None, item: Item) -> Item | None:
    """Two as one; None where they are two."""
    match last, item:
        case events.TextDelta(before), events.TextDelta(text):
            return events.TextDelta(before + text)
        case events.ReasoningDelta(before), events.ReasoningDelta(text):
            return events.ReasoningDelta(before + text)
        case events.ToolProgress(call, before), events.ToolProgress(same, text) if call == same:
            return events.ToolProgress(call, before + text)
        case Look(), Look():
            return item
        case _:
            return None
