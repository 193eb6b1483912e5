"""What another program is still to be told, in order: anybody adds, one takes.

What can be said shorter where much waits depends on who is told, and is decided there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Backlog(Generic[T]):
    """Things that wait to be told."""

    def __init__(self) -> None:
        self._items = deque[T]()
        self._some = asyncio.Event()
        self._taken = 0
        self._waiting = deque[tuple[int, asyncio.Future[None]]]()
        self._closed = False

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: T) -> None:
        if not self._closed:
            self._items.append(item)
            self._some.set()

    async def first(self) -> T:
        """What is next; it stays here until it is `done`."""
        await self._some.wait()
        return self._items[0]

    def done(self) -> None:
        self._items.popleft()
        self._taken += 1
        if not self._items:
            self._some.clear()
        while self._waiting and (not self._items or self._waiting[0][0] <= self._taken):
            _, told = self._waiting.popleft()
            if not told.done():
                told.set_result(None)

    def close(self) -> None:
        """Nobody takes any more: what is left is not told, and nobody waits for it."""
        self._closed = True
        self._items.clear()
        self._some.clear()
        for _, told in self._waiting:
            if not told.done():
                told.set_result(None)
        self._waiting.clear()

    async def told(self) -> None:
        """Until all is told that waits now. What comes after it may still wait."""
        if self._items:
            told = asyncio.get_running_loop().create_future()
            self._waiting.append((self._taken + len(self._items), told))
            await told

    async def told_all(self) -> None:
        """Until nothing is left to tell."""
        while self._items:
            await self.told()
