"""Delete expired inbound and outbound messages once a day, in the background of a running gateway."""

from __future__ import annotations

import asyncio
import logging

from holdfast import errors
from holdfast.store import async_db
from holdfast.store.mail import queue_status

logger = logging.getLogger("holdfast.app")

START_SECONDS = 60.0
"""The delay after the start of the gateway."""
INTERVAL_SECONDS = 86_400.0
PAUSE_SECONDS = 0.05
"""The pause between two batches, so that other writers are not delayed."""


async def run_daily(store: async_db.AsyncSessionDB, days: float) -> None:
    """Delete messages older than `days` every day until cancelled. Several processes may do this concurrently."""
    await asyncio.sleep(START_SECONDS)
    while True:
        try:
            if deleted := await delete_expired(store, days):
                logger.info("deleted %d messages older than %.0f days", deleted, days)
        except errors.HoldfastError as error:
            logger.warning("could not delete expired messages: %s", error)
        await asyncio.sleep(INTERVAL_SECONDS)


async def delete_expired(store: async_db.AsyncSessionDB, days: float, pause: float = PAUSE_SECONDS) -> int:
    """Delete all messages older than `days`, batch by batch; return how many."""
    cursor: queue_status.ExpiryCursor | None = queue_status.ExpiryCursor()
    deleted = 0
    while cursor is not None:
        batch = await store.mail.expire(days, cursor)
        deleted, cursor = deleted + batch.deleted, batch.next
        await asyncio.sleep(pause)
    return deleted
