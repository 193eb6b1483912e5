"""Threads that run blocking calls for the tasks of an event loop.

Results that are ready together are delivered with one wake-up of the loop, and a thread that is done takes the next
call itself. asyncio's executor wakes the loop for every call.
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


class _Call(NamedTuple):
    work: Callable[[], Any]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    deadline: float


class LoopExecutor:
    """Runs at most `threads` calls at once, in the order of submission.

    A call that has waited for a thread for more than `timeout` seconds fails as soon as another call finds the server
    unreachable: behind a server that is down no call waits much longer than the first one.
    """

    def __init__(self, threads: int, name: str, timeout: float) -> None:
        self._max_threads, self._timeout = threads, timeout
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._queue = deque[_Call]()
        self._running = 0
        self._lock = threading.Lock()
        self._results = deque[tuple[_Call, Any, BaseException | None]]()
        self._woken: asyncio.AbstractEventLoop | None = None
        """The loop that was woken and has not delivered the results yet."""

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Return a future for the result of the call. Cancelling the future does not stop the call."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        call = _Call(work, future, loop, time.monotonic() + self._timeout)
        with self._lock:
            self._queue.append(call)
            starts_thread = self._running < self._max_threads
            self._running += starts_thread
        if starts_thread:
            try:
                self._threads.submit(self._run)
            except RuntimeError as error:  # closed, or the system has no more threads
                with self._lock:
                    self._running -= 1
                    is_waiting = call in self._queue  # unless another thread has taken it
                    if is_waiting:
                        self._queue.remove(call)
                if is_waiting:
                    settle(future, error)
        return future

    async def call(self, work: Callable[[], T]) -> T:
        return await self.submit(work)

    def close(self) -> None:
        """End the threads when they have run what was submitted."""
        self._threads.shutdown(wait=False)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._running -= 1
                    return
                call = self._queue.popleft()
            try:
                self._deliver_later(call, call.work(), None)
            except BaseException as error:  # noqa: BLE001 -- delivered to the task that awaits it
                self._deliver_later(call, None, error)
                if isinstance(error, errors.StoreUnreachable):
                    self._fail_overdue(error)

    def _fail_overdue(self, error: errors.StoreUnreachable) -> None:
        with self._lock:
            now, overdue = time.monotonic(), list[_Call]()
            while self._queue and self._queue[0].deadline <= now:
                overdue.append(self._queue.popleft())
        for call in overdue:
            self._deliver_later(call, None, error)

    def _deliver_later(self, call: _Call, result: Any, error: BaseException | None) -> None:
        self._results.append((call, result, error))
        if self._woken is not call.loop:
            self._woken = call.loop
            with suppress(RuntimeError):  # the loop is closed
                call.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # Cleared first: a result that is added after this line wakes the loop again.
        self._woken = None
        while self._results:
            call, result, error = self._results.popleft()
            if not call.loop.is_closed():
                settle(call.future, result if error is None else error)


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
