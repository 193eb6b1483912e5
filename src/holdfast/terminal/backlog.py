"""What a client is still to be told, in order. One that reads slowly gets fewer, longer pieces of a reply."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple, TypeAlias

from holdfast import events
from holdfast.terminal import happenings

LONG = 64
"""So many wait before pieces of a reply are put together."""


class Heard(NamedTuple):
    """An event, and the uid of the message whose turn it is of."""

    event: events.AnyEvent
    uid: str | None


class Look(NamedTuple):
    """Where the head is has to be looked up, and told where it is another; then this is done."""

    done: asyncio.Future[None]


Item: TypeAlias = Heard | Look | happenings.Told


class Backlog:
    """Anybody puts, one takes."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._some, self._none = asyncio.Event(), asyncio.Event()
        self._none.set()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Item) -> None:
        if len(self._items) >= LONG and (longer := _joined(self._items[-1], item)) is not None:
            self._items[-1] = longer
        else:
            self._items.append(item)
        self._none.clear()
        self._some.set()

    async def first(self) -> Item:
        """What is next; it stays here until it is `done`."""
        await self._some.wait()
        return self._items[0]

    def done(self) -> None:
        self._items.popleft()
        if not self._items:
            self._some.clear()
            self._none.set()

    async def told(self) -> None:
        """Until nothing is left."""
        await self._none.wait()


def _joined(last: Item, item: Item) -> Item | None:
    match last, item:
        case Heard(events.TextDelta(before), uid), Heard(events.TextDelta(text)):
            return Heard(events.TextDelta(before + text), uid)
        case Heard(events.ReasoningDelta(before), uid), Heard(events.ReasoningDelta(text)):
            return Heard(events.ReasoningDelta(before + text), uid)
        case _:
            return None
