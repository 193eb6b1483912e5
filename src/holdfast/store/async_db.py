"""AsyncSessionDB: the same names as SessionDB, awaited. The only bridge between the two worlds.

Every call runs on a thread of a small pool. Appends wait for each other a moment: those that arrive
while a commit is on its way to the disk share the next one. Each is acknowledged only after its commit.
Where a conversation is in somebody else's hands, its appends wait beside the others, in their order.
So do small steps: what arrives from outside, leases and claims, and what became of things.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar

from holdfast import errors, types
from holdfast.store import async_mirror, executor, group_commit, log, notification_hub, together, write_step
from holdfast.store.db import SessionDB

P = ParamSpec("P")
T = TypeVar("T")

GROUP = 256
THREADS = 4
# Conversations that are waited for at once.
BESIDE = 32

Step = log.Append
Outcome = together.Outcome
Commit = Callable[[list[Step]], list[Outcome]]


class Waiting(NamedTuple):
    """An append, and who waits for its receipts."""

    step: Step
    acknowledged: asyncio.Future[list[types.Receipt]]
    until: float
    """When it has waited long enough for others to be done."""


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
        self.hearing = notification_hub.NotificationHub(db.driver)
        self._pool = executor.Crossing(threads, "holdfast-store", db.driver.write_timeout)
        # Appends have a thread of their own: no long call keeps them waiting.
        self._appender = ThreadPoolExecutor(1, thread_name_prefix="holdfast-append")
        self._beside = ThreadPoolExecutor(BESIDE, thread_name_prefix="holdfast-beside")
        self._waiting: list[Waiting] = []
        # By conversation, as far as it is known: what waits for one that others have, or write to.
        self._lanes: dict[str, list[Waiting]] = {}
        self._lane_tasks: set[asyncio.Task[None]] = set()
        self._flusher: asyncio.Task[None] | None = None
        self._small = group_commit.Group(db.driver)
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """What was given to append, or shares commits, is written first; whoever comes later gets StoreClosed."""
        if self.db.driver.pid != os.getpid():
            return  # its threads are the parent's
        self._closed = True
        # Not awaited themselves: cancelling the close must not cancel what others wait for.
        if self._flusher is not None:
            await asyncio.wait([self._flusher])
        if self._lane_tasks:
            await asyncio.wait(self._lane_tasks)
        await self._small.drain()
        await asyncio.to_thread(self.db.close)
        for threads in (self._appender, self._beside):
            threads.shutdown(wait=False)
        self._pool.close()
        self._small.close()

    async def run(self, call: Callable[[], T]) -> T:
        """Any short call on the store, on one of its threads."""
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
        expect_head: bool = False,
        create: types.NewConversation | None = None,
        lease: types.Lease | None = None,
    ) -> types.Receipt:
        """As SessionDB.append_message. Cancelling the wait does not take the message back: it is written
        once, as if nobody had stopped waiting."""
        message = types.NewMessage(
            role=role, content=content, uid=uid, tool_calls=tool_calls, tool_call_id=tool_call_id, at=at
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
        """As SessionDB.append_messages: the batch shares its fate, and its commit with other appends."""
        self._check_open()
        if messages in ([], ()):
            return []
        step = self.db.append_step(session_id, messages, expect_head=expect_head, create=create, lease=lease)
        loop = asyncio.get_running_loop()
        acknowledged: asyncio.Future[list[types.Receipt]] = loop.create_future()
        self._waiting.append(Waiting(step, acknowledged, loop.time() + self.db.driver.write_timeout))
        if self._flusher is None or self._flusher.done():
            self._flusher = loop.create_task(self._flush())
        return await acknowledged

    async def _flush(self) -> None:
        while self._waiting:
            taken, self._waiting = self._waiting[:GROUP], self._waiting[GROUP:]
            group = await self._ahead(taken)
            outcomes = await self._committed(self._appender, group, self._commit) if group else []
            held = list[Waiting]()
            for each, outcome in zip(group, outcomes, strict=True):
                if isinstance(outcome, together.Held):
                    held.append(each)
                else:
                    _settle(each.acknowledged, outcome)
            for each, name in await self._placed(held):
                self._put_beside(each, name)
            if outcomes and isinstance(outcomes[0], errors.StoreUnreachable):
                self._give_up(self._waiting, outcomes[0])

    async def _ahead(self, taken: list[Waiting]) -> list[Waiting]:
        """Those that go at once. Beside go those of a conversation that is waited for already, or that others write to
        and so may have to be; but none goes beside another of its conversation that goes at once."""
        if not self.db.driver.asks_plainly:
            return taken
        alone = len(taken) == 1 and not self._lanes
        placed = [(taken[0], taken[0].step.session_id)] if alone else await self._placed(taken)
        ahead, going = list[Waiting](), set[str]()
        for each, name in placed:
            if name in going or (name not in self._lanes and not each.step.shares()):
                going.add(name)
                ahead.append(each)
            else:
                self._put_beside(each, name)
        return ahead

    async def _placed(self, taken: list[Waiting]) -> list[tuple[Waiting, str]]:
        """Each with the conversation it goes to. None of them where the server cannot be reached: then they fail."""
        try:
            return [(each, await self._lane_of(each.step)) for each in taken]
        except errors.StoreUnreachable as error:
            for each in taken:
                _settle(each.acknowledged, error)
            self._give_up(self._waiting, error)
            return []

    async def _lane_of(self, step: Step) -> str:
        """The conversation it goes to: whatever ids of it a caller uses, its messages are stored in their order."""
        if step.conversation_id is not None:
            return step.conversation_id
        try:
            return (await self.run(partial(self.db.snapshot, step.session_id))).conversation_id
        except errors.StoreUnreachable:
            raise
        except errors.HoldfastError:
            return step.session_id

    def _put_beside(self, each: Waiting, name: str) -> None:
        if name not in self._lanes:
            self._lanes[name] = []
            task = asyncio.get_running_loop().create_task(self._wait_beside(name))
            self._lane_tasks.add(task)
            task.add_done_callback(self._lane_tasks.discard)
        self._lanes[name].append(each)

    async def _wait_beside(self, name: str) -> None:
        lane = self._lanes[name]
        while lane:
            group = lane[:GROUP]
            del lane[:GROUP]
            outcomes = await self._committed(self._beside, group, self._commit_patiently)
            for each, outcome in zip(group, outcomes, strict=True):
                _settle(each.acknowledged, outcome)
            self._give_up(lane, errors.StoreBusy())
        del self._lanes[name]

    def _give_up(self, waiting: list[Waiting], error: errors.StoreError) -> None:
        """Fail the appends that have waited for as long as any may, while another one was tried in vain."""
        now = asyncio.get_running_loop().time()
        while waiting and waiting[0].until <= now:
            _settle(waiting.pop(0).acknowledged, error)

    async def _committed(self, threads: ThreadPoolExecutor, group: list[Waiting], commit: Commit) -> list[Outcome]:
        steps = [each.step for each in group]
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, commit, steps)
        except BaseException as error:  # noqa: BLE001 -- it is theirs who wait, and nobody may wait for ever
            return [error] * len(group)

    def _commit(self, steps: list[Step]) -> list[Outcome]:
        """One transaction for all that wait for nobody; what one caller did wrong fails that caller only."""
        outcomes = self._tried(together.Passing(steps), steps, self._commit)
        unclear = any(isinstance(outcome, together.Held) and not outcome.certain for outcome in outcomes)
        return _one_by_one(steps, self._commit) if unclear else outcomes

    def _commit_patiently(self, steps: list[Step]) -> list[Outcome]:
        return self._tried(together.Together(steps), steps, self._commit_patiently)

    def _tried(self, group: together.Together, steps: list[Step], commit: Commit) -> list[Outcome]:
        try:
            return self.db.driver.write("append", group)
        except errors.HoldfastError as error:
            if len(steps) > 1 and isinstance(error, errors.StoreRefused | errors.LeasesUnavailable):
                # The database refused the group as a whole: find the one it meant.
                return _one_by_one(steps, commit)
            return [error] * len(steps)

    async def share(self, step: write_step.WriteStep[T]) -> T:
        """A small step, which shares a commit with those of other tasks."""
        self._check_open()
        return await self._small.write(step)


async def kept(taking: Coroutine[Any, Any, T], give_back: Callable[[T], Coroutine[Any, Any, object]]) -> T:
    """Take what must be given back: whoever is cancelled meanwhile gives it back first, if it was taken."""
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
                back.exception()  # What could not be given back runs out by itself.
        raise


def _one_by_one(steps: list[Step], commit: Commit) -> list[Outcome]:
    """Behind one that could not be written, none of its conversation is."""
    outcomes: list[Outcome] = []
    held: set[str] = set()
    for step in steps:
        (outcome,) = [together.Held(True)] if step.session_id in held else commit([step])
        if isinstance(outcome, together.Held):
            held.add(step.session_id)
        outcomes.append(outcome)
    return outcomes


def _settle(acknowledged: asyncio.Future[list[types.Receipt]], outcome: Outcome) -> None:
    if acknowledged.done():
        return
    if isinstance(outcome, asyncio.CancelledError):
        acknowledged.cancel()
    elif isinstance(outcome, BaseException):
        acknowledged.set_exception(outcome)
    elif isinstance(outcome, list):
        acknowledged.set_result(outcome)
