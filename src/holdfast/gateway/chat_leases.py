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


class HeldLease:
    """A lease, and whether it was already released together with the last write under it."""

    def __init__(self, lease: types.ChatLease, now: float) -> None:
        self.lease = lease
        self.renewed_at = now
        self.released = False


class LeaseRenewer:
    """Renews the chat leases of this process, in one task: most are released long before they expire."""

    def __init__(self, db: async_db.AsyncSessionDB, ttl: float = TTL_SECONDS) -> None:
        self._db, self.ttl = db, ttl
        self._held = set[HeldLease]()
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def hold(self, lease: types.ChatLease) -> AsyncIterator[HeldLease]:
        """Keep a lease that was just acquired until the end of the block."""
        held = HeldLease(lease, _now())
        self._held.add(held)
        if self._task is None:
            self._task = asyncio.create_task(self._renew_all())
        try:
            yield held
        finally:
            self._held.discard(held)
            if not held.released:
                await asyncio.shield(self.release(held.lease))

    async def _renew_all(self) -> None:
        try:
            while self._held:
                await asyncio.sleep(self.ttl / 6)
                for held in [each for each in self._held if _now() - each.renewed_at >= self.ttl / 3]:
                    await self._renew(held)
        finally:
            self._task = None

    async def _renew(self, held: HeldLease) -> None:
        held.renewed_at = _now()
        try:
            await self._db.mail.renew_chat_lease(held.lease)
        except errors.LeaseLost:
            self._held.discard(held)
        except Exception as error:  # noqa: BLE001 -- only a lost lease stops the work
            logger.warning("could not renew a chat lease: %s", error)

    async def release(self, lease: types.ChatLease) -> None:
        try:
            await self._db.mail.release_chat_lease(lease)
        except Exception as error:  # noqa: BLE001 -- the lease expires by itself
            logger.warning("could not release a chat lease, it will expire: %s", error)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


def _now() -> float:
    return asyncio.get_running_loop().time()
