"""Callbacks that run before and after a compaction, and when a conversation is closed.

Hooks come from embedding programs. Each runs in its own task with a time limit, so a hook that fails or hangs stops
neither the other hooks nor the compaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

logger = logging.getLogger("holdfast.compaction")

CANCEL_TIMEOUT = 1.0
"""Seconds that a cancelled hook may take to end before it is abandoned."""

Hook = Callable[[str], Awaitable[object]]
"""Called with a session id. Its errors are logged."""


class Hooks(msgspec.Struct, frozen=True):
    """The callbacks of an agent."""

    before: tuple[Hook, ...] = ()
    """Called before a compaction, with the current head."""
    after: tuple[Hook, ...] = ()
    """Called after a compaction, with the new head."""
    closing: tuple[Hook, ...] = ()
    """Called with the head when the agent is closed or leaves the conversation; once until the next turn."""
    limit: float = 10.0
    """Seconds that each hook may take before it is cancelled."""


async def run(hooks: Sequence[Hook], session_id: str, limit: float) -> None:
    """Run all hooks, one after the other."""
    for hook in hooks:
        await _run_one(hook, session_id, limit)


async def _run_one(hook: Hook, session_id: str, limit: float) -> None:
    async def call() -> None:
        await hook(session_id)

    # A separate task, so that a hook that cancels its task does not cancel the caller.
    task = asyncio.create_task(call())
    try:
        await asyncio.wait([task], timeout=limit)
    finally:
        is_late = task.cancel()
        await asyncio.wait([task], timeout=CANCEL_TIMEOUT)
    if is_late:
        logger.error("a compaction hook was cancelled after %g s", limit)
    elif task.cancelled():
        logger.error("a compaction hook cancelled itself")
    elif error := task.exception():
        logger.error("a compaction hook failed", exc_info=error)
