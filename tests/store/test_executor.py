"""Calls that threads make for the tasks of a loop: each gets its result or its error."""

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


def test_ended_loop_delays_no_call_of_the_next_one(threads: executor.LoopExecutor) -> None:
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


async def test_call_fails_if_no_thread_starts(threads: executor.LoopExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with asyncio.timeout(60):
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            refused = [threads.submit(lambda: "never") for _ in range(3)]
        for each in refused:
            with pytest.raises(RuntimeError, match="can't start"):
                await each
        assert await threads.call(lambda: "next") == "next"
