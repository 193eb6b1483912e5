"""Desks: one runtime for each owner, so that nobody's notes, titles, permissions and conversations are another's.

A desk is made when it is first needed and kept while it is used; the one unused for longest makes room.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from time import monotonic

from holdfast.runtime import runtime as runtimes

logger = logging.getLogger("holdfast.gateway")

MOST = 1_000
IDLE = 3600.0

Make = Callable[[str], AbstractAsyncContextManager[runtimes.Runtime]]
"""A runtime for an owner, whose agents are that owner's."""


class Desk:
    """A runtime, and how many use it now."""

    def __init__(self, made: AbstractAsyncContextManager[runtimes.Runtime], clock: Callable[[], float]) -> None:
        self._made, self._clock = made, clock
        self._opening: asyncio.Task[runtimes.Runtime] | None = None
        self.users = 0
        self.used = clock()

    @property
    def runtime(self) -> runtimes.Runtime | None:
        """The runtime, where there is one already."""
        opening = self._opening
        if opening is None or not opening.done() or opening.cancelled() or opening.exception() is not None:
            return None
        return opening.result()

    async def open(self) -> runtimes.Runtime:
        """Several who come at once wait for the same one; who stops waiting does not take it from the others."""
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._made.__aenter__())
        return await asyncio.shield(self._opening)

    def left(self) -> None:
        self.users -= 1
        self.used = self._clock()

    async def close(self) -> None:
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self.runtime is not None:
            await self._made.__aexit__(None, None, None)


class Desks:
    """At most so many desks besides those in use, none unused for longer than `idle` seconds."""

    def __init__(
        self, make: Make, *, most: int = MOST, idle: float = IDLE, clock: Callable[[], float] = monotonic
    ) -> None:
        self._make, self._most, self._idle, self._clock = make, most, idle, clock
        self._desks: OrderedDict[str, Desk] = OrderedDict()
        self._closing = set[asyncio.Task[None]]()
        self.prepare: Callable[[runtimes.Runtime], object] = lambda _: None
        """Called with each runtime that was made."""

    def __len__(self) -> int:
        return len(self._desks)

    @asynccontextmanager
    async def at(self, owner: str) -> AsyncIterator[runtimes.Runtime]:
        """The runtime of an owner, which stays to the end of the block."""
        desk = self._desks.get(owner)
        if desk is None:
            desk = self._desks[owner] = Desk(self._make(owner), self._clock)
        desk.users += 1
        self._desks.move_to_end(owner)
        try:
            fresh = desk.runtime is None
            found = await desk.open()
            if fresh:
                self.prepare(found)
            yield found
        finally:
            desk.left()
            if desk.runtime is None and not desk.users:
                self._desks.pop(owner, None)  # It could not be made: the next one tries again.
            self._tidy()

    def abandon(self) -> None:
        """Have every turn stopped as if this process had died, so that another goes on with it."""
        for desk in self._desks.values():
            if desk.runtime is not None:
                desk.runtime.abandon()

    async def close(self) -> None:
        """Close all; nobody uses them any more."""
        desks = list(self._desks.values())
        self._desks.clear()
        await asyncio.gather(*(_closed(desk) for desk in desks), *self._closing)

    def _tidy(self) -> None:
        now = self._clock()
        for owner, desk in list(self._desks.items()):
            if len(self._desks) <= self._most and now - desk.used <= self._idle:
                return  # The rest was used later.
            if not desk.users and not (desk.runtime is not None and desk.runtime.busy()):
                del self._desks[owner]
                closing = asyncio.create_task(_closed(desk))
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)


async def _closed(desk: Desk) -> None:
    try:
        await desk.close()
    except Exception:
        # The border to whatever the runtime was made with: the other desks are closed all the same.
        logger.exception("a desk could not be closed")
