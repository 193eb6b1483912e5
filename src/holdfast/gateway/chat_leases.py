"""The right to work on chats, kept alive while the work goes on and given back after it.

It saves work: two who work on one chat find in the store that it was done. Who lost it notices when it writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast import errors, types
from holdfast.store import async_db

logger = logging.getLogger("holdfast.gateway")

TTL = 30.0


class Held:
    """A claim, and whether it was given back already, together with what was written last under it."""

    def __init__(self, claim: types.ChatLease, now: float) -> None:
        self.claim = claim
        self.renewed_at = now
        self.given_back = False


class Claims:
    """The claims of one process. One task renews all of them, as most are given back long before their time."""

    def __init__(self, db: async_db.AsyncSessionDB, ttl: float = TTL) -> None:
        self._db, self.ttl = db, ttl
        self._held = set[Held]()
        self._heart: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def held(self, claim: types.ChatLease) -> AsyncIterator[Held]:
        """A claim that was just taken, kept to the end of the block."""
        mine = Held(claim, _now())
        self._held.add(mine)
        if self._heart is None:
            self._heart = asyncio.create_task(self._beat())
        try:
            yield mine
        finally:
            self._held.discard(mine)
            if not mine.given_back:
                await asyncio.shield(self.give_back(mine.claim))

    async def _beat(self) -> None:
        """Until nothing is held any more."""
        try:
            while self._held:
                await asyncio.sleep(self.ttl / 6)
                for mine in [each for each in self._held if _now() - each.renewed_at >= self.ttl / 3]:
                    await self._renew(mine)
        finally:
            self._heart = None

    async def _renew(self, mine: Held) -> None:
        mine.renewed_at = _now()
        try:
            await self._db.mail.renew_chat_lease(mine.claim)
        except errors.LeaseLost:
            self._held.discard(mine)
        except Exception as error:  # noqa: BLE001 -- only a lost claim stops the work
            logger.warning("a claim could not be renewed: %s", error)

    async def give_back(self, claim: types.ChatLease) -> None:
        try:
            await self._db.mail.release_chat_lease(claim)
        except Exception as error:  # noqa: BLE001 -- it changes no outcome
            logger.warning("a claim could not be given back, and runs out by itself: %s", error)

    async def close(self) -> None:
        if self._heart is not None:
            self._heart.cancel()
            await asyncio.wait([self._heart])


def _now() -> float:
    return asyncio.get_running_loop().time()
