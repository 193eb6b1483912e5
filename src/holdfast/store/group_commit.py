"""The writes of one event loop: appends, and steps that change a row or two.

Writes that arrive while a transaction is on its way to the disk share the next one. SQLite has one transaction at a
time. PostgreSQL has several:

- Appends to different conversations share a statement (postgres/fast_append.py), which waits for no lock.
- Steps share a transaction, which waits for a lock only for a moment.
- A write that has to wait longer, or that needs more than the statement can do, runs in a transaction of its own, so
  that it delays no other.

Appends to one conversation, and steps that name the same queue, run in the order of the calls. Each write is
acknowledged after its commit. Cancelling the task that waits for a write does not cancel the write.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from holdfast import errors
from holdfast.store import conversation_row, executor, log, write_step
from holdfast.store.driver import Driver, Tx

T = TypeVar("T")

MAX_GROUP = 256
# On PostgreSQL. A savepoint for each of more than 64 steps would slow down the server.
MAX_STEPS = 32
MAX_GROUPS = 4
# A group that takes longer most likely waits for another process. It does not count towards MAX_GROUPS.
BLOCKED_AFTER = 0.05
MAX_THREADS = 32
# Session ids whose conversation is remembered.
MAX_SESSIONS = 4096
# After one of these, a write to the same queue most likely fails as well, after another `write_timeout` seconds.
UNAVAILABLE = (errors.StoreBusy, errors.StoreUnreachable, errors.StoreUnusable)

Outcome = Any
"""The result of a write, or the error it raised."""
_BLOCKED = object()
"""The outcome of a write that has to run in a transaction of its own."""


class Pending(NamedTuple):
    """A write, and the future of the task that waits for it."""

    step: write_step.WriteStep[Any]
    queue: str | None
    """Writes of one queue run one after the other."""
    future: asyncio.Future[Any]
    deadline: float
    """The time, by the loop's clock, from which on it fails together with the write before it in its queue."""


class _Lane:
    """Writes that wait for the next group."""

    def __init__(self, max_groups: int, max_size: int) -> None:
        self.max_groups, self._max_size = max_groups, max_size
        self.waiting = deque[Pending]()
        self.running = set[asyncio.Future[Any]]()
        """The calls that start or run a group, except blocked ones."""
        self.busy = set[str | None]()
        """Queues with a write that runs."""

    def take_group(self) -> list[Pending]:
        """Take the next writes, except those whose queue is busy."""
        group, skipped = list[Pending](), list[Pending]()
        while self.waiting and len(group) < self._max_size:
            pending = self.waiting.popleft()
            (skipped if pending.queue in self.busy else group).append(pending)
        self.waiting.extendleft(reversed(skipped))
        self.busy.update(each.queue for each in group if each.queue is not None)
        return group


