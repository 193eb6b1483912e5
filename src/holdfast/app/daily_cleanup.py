"""Tidies what a gateway leaves behind, once a day while it runs: it is nobody's to wait for, and stops nothing."""

from __future__ import annotations

import asyncio
import logging

from holdfast import errors
from holdfast.store import async_db
from holdfast.store.mail import queue_status

logger = logging.getLogger("holdfast.app")

FIRST = 60.0
"""Seconds after the start: until then there is enough to do."""
EVERY = 86_400.0
BREATH = 0.05
"""Seconds between two steps, for those who have something to say."""


async def looking_after(store: async_db.AsyncSessionDB, days: float) -> None:
    """Until cancelled. Where several processes do it, the second finds nothing."""
    await asyncio.sleep(FIRST)
    while True:
        try:
            if gone := await once(store, days):
                logger.info("%d messages that came in or went out %.0f days ago were forgotten", gone, days)
        except errors.HoldfastError as error:
            logger.warning("what came in long ago could not be forgotten: %s", error)
        await asyncio.sleep(EVERY)


async def once(store: async_db.AsyncSessionDB, days: float, breath: float = BREATH) -> int:
    """All that is old, step by step; how much it was."""
    window: queue_status.ExpiryCursor | None = queue_status.ExpiryCursor()
    gone = 0
    while window is not None:
        done = await store.mail.expire(days, window)
        gone, window = gone + done.deleted, done.next
        await asyncio.sleep(breath)
    return gone
