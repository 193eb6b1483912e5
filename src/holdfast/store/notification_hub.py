"""Distribute hints to the tasks of one event loop.

SQLite sends no hints, and PostgreSQL's may be lost: a waiting task always has a timeout after which it polls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from holdfast.store import notifications
from holdfast.store.driver import Driver

Handler = Callable[[notifications.Hint], None]


class Expected:
    """An event that is set by a matching hint."""

    def __init__(self) -> None:
        self.came = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Wait for a hint since the last wait, at most this long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.came.wait()
        self.came.clear()


class NotificationHub:
    """Listens to the database from the first subscription until the store is closed."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._started = False
        self._handlers: list[Handler] = []

    @contextmanager
    def listen(self, handler: Handler) -> Iterator[None]:
        """Call `handler` with each hint until the end of the block."""
        self._handlers.append(handler)
        self._start()
        try:
            yield
        finally:
            self._handlers.remove(handler)

    @contextmanager
    def expect(self, conversation_id: str, kind: notifications.Kind) -> Iterator[Expected]:
        """Yield an event for hints of one kind about one conversation."""
        expected = Expected()

        def handler(hint: notifications.Hint) -> None:
            if hint.kind in (kind, "lost") and hint.is_about(conversation_id):
                expected.came.set()

        with self.listen(handler):
            yield expected

    def _start(self) -> None:
        if self._started:
            return
        self._started = True
        loop = asyncio.get_running_loop()

        def handler(hint: notifications.Hint) -> None:
            # The loop may be closed before the store.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._dispatch, hint)

        self._driver.listen(handler)

    def _dispatch(self, hint: notifications.Hint) -> None:
        for handler in tuple(self._handlers):
            handler(hint)
