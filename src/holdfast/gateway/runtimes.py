"""A pool of runtimes, one for each principal, so that their notes, permissions and conversations stay separate.

A runtime is opened when it is first needed. Idle runtimes are closed, the least recently used first.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from time import monotonic

from holdfast.gateway import routes
from holdfast.runtime import runtime as runtimes

logger = logging.getLogger("holdfast.gateway")

MAX_RUNTIMES = 1_000
IDLE_SECONDS = 3600.0

RuntimeFactory = Callable[[routes.Principal], AbstractAsyncContextManager[runtimes.Runtime]]


class PooledRuntime:
    """A runtime, and how many tasks use it."""

    def __init__(self) -> None:
        self.runtime: runtimes.Runtime | None = None
        self.stack = AsyncExitStack()
        self.opening = asyncio.Lock()
        self.users = 0
        self.used_at = 0.0

    @property
    def is_idle(self) -> bool:
        return not self.users and not (self.runtime is not None and self.runtime.busy())

    async def close(self) -> None:
        try:
            await self.stack.aclose()
        except Exception:
            # The border to whatever the runtime was made with: the other runtimes are closed all the same.
            logger.exception("could not close a runtime")


class RuntimePool:
    """Keeps at most `max_runtimes` runtimes besides those in use, none idle for longer than `idle` seconds."""

    def __init__(
        self,
        factory: RuntimeFactory,
        *,
        max_runtimes: int = MAX_RUNTIMES,
        idle: float = IDLE_SECONDS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._factory, self._max, self._idle, self._clock = factory, max_runtimes, idle, clock
        self._pooled: OrderedDict[tuple[str, str], PooledRuntime] = OrderedDict()
        """By identity and owner: a link does not replace the runtime in which approvals are pending."""
        self._closing = set[asyncio.Task[None]]()
        self.on_open: Callable[[runtimes.Runtime], object] = lambda _: None
        """Called with each new runtime."""

    def __len__(self) -> int:
        return len(self._pooled)

    @asynccontextmanager
    async def use(self, principal: routes.Principal) -> AsyncIterator[runtimes.Runtime]:
        """Return the runtime of a principal, which stays open until the end of the block."""
        key = (principal.identity, principal.owner)
        pooled = self._pooled.get(key)
        if pooled is None:
            pooled = self._pooled[key] = PooledRuntime()
        pooled.users += 1
        self._pooled.move_to_end(key)
        try:
            if pooled.runtime is None:
                await self._open(principal, pooled)
            assert pooled.runtime is not None
            # Never switched off: another chat of the principal may be in a turn.
            pooled.runtime.copies_turns |= principal.linked
            yield pooled.runtime
        finally:
            pooled.users -= 1
            pooled.used_at = self._clock()
            if pooled.runtime is None and not pooled.users:
                self._pooled.pop(key, None)  # It could not be opened: the next user tries again.
            self._close_idle()

    async def _open(self, principal: routes.Principal, pooled: PooledRuntime) -> None:
        async with pooled.opening:
            if pooled.runtime is None:
                pooled.runtime = await pooled.stack.enter_async_context(self._factory(principal))
                pooled.runtime.copies_turns = False
                self.on_open(pooled.runtime)

    def abandon(self) -> None:
        """Stop every turn as if this process had died, so that another process continues it."""
        for pooled in self._pooled.values():
            if pooled.runtime is not None:
                pooled.runtime.abandon()

    async def close(self) -> None:
        """Close all runtimes, which must not be in use."""
        every = list(self._pooled.values())
        self._pooled.clear()
        await asyncio.gather(*(each.close() for each in every), *self._closing)

    def _close_idle(self) -> None:
        now, surplus, idle = self._clock(), len(self._pooled) - self._max, list[tuple[str, str]]()
        for key, pooled in self._pooled.items():
            if len(idle) >= surplus and now - pooled.used_at <= self._idle:
                break  # The rest was used later.
            if pooled.is_idle:
                idle.append(key)
        for key in idle:
            closing = asyncio.create_task(self._pooled.pop(key).close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
