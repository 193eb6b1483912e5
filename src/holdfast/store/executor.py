"""Threads that run blocking calls for the tasks of an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from holdfast import errors

T = TypeVar("T")


class LoopExecutor:
    """Runs at most `threads` calls at once, in the order of submission.

    A call that has waited for a thread for more than `timeout` seconds fails if the call before it found the server
    unreachable: behind a server that is down no call waits much longer than the first one.
    """

    def __init__(self, threads: int, name: str, timeout: float) -> None:
        self._timeout = timeout
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._unreachable: errors.StoreUnreachable | None = None
        """The error of the last call, if it found the server unreachable."""

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Return a future for the result of the call. Cancelling the future does not stop the call."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        try:
            self._threads.submit(self._run, work, future, time.monotonic() + self._timeout)
        except RuntimeError as error:  # closed, or the system has no more threads
            settle(future, error)
        return future

    async def call(self, work: Callable[[], T]) -> T:
        return await self.submit(work)

    def close(self) -> None:
        """End the threads when they have run what was submitted."""
        self._threads.shutdown(wait=False)

    def _run(self, work: Callable[[], Any], future: asyncio.Future[Any], deadline: float) -> None:
        outcome: Any = self._unreachable
        if outcome is None or time.monotonic() < deadline:
            try:
                outcome = work()
            except BaseException as error:  # noqa: BLE001 -- delivered to the task that awaits it
                outcome = error
            self._unreachable = outcome if isinstance(outcome, errors.StoreUnreachable) else None
        with suppress(RuntimeError):  # the loop is closed
            future.get_loop().call_soon_threadsafe(settle, future, outcome)


def settle(future: asyncio.Future[Any], outcome: Any) -> None:
    """Resolve a future with a result or an exception, unless its task has stopped waiting."""
    if future.done():
        return
    if isinstance(outcome, asyncio.CancelledError):
        future.cancel()
    elif isinstance(outcome, StopIteration):
        # A future does not accept StopIteration, and its task would wait for ever.
        future.set_exception(RuntimeError("The call raised StopIteration."))
    elif isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
