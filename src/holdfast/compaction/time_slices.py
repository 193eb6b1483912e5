"""Run CPU-bound work in a thread without delaying the event loop.

CPython takes the GIL from a computing thread only every 5 ms. A turn switches threads a dozen times and would wait that
long each time, so the interval is shorter while such work runs.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

SWITCH_INTERVAL_SECONDS = 0.0005


class _SwitchInterval:
    """Shortens the interval of the interpreter while at least one thread is inside the block."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = 0
        self._usual = sys.getswitchinterval()

    def __enter__(self) -> None:
        with self._lock:
            self._threads += 1
            if self._threads == 1:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(min(SWITCH_INTERVAL_SECONDS, self._usual))

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._threads -= 1
            if self._threads == 0:
                sys.setswitchinterval(self._usual)


_short_interval = _SwitchInterval()


async def run_in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run the work in a thread and return its result; other threads get the GIL often meanwhile."""

    def run() -> T:
        with _short_interval:
            return work(*args, **kwargs)

    return await asyncio.to_thread(run)
