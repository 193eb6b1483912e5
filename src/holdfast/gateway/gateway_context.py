"""The state and settings that the parts of a gateway share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from holdfast import types
from holdfast.gateway import metrics, platform, routes, runtimes, settings
from holdfast.store import async_db

SaveFile = Callable[[routes.Principal, str, str], Awaitable[str]]
"""Saves a blob in the working folder of a principal under a name, and returns its path there. Raises HoldfastError."""


async def is_never(_platform: str, _sender: str) -> bool:
    return False


async def is_always(_platform: str, _sender: str) -> bool:
    return True


class ReplyAddress(NamedTuple):
    """The destination of replies, notices and questions."""

    platform: str
    chat: str
    address: dict[str, object]
    origin: str
    """The platform that the message came from. A question that is shown on another platform cannot be answered."""


class GatewayContext(NamedTuple):
    """The store, the runtimes that run turns, and the platforms of this process."""

    db: async_db.AsyncSessionDB
    runtimes: runtimes.RuntimePool
    platforms: Mapping[str, platform.Platform]
    settings: settings.GatewaySettings = settings.GatewaySettings()
    is_admin: platform.SenderCheck = is_never
    wake_sender: Callable[[str], object] = lambda _: None
    """Called with a platform when it may have messages to send."""
    clock: Callable[[], float] = time.time
    metrics: metrics.GatewayMetrics = metrics.GatewayMetrics()
    abilities: Mapping[str, platform.Abilities] = {}
    """By platform."""
    may_speak: platform.SenderCheck = is_always
    """Checked again for a message that waited for long, because its sender may have been denied access."""
    save_file: SaveFile | None = None

    def can(self, name: str) -> platform.Abilities:
        """Return the abilities of a platform, also of one that does not run here."""
        return self.abilities.get(name, platform.Abilities())

    async def last_chat(self, conversation_id: str, route: str | None = None) -> types.Home | None:
        """Return the chat of the last message of a conversation or route, unless its sender was unlinked."""
        home = await self.db.mail.last_chat(conversation_id, route)
        return home if home is not None and routes.principal_of(home).may_read(home.owner) else None


def reply_address(source: types.InboundMessage | types.Home) -> ReplyAddress:
    """Return where the answer to a message, or to the notices of a conversation, is sent."""
    if isinstance(source, types.InboundMessage):
        return ReplyAddress(source.home, source.chat, source.address, source.platform)
    return ReplyAddress(source.platform, source.chat, source.address, routes.platform_of(source.route))


async def wait_event(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set or the time is over."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
