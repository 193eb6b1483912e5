"""Blocking work in a thread that stops when its caller is cancelled."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

logger = logging.getLogger("holdfast.tools")

T = TypeVar("T")
Stop = Callable[[], bool]
"""Return whether the work was cancelled."""
CANCEL_TIMEOUT_SECONDS = 5.0
"""A thread that hangs, for example on a network file system, does not block the caller who cancels it for longer."""


async def run_in_thread(work: Callable[[Stop], T]) -> T:
    """Run blocking work in a thread. On cancellation, wait until the work has stopped, so that nothing is left."""
    stop = threading.Event()
    task = asyncio.ensure_future(asyncio.to_thread(work, stop.is_set))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop.set()
        _, left = await asyncio.wait([task], timeout=CANCEL_TIMEOUT_SECONDS)
        if left:
            logger.warning("a tool's thread did not stop after it was cancelled")
        elif not task.cancelled() and (error := task.exception()) is not None:
            logger.debug("a cancelled tool failed: %s", type(error).__name__)
        raise
