"""A platform in memory, and a handler that records the messages of a platform, or fails to store them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from holdfast import errors, types
from holdfast.gateway import platform
from holdfast.gateway.platforms import loopback


class MemoryPlatform:
    """A platform without connections: `say` receives a message, and sent messages are collected in `sent`."""

    def __init__(self, name: str = "loopback", limit: int = 4_000) -> None:
        self.name, self.limit = name, limit
        self.sent: list[platform.Delivery] = []
        self._changed = asyncio.Condition()
        self.handler: platform.Handler | None = None

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


class RecordingHandler:
    """`admits` is whether files are downloaded, and `error` is raised instead of storing a message."""

    def __init__(self) -> None:
        self.received: list[platform.Incoming] = []
        self.deleted: list[str] = []
        self.error: errors.StoreError | None = None
        self.admits = True

    async def receive(self, incoming: platform.Incoming) -> types.InboundMessage | None:
        if self.error is not None:
            raise self.error
        complete = incoming.complete if self.admits else None
        self.received.append(incoming if complete is None else await complete())
        return None

    async def delete(self, _: str, key: str) -> bool:
        self.deleted.append(key)
        return True


@asynccontextmanager
async def open_recorded(chat: Any) -> AsyncIterator[RecordingHandler]:
    """Run a platform with a handler that records its messages."""
    handler = RecordingHandler()
    running = asyncio.create_task(chat.run(handler))
    await chat.wait_ready()
    try:
        yield handler
    finally:
        running.cancel()
        await asyncio.wait([running])
