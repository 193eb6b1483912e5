"""Wait for a condition that another process, thread or task brings about."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def until(condition: Callable[[], Any], what: str = "the condition", seconds: float = 60) -> None:
    """Wait until the condition holds; fail after some seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not hold within {seconds} s"
        time.sleep(0.005)


async def until_async(condition: Callable[[], Any], what: str = "the condition", seconds: float = 60) -> None:
    """Wait until the condition, a function or a coroutine function, holds; fail after some seconds."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if await found if inspect.isawaitable(found) else found:
            return
        assert time.monotonic() < deadline, f"{what} did not hold within {seconds} s"
        await asyncio.sleep(0.002)


async def start(
    work: Coroutine[Any, Any, T], reached: asyncio.Event | Callable[[], Any], what: str = "the work has begun"
) -> asyncio.Task[T]:
    """Start work in a task and return it when the event is set or the condition holds; raise an earlier error of it."""
    task = asyncio.create_task(work)

    def has_begun() -> bool:
        if task.done():
            task.result()
        return bool(reached.is_set() if isinstance(reached, asyncio.Event) else reached())

    await until_async(has_begun, what)
    return task


async def cancel(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for its end, which must be by the cancellation."""
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled(), task
