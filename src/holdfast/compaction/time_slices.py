"""Run CPU-bound work in a thread that regularly yields the GIL.

CPython takes the GIL from a computing thread only every 5 ms. A turn switches threads a dozen times and would wait that
long each time, so long computations call `yield_cpu` often.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

SLICE = 0.001
"""Seconds that the work may hold the GIL."""
PAUSE = 0.00001
"""Seconds to sleep. With 0, the thread would be the first to get the GIL again."""

_slice = threading.local()


async def run_in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run the work in a thread and return its result; `yield_cpu` is active there."""
    return await asyncio.to_thread(_run_sliced, lambda: work(*args, **kwargs))


def _run_sliced(work: Callable[[], T]) -> T:
    _slice.end = time.perf_counter() + SLICE
    try:
        return work()
    finally:
        _slice.end = None


def yield_cpu() -> None:
    """Let other threads run if the time slice has ended. Does nothing outside of `run_in_thread`."""
    end: float | None = getattr(_slice, "end", None)
    if end is not None and time.perf_counter() >= end:
        time.sleep(PAUSE)
        _slice.end = time.perf_counter() + SLICE
