"""A platform in memory: `say` receives a message, and sent messages are collected in `sent`."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import types
from holdfast.gateway import platform
from holdfast.gateway.platforms import loopback


class MemoryPlatform:
    """A platform without connections, for tests and benchmarks."""

    def __init__(self, name: str = "loopback", limit: int = 4_000) -> None:
        self._name, self._limit = name, limit
        self.sent: list[platform.Delivery] = []
        self._changed = asyncio.Condition()
        self.handler: platform.Handler | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def limit(self) -> int:
        return self._limit

    async def wait_ready(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.handler is not None)

    async def run(self, handler: platform.Handler) -> None:
        async with self._changed:
            self.handler = handler
            self._changed.notify_all()
        await asyncio.Event().wait()

    async def say(self, text: str, **fields: Any) -> types.InboundMessage | None:
        """Receive a message; it is stored when this returns. `fields` are those of a line."""
        await self.wait_ready()
        return await self.handler.receive(loopback.build_incoming(self.name, loopback.LoopbackLine(text, **fields)))

    async def send(self, delivery: platform.Delivery) -> str:
        async with self._changed:
            self.sent.append(delivery)
            self._changed.notify_all()
        return f"{self.name}-{delivery.id}"

    async def replies(self, count: int) -> list[platform.Delivery]:
        """Wait until this many messages were sent, and return all."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.sent) >= count)
        return list(self.sent)