class GroupCommit:
    """Runs the writes of one event loop."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._concurrent = driver.concurrent_writes
        # A separate thread pool: a long call on the store does not delay writes.
        threads = MAX_THREADS if self._concurrent else 1
        self._threads = executor.LoopExecutor(threads, "holdfast-write", driver.write_timeout)
        self._appends = self._steps = _Lane(1, MAX_GROUP)
        if self._concurrent:
            self._appends, self._steps = _Lane(MAX_GROUPS, MAX_GROUP), _Lane(MAX_GROUPS, MAX_STEPS)
        self._conversations: dict[str, str] = {}
        self._unresolved: list[tuple[str, Pending]] = []
        """The first append whose conversation is not known, and all later ones."""
        self._calls = set[asyncio.Future[Any]]()
        """Calls on other threads whose callbacks have not run yet."""

    async def write(self, step: write_step.WriteStep[T]) -> T:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._driver.write_timeout
        pending = Pending(step, step.queue if self._concurrent else None, loop.create_future(), deadline)
        if self._concurrent and isinstance(step.run, log.AppendRequest):
            self._put_append(step.run.session_id, pending)
        else:
            self._put(self._steps, pending)
        result: T = await pending.future
        return result

    async def drain(self) -> None:
        """Wait until all writes have ended."""
        while self._calls:
            # asyncio.wait does not cancel the calls if this task is cancelled.
            await asyncio.wait(self._calls)

    def close(self) -> None:
        self._threads.close()

    def _on_done(self, call: asyncio.Future[Any], callback: Callable[[asyncio.Future[Any]], None]) -> None:
        """Run a callback when a call ends. A task would not do: a program may cancel all tasks of its loop."""
        self._calls.add(call)
        call.add_done_callback(callback)
        call.add_done_callback(self._calls.discard)

    # --- the conversation of an append ---------------------------------------------------------------

    def _put_append(self, session_id: str, pending: Pending) -> None:
        """Queue an append. Appends to one conversation keep the call order, even under different session ids."""
        conversation = self._conversations.get(session_id)
        if conversation is not None and not self._unresolved:
            self._put(self._appends, pending._replace(queue=conversation))
            return
        self._unresolved.append((session_id, pending))
        if len(self._unresolved) == 1:
            self._resolve()

    def _resolve(self) -> None:
        """Queue appends up to the first whose conversation is not known; look up that of the others."""
        while self._unresolved and (conversation := self._conversations.get(self._unresolved[0][0])):
            _, pending = self._unresolved.pop(0)
            self._put(self._appends, pending._replace(queue=conversation))
        if not self._unresolved:
            return
        ids = [session_id for session_id, _ in self._unresolved[:MAX_GROUP]]
        call = self._threads.submit(partial(self._find_conversations, ids))
        self._on_done(call, partial(self._queue_resolved, ids))

    def _find_conversations(self, session_ids: list[str]) -> list[str | None]:
        queries = [("read_conversation", {"id": each}) for each in session_ids]
        found = self._driver.read(lambda tx: tx.batch(*queries))
        return [conversation_row.ConversationRow(*rows[0]).id if rows else None for rows in found]

    def _queue_resolved(self, session_ids: list[str], call: asyncio.Future[list[str | None]]) -> None:
        """Queue the appends whose conversations were looked up, in the order of the calls."""
        resolved, self._unresolved = self._unresolved[: len(session_ids)], self._unresolved[len(session_ids) :]
        try:
            found = call.result()
        except BaseException as error:  # noqa: BLE001 -- delivered to the tasks that await the appends
            for _, pending in resolved:
                executor.settle(pending.future, error)
            self._unresolved = [each for each in self._unresolved if not self._fail_overdue(each[1], error)]
        else:
            for (session_id, pending), conversation in zip(resolved, found, strict=True):
                if conversation is not None:
                    self._conversations[session_id] = conversation
                # Without a conversation, the append creates it or fails.
                self._put(self._appends, pending._replace(queue=conversation or session_id))
            while len(self._conversations) > MAX_SESSIONS:
                self._conversations.pop(next(iter(self._conversations)))
        self._resolve()

    # --- groups --------------------------------------------------------------------------------------

    def _put(self, lane: _Lane, pending: Pending) -> None:
        lane.waiting.append(pending)
        self._start_group(lane)

    def _start_group(self, lane: _Lane) -> None:
        if lane.waiting and len(lane.running) < lane.max_groups:
            start = asyncio.get_running_loop().create_future()
            lane.running.add(start)
            self._on_done(start, partial(self._run_group, lane))
            start.set_result(None)

    def _run_group(self, lane: _Lane, start: asyncio.Future[None]) -> None:
        # In a later step of the loop, so that tasks whose writes were just acknowledged can join with their next write.
        lane.running.discard(start)
        if not (group := lane.take_group()):
            return
        call = self._threads.submit(partial(self._commit, group))
        lane.running.add(call)
        self._start_group(lane)
        if self._concurrent:
            timer = asyncio.get_running_loop().call_later(BLOCKED_AFTER, self._stop_counting, lane, call)
            call.add_done_callback(lambda _: timer.cancel())
        self._on_done(call, partial(self._end_group, lane, group))

    def _stop_counting(self, lane: _Lane, call: asyncio.Future[Any]) -> None:
        """Let another group start although this one, which is blocked, has not ended."""
        lane.running.discard(call)
        self._start_group(lane)

    def _end_group(self, lane: _Lane, group: list[Pending], call: asyncio.Future[list[Outcome]]) -> None:
        lane.running.discard(call)
        queues = dict[object, list[Pending]]()
        for each in self._settle(lane, group, call):
            queues.setdefault(each.queue or each, []).append(each)
        for queue in queues.values():
            alone = self._threads.submit(partial(self._commit_queue, queue))
            self._on_done(alone, partial(self._end_group, lane, queue))
        self._start_group(lane)

    def _settle(self, lane: _Lane, group: list[Pending], call: asyncio.Future[list[Outcome]]) -> list[Pending]:
        """Deliver the outcomes of a group; return the writes that are blocked, whose queues stay busy."""
        try:
            outcomes = call.result()
        except BaseException as error:  # noqa: BLE001 -- delivered to the tasks that await the writes
            outcomes = [error] * len(group)
        blocked, failed = list[Pending](), dict[str | None, BaseException]()
        for each, outcome in zip(group, outcomes, strict=True):
            if outcome is _BLOCKED:
                blocked.append(each)
                continue
            executor.settle(each.future, outcome)
            lane.busy.discard(each.queue)
            if isinstance(outcome, UNAVAILABLE):
                failed[each.queue] = outcome
        if failed:
            lane.waiting = deque(each for each in lane.waiting if not self._fail_overdue(each, failed.get(each.queue)))
        return blocked

    def _fail_overdue(self, pending: Pending, error: BaseException | None) -> bool:
        """Fail a write that has waited as long as the one before it, which failed; return whether it did."""
        if isinstance(error, UNAVAILABLE) and pending.deadline <= asyncio.get_running_loop().time():
            executor.settle(pending.future, error)
            return True
        return False

    # --- in a thread ---------------------------------------------------------------------------------

    def _commit(self, group: Sequence[Pending]) -> list[Outcome]:
        if not self._concurrent or len(group) == 1:
            return self._commit_together(group)
        if not isinstance(group[0].step.run, log.AppendRequest):
            return self._commit_together(group, BLOCKED_AFTER)
        queues = Counter(each.queue for each in group)
        if len(queues) == 1:
            return self._commit_together(group)
        # Append to the conversations that have a single append in the group; other appends are blocked.
        single = [place for place, each in enumerate(group) if queues[each.queue] == 1]
        outcomes: list[Outcome] = [_BLOCKED] * len(group)
        found = self._driver.append_to_each([group[place].step.run for place in single])
        for place, receipts in zip(single, found, strict=True):
            outcomes[place] = _BLOCKED if receipts is None else receipts
        return outcomes

    def _commit_queue(self, group: Sequence[Pending]) -> list[Outcome]:
        """Run the writes of one queue; steps one by one, as two processes could wait for each other's rows."""
        if isinstance(group[0].step.run, log.AppendRequest):
            return self._commit_together(group)
        return self._run_each(group)

    def _commit_together(self, group: Sequence[Pending], lock_timeout: float | None = None) -> list[Outcome]:
        """Run writes in one transaction; if it fails because of one of them, run each alone.

        With `lock_timeout`, the longest wait for a lock in seconds, they are blocked in this case.
        """
        steps = [each.step for each in group]
        if len(steps) == 1:
            return self._run_each(group)
        together, durable = _Together(steps), any(step.durable for step in steps)
        try:
            return self._driver.write(steps[0].operation, together, durable=durable, lock_timeout=lock_timeout)
        except write_step.STORE_WIDE as error:
            if lock_timeout is None or not isinstance(error, errors.StoreBusy):
                return [error] * len(steps)
        except BaseException as error:  # noqa: BLE001 -- delivered to the tasks that await the writes
            if not together.has_failed and not isinstance(error, errors.StoreRefused | errors.LeasesUnavailable):
                return [error] * len(steps)
        return self._run_each(group) if lock_timeout is None else [_BLOCKED] * len(steps)

    def _run_each(self, group: Sequence[Pending]) -> list[Outcome]:
        """Run each write alone. Once the store is unavailable, the rest fail with the same error at once."""
        outcomes: list[Outcome] = []
        for each in group:
            try:
                outcomes.append(write_step.execute(self._driver, each.step))
            except UNAVAILABLE as error:
                return outcomes + [error] * (len(group) - len(outcomes))
            except BaseException as error:  # noqa: BLE001 -- delivered to the task that awaits the write
                outcomes.append(error)
        return outcomes


class _Together:
    """Several steps in one transaction, each in a savepoint: if one raises, only its changes are undone."""

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
        except BaseException as error:
            if isinstance(error, errors.HoldfastError) and not isinstance(error, errors.StoreError):
                return error
            self.has_failed = True
            raise
