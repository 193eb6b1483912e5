"""Places for what is worked on: so many at once, and a wait that ends where nothing moves."""

from __future__ import annotations

import asyncio


class Places:
    """Whoever wants one waits, unless none was taken or given back for `patience` seconds: then there is none.

    Nor is there one while more than `size` bytes are kept of what was done and could not be told yet. One task takes
    places; anybody gives them back.
    """

    def __init__(self, count: int, patience: float, size: int = 0) -> None:
        self._free, self._patience, self._size = count, patience, size
        self._kept = 0
        self._moved = 0.0
        self._given = asyncio.Event()

    async def take(self) -> bool:
        """Whether there is a place now; it is taken."""
        while not self._free or self._kept > self._size:
            self._given.clear()
            try:
                async with asyncio.timeout_at(self._moved + self._patience):
                    await self._given.wait()
            except TimeoutError:
                return False
        self._free -= 1
        self._moved = asyncio.get_running_loop().time()
        return True

    def give(self) -> None:
        """Give one back."""
        self._free += 1
        self._move()

    def keep(self, size: int) -> None:
        """So many bytes more are kept."""
        self._kept += size

    def told(self, size: int) -> None:
        """So many bytes are not kept any more."""
        self._kept -= size
        self._move()

    def _move(self) -> None:
        self._moved = asyncio.get_running_loop().time()
        self._given.set()
