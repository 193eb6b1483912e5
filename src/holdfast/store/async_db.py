"""AsyncSessionDB: the methods of SessionDB as coroutines.

Calls run on the threads of a small pool. Appends and steps that change a row or two go through group_commit.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Self, TypeVar

from holdfast import errors
from holdfast.store import async_mirror, executor, group_commit, notifications, write_step
from holdfast.store.db import SessionDB
from holdfast.store.driver import Driver

T = TypeVar("T")
HintHandler = Callable[[notifications.Hint], None]

THREADS = 4


class AsyncSessionDB(async_mirror.AsyncSessionBase):
    """A SessionDB for the tasks of one event loop. Closing it closes the SessionDB too."""

    def __init__(self, db: SessionDB, *, threads: int = THREADS) -> None:
        super().__init__(db, self)
        self.db = db
        self.lease_failures = db.lease_failures
        self.mail = async_mirror.AsyncMail(db.mail, self)
        self.contacts = async_mirror.AsyncContacts(db.contacts, self)
        self.memory = async_mirror.AsyncMemories(db.memory, self)
        self.permissions = async_mirror.AsyncPermissionRecords(db.permissions, self)
        self.processes = async_mirror.AsyncProcessLog(db.processes, self)
        self.blobs = async_mirror.AsyncBlobs(db.blobs, self)
        self.admin = async_mirror.AsyncAdmin(db.admin, self)
        self.notifications = NotificationHub(db.driver)
        self._pool = executor.LoopExecutor(threads, "holdfast-store", db.driver.write_timeout)
        self._writes = group_commit.GroupCommit(db.driver)
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def path(self) -> str:
        return self.db.path

    async def close(self) -> None:
        """Commit all pending writes and close the SessionDB. Later calls raise StoreClosed."""
        if self.db.driver.pid != os.getpid():
            return  # a forked child has none of the threads
        self._closed = True
        await self._writes.drain()
        await asyncio.to_thread(self.db.close)
        self._pool.close()
        self._writes.close()

    async def run(self, call: Callable[[], T]) -> T:
        """Run a short call on a thread of the pool."""
        self._check_open()
        return await self._pool.call(partial(contextvars.copy_context().run, call))

    def _check_open(self) -> None:
        if self.db.driver.pid != os.getpid():
            raise errors.StoreForked()  # a call would wait for threads that only the parent has
        if self._closed:
            raise errors.StoreClosed()

    async def share(self, step: write_step.WriteStep[T]) -> T:
        """Run a step, which may share its commit with the writes of other tasks."""
        self._check_open()
        return await self._writes.write(step)


async def await_or_release(acquiring: Coroutine[Any, Any, T], release: Callable[[T], Coroutine[Any, Any, object]]) -> T:
    """Await `acquiring`. If the task is cancelled meanwhile, wait for the result and release it."""
    task = asyncio.ensure_future(acquiring)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled() and task.exception() is None:
            releasing = asyncio.ensure_future(release(task.result()))
            while not releasing.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([releasing])
            if not releasing.cancelled():
                releasing.exception()  # retrieved, so that asyncio does not log it; an unreleased lease expires
        raise


class HintWaiter:
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
    """Distributes hints to the tasks of one event loop, from the first subscription until the store is closed.

    SQLite sends no hints, and PostgreSQL's may be lost: a waiting task always has a timeout after which it polls.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._started = False
        self._handlers: list[HintHandler] = []

    @contextmanager
    def listen(self, handler: HintHandler) -> Iterator[None]:
        """Call `handler` with each hint until the end of the block."""
        self._start()
        self._handlers.append(handler)
        try:
            yield
        finally:
            self._handlers.remove(handler)

    @contextmanager
    def expect(self, conversation_id: str, kind: notifications.HintKind) -> Iterator[HintWaiter]:
        """Yield an event for hints of one kind about one conversation."""
        expected = HintWaiter()

        def handler(hint: notifications.Hint) -> None:
            if hint.kind in (kind, "lost") and hint.is_about(conversation_id):
                expected.came.set()

        with self.listen(handler):
            yield expected

    def _start(self) -> None:
        if self._started:
            return
        loop = asyncio.get_running_loop()

        def handler(hint: notifications.Hint) -> None:
            # The loop may be closed before the store.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._dispatch, hint)

        self._driver.listen(handler)
        self._started = True

    def _dispatch(self, hint: notifications.Hint) -> None:
        for handler in tuple(self._handlers):
            handler(hint)
