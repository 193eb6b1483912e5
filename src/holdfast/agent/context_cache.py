"""The context of one conversation, cached between turns.

The store computes the context; the cache holds the last result and the messages that this agent appended since. Every
receipt says where a message was stored: the next seq at the same epoch means that no other process wrote in between,
so the cache stays valid without reading. Otherwise the context is read again before the next model request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast import types
from holdfast.model import tokens
from holdfast.store import async_db, message_codec, tool_pairs


class ContextCache:
    """The context of one conversation as of (epoch, last_seq), and the ids by which the agent knows it."""

    def __init__(self, db: async_db.AsyncSessionDB, session_id: str) -> None:
        self._db = db
        self.conversation_id = self.session_id = session_id
        """`session_id` is the head, as far as this agent knows."""
        self._messages: list[types.Message] = []
        self.mark: tuple[int, int] | None = None
        self.folder_seq = 0
        """The last message that this agent wrote; the folder of the conversation was compared before it."""
        self.loads = 0
        self._changes = 0

    def invalidate(self) -> None:
        """Read the context again before it is used."""
        self._changes += 1
        self.mark = None

    def compare(self, epoch: int, last_seq: int) -> bool:
        """Invalidate the cache unless the conversation is still at its mark; return whether it was valid."""
        valid = self.mark == (epoch, last_seq)
        if not valid:
            self.invalidate()
        return valid

    def move(self, head_id: str) -> None:
        """Continue with a new head, which a compaction of this agent created."""
        self.session_id = head_id
        self.invalidate()

    def add(self, receipt: types.Receipt, message: types.NewMessage) -> types.Message:
        """Add a message that this agent has just appended; return it as stored."""
        body = message_codec.encode(
            message.content, message.tool_calls, message.tool_call_id, message.model, message.usage
        )
        stored = types.Message(receipt.seq, receipt.uid, receipt.session_id, message.role, message.at or 0.0, body)
        self.session_id = receipt.session_id
        self._changes += 1
        if self.mark == (receipt.epoch, receipt.seq - 1):
            self._messages.append(stored)
            self.mark = (receipt.epoch, receipt.seq)
        elif self.mark is None or receipt.seq > self.mark[1] or receipt.epoch != self.mark[0]:
            self.mark = None
        return stored

    async def messages(self) -> Sequence[types.Message]:
        """Return the context as the store would: every call is followed by its results, in the order of the calls."""
        while self.mark is None:
            changes = self._changes
            context = await self._db.context(self.conversation_id)
            # Messages keep their token count: known ones are not counted again, and new ones not on the loop.
            known = {message: message for message in self._messages}
            messages = [known.get(message, message) for message in context]
            await asyncio.to_thread(sum, map(tokens.size, messages))
            # A concurrent turn may have appended meanwhile: then the context that was read is outdated.
            if changes == self._changes:
                self._messages, self.mark = messages, (context.epoch, context.last_seq)
                self.loads += 1
        self._sort_results()
        return self._messages

    def _sort_results(self) -> None:
        """Sort the results of the newest calls: parallel calls append them in the order of completion."""
        start = len(self._messages)
        while start and self._messages[start - 1].role == "tool":
            start -= 1
        if start and len(self._messages) - start > 1:
            arranged, _ = tool_pairs.arrange(self._messages[start - 1 :], None)
            self._messages[start - 1 :] = arranged
