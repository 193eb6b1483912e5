"""AsyncSessionDB: the methods of SessionDB as coroutines.

Calls run on the threads of a small pool. Appends and steps that change a row or two go through group_commit.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self, TypeVar

from holdfast import errors, types
from holdfast.store import async_mirror, executor, group_commit, notification_hub, write_step
from holdfast.store.db import SessionDB

T = TypeVar("T")

THREADS = 4


class AsyncSessionDB(async_mirror.AsyncSessionBase):
    """A SessionDB for the tasks of one event loop. Closing it closes the SessionDB too."""

    def __init__(self, db: SessionDB, *, threads: int = THREADS) -> None:
        super().__init__(db, self)
        self.db = db
        self.mail = async_mirror.AsyncMail(db.mail, self)
        self.contacts = async_mirror.AsyncContacts(db.contacts, self)
        self.memory = async_mirror.AsyncMemories(db.memory, self)
        self.permissions = async_mirror.AsyncPermissions(db.permissions, self)
        self.processes = async_mirror.AsyncProcesses(db.processes, self)
        self.blobs = async_mirror.AsyncBlobs(db.blobs, self)
        self.admin = async_mirror.AsyncAdmin(db.admin, self)
        self.notifications = notification_hub.NotificationHub(db.driver)
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
        """Write everything that was given to append or to share, then close; later calls raise StoreClosed."""
        if self.db.driver.pid != os.getpid():
            return  # its threads are the parent's
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

    # --- appends -------------------------------------------------------------------------------------

    async def append_message(
        self,
        session_id: str | None,
        *,
        role: types.Role,
        content: types.Content = "",
        uid: str | None = None,
        tool_calls: Sequence[types.ToolCall | Mapping[str, Any]] = (),
        tool_call_id: str | None = None,
        at: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        expect_head: bool = False,
        create: types.NewConversation | None = None,
        lease: types.Lease | None = None,
    ) -> types.Receipt:
        """As SessionDB.append_message. Cancelling the wait does not take the message back: it is written once."""
        message = types.NewMessage(
            role=role,
            content=content,
            uid=uid,
            tool_calls=tool_calls,
            tool_call_id=tool_call_id,
            at=at,
            metadata=metadata,
        )
        receipts = await self.append_messages(
            session_id, [message], expect_head=expect_head, create=create, lease=lease
        )
        return receipts[0]

    async def append_messages(
        self,
        session_id: str | None,
        messages: Sequence[types.NewMessage | Mapping[str, Any]],
        *,
        expect_head: bool = False,
        create: types.NewConversation | None = None,
        lease: types.Lease | None = None,
    ) -> list[types.Receipt]:
        """As SessionDB.append_messages. A batch is written as a whole and may share its commit with others."""
        self._check_open()
        if messages in ([], ()):
            return []
        request = self.db.append_step(session_id, messages, expect_head=expect_head, create=create, lease=lease)
        return await self._writes.append(request)

    async def share(self, step: write_step.WriteStep[T]) -> T:
        """Run a small step, which may share its commit with the steps of other tasks."""
        self._check_open()
        return await self._writes.write(step)


async def kept(taking: Coroutine[Any, Any, T], give_back: Callable[[T], Coroutine[Any, Any, object]]) -> T:
    """Await `taking`; a task that is cancelled meanwhile gives the result back before it ends."""
    task = asyncio.ensure_future(taking)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled() and task.exception() is None:
            back = asyncio.ensure_future(give_back(task.result()))
            while not back.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([back])
            if not back.cancelled():
                back.exception()  # retrieved, so that asyncio does not log it; a lease that was not released expires
        raise
