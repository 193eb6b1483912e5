"""The writes of one event loop: appends, and steps that change a row or two.

On SQLite, writes that arrive while a commit is on its way to the disk share the next one. On PostgreSQL they run
concurrently on several connections; the appends to one conversation, and steps that name the same queue, run in their
order. Ordinary appends to different conversations share a statement (postgres/fast_append.py); an append that is left
out of it, because its conversation is locked or anything else is special, runs in a transaction of its own.

Each write is acknowledged after its commit. Cancelling the wait does not take a write back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from holdfast import errors, types
from holdfast.store import conversation_row, executor, log, write_step
from holdfast.store.driver import Driver, Tx

T = TypeVar("T")

MAX_GROUP = 256
# Concurrent writes, and so connections, of one process. A write that takes longer than BLOCKED_AFTER seconds most
# likely waits for a lock of another process; it does not count, so that it holds up no other conversation.
MAX_CONCURRENT = 8
BLOCKED_AFTER = 0.05
MAX_THREADS = 32
# Session ids whose conversation is remembered.
MAX_SESSIONS = 4096

_STEP = "step:"
"""The start of a queue's name that a step gave; other queues have the id of their conversation."""

Outcome = Any
"""What a step returned, or the error it raised."""


class Pending(NamedTuple):
    """A step, and the future of the task that waits for it."""

    step: write_step.WriteStep[Any]
    future: asyncio.Future[Any]
    deadline: float
    """From here on, by the loop's clock, it fails if the write before it has failed."""


