"""Chat leases: the right to process a chat, renewed during the work and released after it.

A lease avoids duplicate work; correctness does not depend on it. A process that lost its lease notices when it writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast import errors, types
from holdfast.store import async_db

logger = logging.getLogger("holdfast.gateway")

TTL_SECONDS = 30.0


class HeldChatLease:
    """A lease that is renewed. Most are released long before that, so the task for it starts late."""

    def __init__(self, db: async_db.AsyncSessionDB, lease: types.ChatLease) -> None:
        self._db, self.lease = db, lease
        self.released = False
        """Whether it was already released together with the last write under it."""
        self._renewing: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(lease.ttl / 3, self._start_renewing)

    def _start_renewing(self) -> None:
        self._renewing = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        while True:
            try:
                await self._db.mail.renew_chat_lease(self.lease)
            except errors.LeaseLost:
                return
            except Exception as error:  # noqa: BLE001 -- only a lost lease stops the work
                logger.warning("could not renew a chat lease: %s", error)
            await asyncio.sleep(self.lease.ttl / 3)

    def stop_renewing(self) -> None:
        self._timer.cancel()
        if self._renewing is not None:
            self._renewing.cancel()


@asynccontextmanager
async def hold(db: async_db.AsyncSessionDB, lease: types.ChatLease) -> AsyncIterator[HeldChatLease]:
    """Keep a lease that was just acquired until the end of the block."""
    held = HeldChatLease(db, lease)
    try:
        yield held
    finally:
        held.stop_renewing()
        if not held.released:
            await asyncio.shield(release(db, lease))


async def release(db: async_db.AsyncSessionDB, lease: types.ChatLease) -> None:
    try:
        await db.mail.release_chat_lease(lease)
    except Exception as error:  # noqa: BLE001 -- the lease expires by itself
        logger.warning("could not release a chat lease, it will expire: %s", error)
