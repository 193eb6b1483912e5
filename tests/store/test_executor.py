"""Calls made by threads for the tasks of a loop: each is answered, whatever becomes of it or of who waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from holdfast.store import executor


@pytest.fixture
def threads() -> Iterator[executor.LoopExecutor]:
    made = executor.LoopExecutor(2, "test", 10.0)
    yield made
    made.close()


def test_every_call_has_its_own_answer(threads: executor.LoopExecutor) -> None:
    async def ask() -> list[int]:
        async with asyncio.timeout(60):
            return await asyncio.gather(*(threads.call(lambda n=n: n * n) for n in range(1_000)))  # type: ignore[misc]

    assert asyncio.run(ask()) == [n * n for n in range(1_000)]


def test_results_that_are_ready_together_wake_the_loop_once(threads: executor.LoopExecutor) -> None:
    async def ask() -> int:
        loop, done, wakes = asyncio.get_running_loop(), threading.Event(), list[object]()
        wake = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *given: (wakes.append(given), wake(*given))[1]  # type: ignore[method-assign]
        calls = [threads.submit(int) for _ in range(200)]
        calls += [threads.submit(done.set)]
        done.wait(20)  # the loop delivers nothing meanwhile
        await asyncio.gather(*calls)
        return len(wakes)

    assert asyncio.run(ask()) <= 4  # two threads may find at once that the loop has to be woken


async def test_what_a_call_raises_is_raised_where_it_is_awaited(threads: executor.LoopExecutor) -> None:
    def fail() -> None:
        raise KeyError("gone")

    async with asyncio.timeout(60):
        with pytest.raises(KeyError, match="gone"):
            await threads.call(fail)
        assert await threads.call(lambda: "on it goes") == "on it goes"


async def test_no_more_calls_are_made_at_once_than_there_are_threads(threads: executor.LoopExecutor) -> None:
    both, count, most = threading.Barrier(2, timeout=20), [0], [0]
    counting = threading.Lock()

    def work() -> None:
        with counting:
            count[0] += 1
            most[0] = max(most[0], count[0])
        both.wait()
        with counting:
            count[0] -= 1

    async with asyncio.timeout(60):
        await asyncio.gather(*(threads.call(work) for _ in range(10)))
    assert most == [2]


async def test_call_of_who_stopped_waiting_is_made_and_keeps_nobody(threads: executor.LoopExecutor) -> None:
    begun, go_on, made = threading.Event(), threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        assert go_on.wait(60)
        made.set()

    async with asyncio.timeout(60):
        task = asyncio.create_task(threads.call(slow))
        await threads.call(lambda: begun.wait(60))
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        go_on.set()
        assert await threads.call(lambda: 1) == 1
    assert made.wait(60)


def test_loop_that_ended_keeps_nothing_from_the_next_one(threads: executor.LoopExecutor) -> None:
    begun, go_on = threading.Event(), threading.Event()

    async def leave() -> None:
        left = asyncio.ensure_future(threads.call(lambda: go_on.wait(60)))
        await threads.call(begun.set)
        assert not left.done()

    async def ask() -> int:
        async with asyncio.timeout(60):
            return await threads.call(lambda: 7)

    asyncio.run(leave())
    go_on.set()
    assert asyncio.run(ask()) == 7


async def test_call_for_which_no_thread_can_be_started_fails_and_the_next_one_runs(
    threads: executor.LoopExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    async with asyncio.timeout(60):
        with monkeypatch.context() as patched:
            patched.setattr(threads._threads, "submit", refuse)
            refused = [threads.submit(lambda: "never") for _ in range(3)]
        for each in refused:
            with pytest.raises(RuntimeError, match="can't start"):
                await each
        assert await threads.call(lambda: "on it goes") == "on it goes"