class GroupCommit:
    """Runs the writes of one event loop in queues: one for everything on SQLite, one per conversation on PostgreSQL."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._concurrent = driver.concurrent_writes
        # Threads of their own: a long call on the store does not keep writes waiting.
        threads = MAX_THREADS if self._concurrent else 1
        self._threads = executor.LoopExecutor(threads, "holdfast-write", driver.write_timeout)
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)
        self._queues: dict[str, list[Pending]] = {}
        self._conversations: dict[str, str] = {}
        self._unresolved: list[tuple[str, Pending]] = []
        """Appends in the order they came, from the first one on whose conversation is not known."""
        self._ready: list[str] = []
        """Conversations with one append, to be written together with those of others."""
        self._flushing = False
        self._tasks = set[asyncio.Task[Any]]()

    async def write(self, step: write_step.WriteStep[T]) -> T:
        if self._concurrent and step.queue is None:
            return await asyncio.shield(self._start(self._in_thread(partial(write_step.execute, self._driver, step))))
        pending = self._pending(step)
        self._put(f"{_STEP}{step.queue}" if self._concurrent else "", pending)
        result: T = await pending.future
        return result

    async def append(self, request: log.AppendRequest) -> list[types.Receipt]:
        """Append; of one conversation, in the order of the calls, whichever of its session ids they name."""
        pending = self._pending(write_step.WriteStep("append", request, restores_leases=False))
        conversation = self._conversations.get(request.session_id) if self._concurrent else ""
        if conversation is None or self._unresolved:
            self._unresolved.append((request.session_id, pending))
            if len(self._unresolved) == 1:
                self._start(self._resolve())
        else:
            self._put_append(conversation, pending)
        receipts: list[types.Receipt] = await pending.future
        return receipts

    async def drain(self) -> None:
        """Wait until everything that was given is written."""
        while self._tasks:
            # The tasks are not awaited: cancelling this call must not cancel them.
            await asyncio.wait(self._tasks)

    def close(self) -> None:
        self._threads.close()

    def _pending(self, step: write_step.WriteStep[Any]) -> Pending:
        loop = asyncio.get_running_loop()
        return Pending(step, loop.create_future(), loop.time() + self._driver.write_timeout)

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- the conversation of an append ---------------------------------------------------------------

    async def _resolve(self) -> None:
        """Put appends into the queues of their conversations, in the order they came."""
        while self._unresolved:
            session_id, pending = self._unresolved[0]
            conversation = self._conversations.get(session_id)
            if conversation is None:
                conversation = await self._look_up(session_id, pending)
            self._unresolved.pop(0)
            if conversation is not None:
                self._put_append(conversation, pending)

    async def _look_up(self, session_id: str, pending: Pending) -> str | None:
        try:
            found = await self._in_thread(partial(self._conversation_of, session_id))
        except BaseException as error:  # noqa: BLE001 -- delivered to the task that awaits the append
            executor.settle(pending.future, error)
            self._unresolved[1:] = [each for each in self._unresolved[1:] if not self._fails(each[1], error)]
            return None
        if found is None:
            return session_id  # it does not exist, or the append creates it
        if len(self._conversations) >= MAX_SESSIONS:
            self._conversations.pop(next(iter(self._conversations)))
        self._conversations[session_id] = found
        return found

    def _conversation_of(self, session_id: str) -> str | None:
        try:
            return self._driver.read(lambda tx: conversation_row.look(tx, session_id).id)
        except errors.NoSuchSession:
            return None

    # --- the queues ----------------------------------------------------------------------------------

    def _put(self, name: str, pending: Pending) -> None:
        if name in self._queues:
            self._queues[name].append(pending)
        else:
            self._queues[name] = [pending]
            self._start(self._work_off(name))

    def _put_append(self, conversation: str, pending: Pending) -> None:
        if not self._concurrent or conversation in self._queues:
            self._put(conversation, pending)
            return
        self._queues[conversation] = [pending]
        self._ready.append(conversation)
        if not self._flushing:
            self._flushing = True
            self._start(self._flush())

    async def _flush(self) -> None:
        """Append to all conversations that are ready at once; a queue that has more is worked off on its own."""
        while self._ready:
            names, self._ready = self._ready[:MAX_GROUP], self._ready[MAX_GROUP:]
            single = [name for name in names if len(self._queues[name]) == 1]
            requests = [self._queues[name][0].step.run for name in single]
            try:
                outcomes = await self._threads.call(partial(self._driver.append_to_each, requests))
            except BaseException as error:  # noqa: BLE001 -- delivered to the tasks that await the appends
                outcomes = [error] * len(single)
            for name, outcome in zip(single, outcomes, strict=True):
                if outcome is not None:
                    executor.settle(self._queues[name].pop(0).future, outcome)
            for name in names:
                if self._queues[name]:
                    self._start(self._work_off(name))
                else:
                    del self._queues[name]
        self._flushing = False

    async def _work_off(self, name: str) -> None:
        queue = self._queues[name]
        # Steps on PostgreSQL run one by one: two processes with the same rows in another order would block each other.
        most = 1 if name.startswith(_STEP) else MAX_GROUP
        while queue:
            group = queue[:most]
            del queue[:most]
            try:
                outcomes = await self._in_thread(partial(self._commit, [each.step for each in group]))
            except BaseException as error:  # noqa: BLE001 -- delivered to the tasks that await the steps
                outcomes = [error] * len(group)
            for each, outcome in zip(group, outcomes, strict=True):
                executor.settle(each.future, outcome)
            if queue:
                queue[:] = [each for each in queue if not self._fails(each, outcomes[-1])]
        del self._queues[name]

    def _fails(self, pending: Pending, error: object) -> bool:
        """Fail a step that has waited as long as the one before it, which failed; return whether it did."""
        busy = isinstance(error, errors.StoreBusy | errors.StoreUnreachable)
        if busy and pending.deadline <= asyncio.get_running_loop().time():
            executor.settle(pending.future, error)
            return True
        return False

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if not self._concurrent:
            return await self._threads.call(work)
        async with self._slots:
            future = self._threads.submit(work)
            await asyncio.wait([future], timeout=BLOCKED_AFTER)
        return await future

    # --- in a thread ---------------------------------------------------------------------------------

    def _commit(self, steps: Sequence[write_step.WriteStep[Any]]) -> list[Outcome]:
        """Run the steps in one transaction; if the database refuses it because of one of them, run each alone."""
        if len(steps) == 1:
            return [self._run_alone(steps[0])]
        group = _Group(steps)
        try:
            return self._driver.write(steps[0].operation, group, durable=any(step.durable for step in steps))
        except write_step.STORE_WIDE as error:
            return [error] * len(steps)
        except Exception as error:  # noqa: BLE001 -- delivered to the tasks that await the steps
            if group.has_failed or isinstance(error, errors.StoreRefused | errors.LeasesUnavailable):
                return [self._run_alone(step) for step in steps]
            return [error] * len(steps)

    def _run_alone(self, step: write_step.WriteStep[Any]) -> Outcome:
        try:
            return write_step.execute(self._driver, step)
        except Exception as error:  # noqa: BLE001 -- delivered to the task that awaits the step
            return error


class _Group:
    """Several steps in one transaction, each in a savepoint: a step that raises is undone, and the others go on."""

    def __init__(self, steps: Sequence[write_step.WriteStep[Any]]) -> None:
        self._steps = steps
        self._retry_states: list[dict[Any, Any]] = [{} for _ in steps]
        self.lost = next((lost for step in steps if (lost := getattr(step.run, "lost", None))), None)
        self.has_failed = False
        """Whether a step failed in a way that has undone the whole transaction."""

    def __call__(self, tx: Tx) -> list[Outcome]:
        tx.shared = True
        return [self._run(tx, step, state) for step, state in zip(self._steps, self._retry_states, strict=True)]

    def _run(self, tx: Tx, step: write_step.WriteStep[Any], retry_state: dict[Any, Any]) -> Outcome:
        tx.operation, tx.retry_state = step.operation, retry_state
        try:
            with tx.savepoint():
                return step.run(tx)
        except errors.StoreError:
            self.has_failed = True
            raise
        except errors.HoldfastError as error:
            return error
        except BaseException:
            self.has_failed = True
            raise
