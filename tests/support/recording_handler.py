"""A handler that records the messages of a platform, or fails to store them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from holdfast import errors, types
from holdfast.gateway import platform


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
