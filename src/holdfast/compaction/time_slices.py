"""Long work beside the event loop, at a pace that lets others in.

Python runs one thread at a time, and takes it away from one that only computes every 5 ms. A turn goes from thread to
thread a dozen times, and would wait for that long each time. So whoever computes for long breathes now and then.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

EVERY = 0.001
# Giving way for no time at all gives way to nobody: the thread would be the first to ask again.
NAP = 0.00001

_due = threading.local()


async def aside(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What the work gives, made in a thread of its own; all others are let in wherever it breathes."""
    return await asyncio.to_thread(_paced, lambda: work(*args, **kwargs))


def _paced(work: Callable[[], T]) -> T:
    _due.at = time.perf_counter() + EVERY
    try:
        return work()
    finally:
        _due.at = None


def breathe() -> None:
    """To be called often by what may take long; it does nothing but within `aside`."""
    at: float | None = getattr(_due, "at", None)
    if at is not None and time.perf_counter() >= at:
        time.sleep(NAP)
        _due.at = time.perf_counter() + EVERY
