"""The log of a conversation, as far as an editor was told of it: what was said before, and what others say meanwhile.

The store may be slow or down. So what others say is looked for beside all that is told, and what is told and needs the
store does not wait for it for long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from holdfast import errors, types
from holdfast.acp import history, update_queue, updates
from holdfast.runtime import runtime
from holdfast.store import notifications

logger = logging.getLogger("holdfast.acp")

SOON = 1.0
"""Seconds that what is to be told waits for what the store has to say of it."""

Send = Callable[[Sequence[updates.Update]], Awaitable[None]]


class Following:
    """Where an editor is in the log. `send` raises ConnectionError when it is gone."""

    def __init__(
        self,
        door: runtime.Runtime,
        conversation_id: str,
        teller: updates.Teller,
        waiting: update_queue.Backlog,
        send: Send,
    ) -> None:
        self._door, self.conversation_id, self._teller = door, conversation_id, teller
        self._waiting, self._send = waiting, send
        self._shown = 0
        """The last message that was told."""
        self._missed = set[int]()
        """Messages before it that were not, as the store did not give them in time."""
        self._own = set[int]()
        """Messages of turns of ours that are still to be told."""
        self.results: dict[str, types.Content] = {}
        """What came of calls whose end is still to be told."""
        self.news = asyncio.Event()
        """Somebody wrote."""

    async def last(self) -> int:
        """The last message of the log; 0 where nothing was said yet."""
        try:
            return (await self._door.db.snapshot(self.conversation_id)).last_seq
        except errors.ConversationDeleted:
            raise
        except errors.NoSuchSession:
            return 0

    async def begin(self, replayed: bool) -> None:
        """From what was said so far on; all of that is told first, where it is wanted."""
        last = await self.last()
        if replayed:
            await self._replay(last)
            await self._send(self._teller.unfinished())
        self._shown = last

    # --- what others say -----------------------------------------------------------------------------

    def hinted(self, hint: notifications.Hint) -> None:
        if hint.kind in ("moved", "lost") and hint.is_about(self.conversation_id):
            self.news.set()

    async def look(self) -> None:
        """Find what others said. Only what was found waits to be told, so nothing that is told waits for the store."""
        self.news.clear()
        # During a turn of ours it was us, or it is seen at the next look.
        if self._door.running(self.conversation_id):
            return
        try:
            last = await self.last()
            since = min([self._shown, *(seq - 1 for seq in self._missed)])
            async for message in history.messages(self._door.db, self.conversation_id, since, last):
                if not self._is_told(message.seq):
                    self._waiting.put(update_queue.Found(message, await history.pictures(self._door.db, message)))
                    await self._waiting.told()
                if not self._is_told(message.seq):
                    return
            # What is left of them is hidden.
            self._missed = {seq for seq in self._missed if seq > last}
            self._shown = max(self._shown, last)
        except errors.HoldfastError as error:
            # The next look is soon, and whoever says something is told.
            logger.debug("%s could not be looked at: %s", self.conversation_id, error)

    async def found(self, message: types.Message, pictures: Sequence[updates.Update]) -> None:
        """Tell what was found, unless it is ours: that is told when its turn comes."""
        ours = self._door.running(self.conversation_id) or any(seq <= message.seq for seq in self._own)
        if not self._is_told(message.seq) and not ours:
            self._missed.discard(message.seq)
            self._shown = max(self._shown, message.seq)
            await self._repeat(message, pictures)

    def _is_told(self, seq: int) -> bool:
        return seq <= self._shown and seq not in self._missed

    # --- what is said here ---------------------------------------------------------------------------

    def expect(self, seq: int) -> None:
        """A message of a turn of ours, which is told in its place."""
        self._own.add(seq)

    async def stored(self, seq: int, role: types.Role) -> None:
        """Such a message, when it is its turn. What others said before it is told before it."""
        self._own.discard(seq)
        try:
            if role == "user":
                await self._replay(seq - 1, SOON)
            if role == "tool":
                await self._keep(seq)
        except ConnectionError:
            raise
        except (errors.HoldfastError, TimeoutError) as error:
            # What came of the call is told in short, and what others said when it is looked for the next time.
            why = error if isinstance(error, errors.HoldfastError) else "the store did not answer in time"
            logger.warning("not all of %s could be told at message %d: %s", self.conversation_id, seq, why)
            if role == "user":
                self._missed.update(range(self._shown + 1, seq))
        if role == "assistant":
            self._teller.seq = seq
        self._shown = max(self._shown, seq)

    async def _keep(self, seq: int) -> None:
        async with asyncio.timeout(SOON):
            for message in await self._door.db.transcript(self.conversation_id, seq - 1, seq):
                self.results[message.tool_call_id or ""] = message.content

    # --- telling -------------------------------------------------------------------------------------

    async def _replay(self, last: int, within: float | None = None) -> None:
        """Tell what the log has behind what was told, up to this message."""
        db = self._door.db
        async for message in history.messages(db, self.conversation_id, self._shown, last, within):
            pictures = await history.pictures(db, message, within)
            self._shown = message.seq
            await self._repeat(message, pictures)
        self._shown = max(self._shown, last)

    async def _repeat(self, message: types.Message, pictures: Sequence[updates.Update]) -> None:
        try:
            await self._send([*self._teller.replay(message), *pictures])
        except ConnectionError:
            raise
        except Exception:
            # The border of one message: what cannot be told keeps nothing behind it from being told.
            logger.exception("message %d of %s cannot be told", message.seq, self.conversation_id)
            await self._send([updates.untold(message.seq)])
