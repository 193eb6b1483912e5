"""Calls that tasks of an event loop have made by threads, and how their results come back.

What a thread has to tell is told together with what others have: where many calls are under way, the loop is woken
once for several of them, and a thread that is done takes the next call without being asked.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from holdfast import errors

T = TypeVar("T")


class Call(NamedTuple):
    """A call, and who waits for it where."""

    work: Callable[[], Any]
    answered: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    overdue: float
    """When it has waited for a thread for as long as a server is tried."""


class Crossing:
    """At most so many calls at once, in the order they came in. `patience` is how long a server is tried: a call that
    waited longer for a thread fails with the next call that cannot reach the server."""

    def __init__(self, threads: int, name: str, patience: float) -> None:
        self._threads, self._patience = threads, patience
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._calls = deque[Call]()
        self._busy = 0
        self._changing = threading.Lock()
        self._done = deque[tuple[Call, Any, BaseException | None]]()
        self._telling: asyncio.AbstractEventLoop | None = None
        """The loop that was woken and has not looked yet."""

    async def call(self, work: Callable[[], T]) -> T:
        """What the call returns or raises. Cancelling the wait does not stop it."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[T] = loop.create_future()
        with self._changing:
            self._calls.append(Call(work, answered, loop, time.monotonic() + self._patience))
            more = self._busy < self._threads
            self._busy += more
        if more:
            self._pool.submit(self._work)
        return await answered

    def close(self) -> None:
        """Threads end when they are done with what was asked for."""
        self._pool.shutdown(wait=False)

    def _work(self) -> None:
        while True:
            with self._changing:
                if not self._calls:
                    self._busy -= 1
                    return
                call = self._calls.popleft()
            try:
                self._tell(call, call.work(), None)
            except BaseException as error:  # noqa: BLE001 -- it is theirs who wait, and nobody may wait for ever
                self._tell(call, None, error)
                if isinstance(error, errors.StoreUnreachable):
                    self._fail_overdue(error)

    def _fail_overdue(self, error: errors.StoreUnreachable) -> None:
        with self._changing:
            now, overdue = time.monotonic(), list[Call]()
            while self._calls and self._calls[0].overdue <= now:
                overdue.append(self._calls.popleft())
        for call in overdue:
            self._tell(call, None, error)

    def _tell(self, call: Call, result: Any, error: BaseException | None) -> None:
        self._done.append((call, result, error))
        if self._telling is not call.loop:
            self._telling = call.loop
            with suppress(RuntimeError):  # The loop is closed, and nobody waits any more.
                call.loop.call_soon_threadsafe(self._told)

    def _told(self) -> None:
        # First: whatever is put there after this line comes with a call of its own.
        self._telling = None
        while self._done:
            call, result, error = self._done.popleft()
            if call.answered.done() or call.loop.is_closed():
                continue
            if error is None:
                call.answered.set_result(result)
            elif isinstance(error, asyncio.CancelledError):
                call.answered.cancel()
            elif isinstance(error, StopIteration):
                call.answered.set_exception(RuntimeError("a call stopped an iteration that is not its own"))
            else:
                call.answered.set_exception(error)
