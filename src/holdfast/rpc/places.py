"""Places for what is worked on: so many at once, and a wait that ends where nothing moves."""

from __future__ import annotations

import asyncio


class Places:
    """Whoever wants one waits, unless none was taken or given back for `patience` seconds: then there is none."""

    def __init__(self, count: int, patience: float) -> None:
        self._free = asyncio.Semaphore(count)
        self._patience = patience
        self._moved = 0.0

    async def take(self) -> bool:
        """Whether there is a place now; it is taken."""
        loop = asyncio.get_running_loop()
        if self._free.locked():
            try:
                async with asyncio.timeout_at(self._moved + self._patience):
                    await self._free.acquire()
            except TimeoutError:
                return False
        else:
            await self._free.acquire()
        self._moved = loop.time()
        return True

    def give(self) -> None:
        """Give one back."""
        self._moved = asyncio.get_running_loop().time()
        self._free.release()
