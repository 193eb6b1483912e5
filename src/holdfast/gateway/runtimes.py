"""A pool of runtimes, one for each owner, so that notes, permissions and conversations of owners stay separate.

A runtime is opened when it is first needed. Idle runtimes are closed, the least recently used first.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from time import monotonic

from holdfast.runtime import runtime as runtimes

logger = logging.getLogger("holdfast.gateway")

MAX_RUNTIMES = 1_000
IDLE_SECONDS = 3600.0

RuntimeFactory = Callable[[str], AbstractAsyncContextManager[runtimes.Runtime]]
"""Returns the runtime of an owner."""


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
        self._pooled: OrderedDict[str, PooledRuntime] = OrderedDict()
        self._closing = set[asyncio.Task[None]]()
        self.on_open: Callable[[runtimes.Runtime], object] = lambda _: None
        """Called with each new runtime."""

    def __len__(self) -> int:
        return len(self._pooled)

    @asynccontextmanager
    async def use(self, owner: str) -> AsyncIterator[runtimes.Runtime]:
        """Return the runtime of an owner, which stays open until the end of the block."""
        pooled = self._pooled.get(owner)
        if pooled is None:
            pooled = self._pooled[owner] = PooledRuntime()
        pooled.users += 1
        self._pooled.move_to_end(owner)
        try:
            if pooled.runtime is None:
                await self._open(owner, pooled)
            assert pooled.runtime is not None
            yield pooled.runtime
        finally:
            pooled.users -= 1
            pooled.used_at = self._clock()
            if pooled.runtime is None and not pooled.users:
                self._pooled.pop(owner, None)  # It could not be opened: the next user tries again.
            self._close_idle()

    async def _open(self, owner: str, pooled: PooledRuntime) -> None:
        async with pooled.opening:
            if pooled.runtime is None:
                pooled.runtime = await pooled.stack.enter_async_context(self._factory(owner))
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
        now, surplus, idle = self._clock(), len(self._pooled) - self._max, list[str]()
        for owner, pooled in self._pooled.items():
            if len(idle) >= surplus and now - pooled.used_at <= self._idle:
                break  # The rest was used later.
            if pooled.is_idle:
                idle.append(owner)
        for owner in idle:
            closing = asyncio.create_task(self._pooled.pop(owner).close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
