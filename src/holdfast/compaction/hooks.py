"""Hooks: what others want to be told of a compaction, and of the end of a conversation.

They may be anybody's. Each is called in a task of its own and has a time limit: whatever one of them does, the next is
told, and what they are told of goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

logger = logging.getLogger("holdfast.compaction")

# So long a hook that was stopped may take to leave; then it is left behind.
GRACE = 1.0

Hook = Callable[[str], Awaitable[object]]
"""Told a session. What it raises is logged, and stops nothing; nor does it stop anything by never ending."""


class Hooks(msgspec.Struct, frozen=True):
    """What others want to be told: memory, caches of files, plug-ins."""

    before: tuple[Hook, ...] = ()
    """Before a compaction, with the head it begins from."""
    after: tuple[Hook, ...] = ()
    """After one, with the new head."""
    closing: tuple[Hook, ...] = ()
    """When an agent is closed, or its conversation left for a new one, with the head: once, until the next turn."""
    limit: float = 10.0
    """Seconds each of them may take; then it is stopped, and the next one told."""


async def told(hooks: Sequence[Hook], session_id: str, limit: float) -> None:
    """Tell them all, one after the other, whatever one of them does, and however long it would take."""
    for hook in hooks:
        await _told(hook, session_id, limit)


async def _told(hook: Hook, session_id: str, limit: float) -> None:
    async def call() -> None:
        await hook(session_id)

    # In a task of its own: one that cancels itself cancels nobody else.
    telling = asyncio.create_task(call())
    try:
        await asyncio.wait([telling], timeout=limit)
    finally:
        late = telling.cancel()
        await asyncio.wait([telling], timeout=GRACE)
    if late:
        logger.error("a hook of a compaction was not done in %g s, and was stopped", limit)
    elif telling.cancelled():
        logger.error("a hook of a compaction cancelled itself")
    elif error := telling.exception():
        logger.error("a hook of a compaction failed", exc_info=error)
