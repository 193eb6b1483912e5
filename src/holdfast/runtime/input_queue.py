"""What was typed and is not carried out yet, in its order; any of it can be taken back."""

from __future__ import annotations

import asyncio
from collections import deque

from holdfast import events


class Lines:
    """Lines behind the one that is being carried out."""

    def __init__(self) -> None:
        self._waiting: deque[events.Submit] = deque()
        self._came = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def waiting(self) -> list[events.Submit]:
        """Each as if it were a message: most are."""
        return list(self._waiting)

    def add(self, line: str) -> None:
        self._waiting.append(events.Submit(line))
        self._came.set()

    def drop(self, line: events.Submit) -> bool:
        """Take this very line back; whether it still waited. Another of the same words stays."""
        for place, each in enumerate(self._waiting):
            if each is line:
                del self._waiting[place]
                return True
        return False

    async def next(self) -> str:
        while not self._waiting:
            self._came.clear()
            await self._came.wait()
        return self._waiting.popleft().text
