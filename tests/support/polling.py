"""Wait for a condition that another process, thread or task brings about."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any


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
