"""Hints for the tasks of one event loop: who wants to be told of them, and who waits for one.

Where the database sends none, nobody is ever told: whoever waits gives a time after which to look all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from holdfast.store import notifications
from holdfast.store.driver import Driver

Heard = Callable[[notifications.Hint], None]


class Expected:
    """Whether a hint has come since the last wait."""

    def __init__(self) -> None:
        self.came = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Until one comes, or has come, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.came.wait()
        self.came.clear()


class Hearing:
    """Listens from when it is first wanted until the store is closed."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._begun = self.hears = False
        """Whether it was asked for hints; whether the database sends any."""
        self._told: list[Heard] = []

    @contextmanager
    def listen(self, heard: Heard) -> Iterator[None]:
        """Have `heard` called with each hint, to the end of the block."""
        self._told.append(heard)
        self._begin()
        try:
            yield
        finally:
            self._told.remove(heard)

    @contextmanager
    def expect(self, conversation_id: str, kind: notifications.Kind) -> Iterator[Expected]:
        """Hints of this kind about this conversation, for one who waits."""
        expected = Expected()

        def heard(hint: notifications.Hint) -> None:
            if hint.kind in (kind, "lost") and hint.is_about(conversation_id):
                expected.came.set()

        with self.listen(heard):
            yield expected

    def _begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        loop = asyncio.get_running_loop()

        def heard(hint: notifications.Hint) -> None:
            # The loop may be gone before the store is closed.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._spread, hint)

        self.hears = self._driver.listen(heard)

    def _spread(self, hint: notifications.Hint) -> None:
        for heard in tuple(self._told):
            heard(hint)
