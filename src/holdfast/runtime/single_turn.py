"""One message to a conversation, and the events of its turn; it can be stopped at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast import events, types
from holdfast.runtime import runtime

COMPACTING = "The conversation is being compacted. Ctrl-C leaves without it."

Show = Callable[[events.AnyEvent], None]


class Asking:
    """A message on its way. `ask` is called once."""

    def __init__(self, door: runtime.Runtime, conversation_id: str, show: Show) -> None:
        self._door, self._conversation_id, self._show = door, conversation_id, show
        self._begun = self._unwanted = False
        self._stops = set[asyncio.Task[None]]()
        self._settling: asyncio.Task[None] | None = None

    async def ask(self, words: str, content: types.Content | None = None) -> events.TurnResult | None:
        """What became of the turn; None when it failed in a way that a notice has told.

        A compaction that the turn began is waited for: the program ends with the answer. What `show` raises stops
        the turn, and is raised when the turn has ended.
        """
        # Whoever asks leaves with the answer: a notice that came in meanwhile waits for somebody who sees its turn.
        with self._door.subscribe(self._conversation_id, takes_inbox=False) as heard:
            showing = asyncio.create_task(self._listen(heard))
            answered = self._door.submit(self._conversation_id, events.Submit(words, content=content))
            self._begun = True
            if self._unwanted:
                self.stop()
            try:
                both: list[asyncio.Future[Any]] = [answered, showing]
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                if not answered.done():
                    self.stop()
                    await asyncio.wait([answered])
                await self._settle()
            finally:
                heard.put(None)
                await showing
        return None if answered.cancelled() or answered.exception() else answered.result()

    async def _settle(self) -> None:
        """Wait for a background compaction, unless the turn or this wait is interrupted."""
        if not self._door.is_compacting(self._conversation_id) or self._unwanted:
            return
        self._door.publish(self._conversation_id, events.Notice(COMPACTING))
        self._settling = asyncio.create_task(self._door.wait_for_compaction(self._conversation_id))
        await asyncio.wait([self._settling])

    def stop(self) -> None:
        """Stop the turn, also one that is only about to begin, or the wait for a background compaction."""
        self._unwanted = True
        if self._settling is not None:
            self._settling.cancel()
        elif self._begun:
            self._interrupt()

    def _interrupt(self) -> None:
        stopping = asyncio.create_task(self._door.send(self._conversation_id, events.Interrupt()))
        self._stops.add(stopping)
        stopping.add_done_callback(self._stops.discard)

    async def _listen(self, heard: runtime.Subscription) -> None:
        async for emitted in heard:
            self._show(emitted.event)


async def command(door: runtime.Runtime, conversation_id: str, line: str, show: Show) -> None:
    """A line that begins with a slash: what it has to say is shown as it comes, and all of it when this returns."""
    with door.subscribe(conversation_id, takes_inbox=False) as heard:
        showing = asyncio.create_task(_shown(heard, show))
        try:
            await door.send(conversation_id, events.Command(line, "once"), show)
        finally:
            heard.put(None)
            await showing


async def _shown(heard: runtime.Subscription, show: Show) -> None:
    async for emitted in heard:
        show(emitted.event)
