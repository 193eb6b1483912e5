"""One message or command without a session: run it, show its events, allow it to be interrupted at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast import events, types
from holdfast.runtime import runtime as runtime_module

COMPACTING = "Compacting the conversation. Press Ctrl-C to exit without it."

Show = Callable[[events.AnyEvent], None]


class SingleTurn:
    """One message and its turn. `run` may be called once."""

    def __init__(self, runtime: runtime_module.Runtime, conversation_id: str, show: Show) -> None:
        self._runtime, self._conversation_id, self._show = runtime, conversation_id, show
        self._submitted = self._stopped = False
        self._compaction: asyncio.Task[None] | None = None

    async def run(self, text: str, content: types.Content | None = None) -> events.TurnResult | None:
        """Submit the message and return the result; None if the turn raised, which a notice has reported.

        Waits for a compaction that the turn started, because the program exits afterwards. An exception of `show` stops
        the turn, and is raised when the turn has ended.
        """
        # The subscriber does not stay, so inbox notices wait for a front end that shows their turns.
        with self._runtime.subscribe(self._conversation_id, takes_inbox=False) as subscription:
            showing = asyncio.create_task(_show_events(subscription, self._show))
            result = self._runtime.submit(self._conversation_id, events.Submit(text, content=content))
            self._submitted = True
            if self._stopped:
                self.stop()
            try:
                both: list[asyncio.Future[Any]] = [result, showing]
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                if not result.done():
                    self.stop()
                    await asyncio.wait([result])
                await self._wait_for_compaction()
            finally:
                subscription.put(None)
                await showing
        return None if result.cancelled() or result.exception() else result.result()

    async def _wait_for_compaction(self) -> None:
        """Wait for a background compaction, unless the turn or this wait is interrupted."""
        if not self._runtime.is_compacting(self._conversation_id) or self._stopped:
            return
        self._runtime.publish(self._conversation_id, events.Notice(COMPACTING))
        self._compaction = asyncio.create_task(self._runtime.wait_for_compaction(self._conversation_id))
        await asyncio.wait([self._compaction])

    def stop(self) -> None:
        """Interrupt the turn, even before it has started, or the wait for a background compaction."""
        self._stopped = True
        if self._compaction is not None:
            self._compaction.cancel()
        elif self._submitted:
            self._runtime.stop(self._conversation_id)


async def run_command(runtime: runtime_module.Runtime, conversation_id: str, line: str, show: Show) -> None:
    """Run a slash command; all of its events have been shown when this returns."""
    with runtime.subscribe(conversation_id, takes_inbox=False) as subscription:
        showing = asyncio.create_task(_show_events(subscription, show))
        try:
            await runtime.send(conversation_id, events.Command(line, "once"), show)
        finally:
            subscription.put(None)
            await showing


async def _show_events(subscription: runtime_module.EventStream, show: Show) -> None:
    async for emitted in subscription:
        show(emitted.event)
