"""Small steps of many tasks that share a commit: those that come while one is on its way to the disk share the next.

For steps that change a row or two and refuse, if they do, before they change anything: then whoever is refused is
alone with that. Appends, which wait for their conversations in order, have `together`. Each is acknowledged only
after its commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

from holdfast import errors
from holdfast.store import executor, write_step
from holdfast.store.driver import Driver, Tx

T = TypeVar("T")

MOST = 256
BESIDE = 16

Outcome = Any
"""What a step returned, or the error it raised."""


class Waiting(NamedTuple):
    """A step, and who waits for it."""

    step: write_step.WriteStep[Any]
    acknowledged: asyncio.Future[Any]
    overdue: float
    """When it has waited for as long as a server is tried."""


class Group:
    """The small steps of a process. Those that others are in the way of are done beside, and keep nobody waiting."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        # Threads of their own: no long call keeps these waiting.
        self._writers = ThreadPoolExecutor(driver.writers, thread_name_prefix="holdfast-small")
        self._most = driver.writers
        # They wait for rows that others have; whoever reads does not wait for them.
        self._beside = executor.Crossing(BESIDE, "holdfast-small-beside", driver.write_timeout)
        self._waiting: list[Waiting] = []
        self._flushers = set[asyncio.Task[None]]()
        self._flushing = 0
        self._alone = set[asyncio.Task[None]]()

    async def write(self, step: write_step.WriteStep[T]) -> T:
        """Cancelling the wait does not take the step back: it is done once, as if nobody had stopped waiting."""
        loop = asyncio.get_running_loop()
        acknowledged: asyncio.Future[T] = loop.create_future()
        self._waiting.append(Waiting(step, acknowledged, loop.time() + self._driver.write_timeout))
        # Counted, as a task is done somewhat later than what it does.
        if self._flushing < self._most:
            self._flushing += 1
            _keep(self._flushers, loop.create_task(self._flush()))
        return await acknowledged

    async def drain(self) -> None:
        """What was given is written when this returns."""
        while self._flushers or self._alone:
            # Not awaited themselves: cancelling the close must not cancel what others wait for.
            await asyncio.wait([*self._flushers, *self._alone])

    def close(self) -> None:
        self._writers.shutdown(wait=False)
        self._beside.close()

    async def _flush(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
            commit = partial(self._commit, [each.step for each in group])
            try:
                outcomes = await asyncio.get_running_loop().run_in_executor(self._writers, commit)
            except BaseException as error:  # noqa: BLE001 -- it is theirs who wait, and nobody may wait for ever
                outcomes = [error] * len(group)
            if outcomes is None:
                self._put_beside(group)
            else:
                for each, outcome in zip(group, outcomes, strict=True):
                    _settle(each.acknowledged, outcome)
                if isinstance(outcomes[0], errors.StoreUnreachable):
                    self._fail_overdue(outcomes[0])
        self._flushing -= 1

    def _fail_overdue(self, error: errors.StoreUnreachable) -> None:
        now = asyncio.get_running_loop().time()
        while self._waiting and self._waiting[0].overdue <= now:
            _settle(self._waiting.pop(0).acknowledged, error)

    def _commit(self, steps: Sequence[write_step.WriteStep[Any]]) -> Sequence[Outcome] | None:
        """One transaction for all of them. None: somebody is in the way, or something is wrong with one of them."""
        lasting = any(step.lasting for step in steps)
        try:
            return self._driver.write(steps[0].operation, Passing(steps), lasting=lasting)
        except write_step.STORE_WIDE as error:
            return [error] * len(steps)
        except Exception as error:  # noqa: BLE001 -- it is theirs who wait; alone, each meets its own
            own = isinstance(error, errors.StoreRefused | errors.LeasesUnavailable)
            return None if len(steps) > 1 or own else [error]

    def _put_beside(self, group: Sequence[Waiting]) -> None:
        for each in group:
            _keep(self._alone, asyncio.create_task(self._by_itself(each)))

    async def _by_itself(self, each: Waiting) -> None:
        outcome: Outcome
        try:
            outcome = await self._beside.call(partial(_alone, self._driver, each.step))
        except BaseException as error:  # noqa: BLE001 -- it is theirs who wait, and nobody may wait for ever
            outcome = error
        _settle(each.acknowledged, outcome)


class Passing:
    """Several steps in one, which waits for nobody: another host may bring the same in another order, and then each
    would wait for what the other has. One by one they wait for one thing at a time."""

    def __init__(self, steps: Sequence[write_step.WriteStep[Any]]) -> None:
        self._steps = steps

    def __call__(self, tx: Tx) -> list[Outcome] | None:
        return [_tried(tx, step) for step in self._steps]

    def held(self) -> list[Outcome] | None:
        return None


def _tried(tx: Tx, step: write_step.WriteStep[Any]) -> Outcome:
    tx.operation = step.operation
    try:
        return step.run(tx)
    except errors.StoreError:
        raise
    except errors.HoldfastError as error:
        return error


def _alone(driver: Driver, step: write_step.WriteStep[T]) -> T:
    try:
        return write_step.execute(driver, step)
    except StopIteration as error:
        raise _taken(error) from error


def _taken(error: BaseException) -> BaseException:
    """An error as a future takes it: StopIteration it refuses, and whoever waits would wait for ever."""
    return RuntimeError("A step raised StopIteration.") if isinstance(error, StopIteration) else error


def _keep(tasks: set[asyncio.Task[None]], task: asyncio.Task[None]) -> None:
    tasks.add(task)
    task.add_done_callback(tasks.discard)


def _settle(acknowledged: asyncio.Future[Any], outcome: Outcome) -> None:
    if acknowledged.done():
        return
    if isinstance(outcome, asyncio.CancelledError):
        acknowledged.cancel()
    elif isinstance(outcome, BaseException):
        acknowledged.set_exception(_taken(outcome))
    else:
        acknowledged.set_result(outcome)
