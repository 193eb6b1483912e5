"""Callbacks that run before and after a compaction, and when a conversation is closed.

Hooks come from embedding programs. Each runs in its own task with a time limit, so a hook that fails or hangs stops
neither the other hooks nor the compaction.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

logger = logging.getLogger("holdfast.compaction")
T = TypeVar("T")

CANCEL_TIMEOUT = 1.0
"""Seconds that cancelled code may take to end before it is abandoned."""

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
        task = await run_limited(functools.partial(hook, session_id), limit)
        if not task.done() or task.cancelled():
            logger.error("a compaction hook cancelled itself or was cancelled after %g s", limit)
        elif error := task.exception():
            logger.error("a compaction hook failed", exc_info=error)


async def run_limited(call: Callable[[], Awaitable[T]], seconds: float) -> asyncio.Task[T]:
    """Run foreign code for at most `seconds`, then cancel it; return its task, which may still be running.

    It has a task of its own, so that code that cancels its task does not cancel the caller.
    """

    async def run() -> T:
        return await call()

    task = asyncio.create_task(run())
    try:
        await asyncio.wait([task], timeout=seconds)
    finally:
        if task.cancel():
            await asyncio.wait([task], timeout=CANCEL_TIMEOUT)
    return task
