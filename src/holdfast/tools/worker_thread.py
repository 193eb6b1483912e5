"""Work that would keep the event loop waiting, in a thread that can be told to stop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
logger = logging.getLogger("holdfast.tools")

# A thread that a network drive holds up does not come back; whoever cancelled is not held up with it.
PATIENCE = 5.0

Stop = Callable[[], bool]
"""Whether nobody waits for the work any more."""


async def stoppable(work: Callable[[Stop], T]) -> T:
    """What the work returns. Whoever cancels this waits until the work has noticed, so that nothing is left running."""
    stop = threading.Event()
    task = asyncio.ensure_future(asyncio.to_thread(work, stop.is_set))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop.set()
        _, left = await asyncio.wait([task], timeout=PATIENCE)
        if left:
            logger.warning("a thread of a tool did not stop when it was told to")
        elif not task.cancelled() and (error := task.exception()) is not None:
            logger.debug("a tool that was stopped failed: %s", type(error).__name__)
        raise
