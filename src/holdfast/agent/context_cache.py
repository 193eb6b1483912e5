"""What the model is shown, kept between turns.

The store computes the context; a view holds what it computed last, and the messages this agent has appended
since. Each acknowledged append says where it landed: the next seq at the same epoch means nobody else wrote,
and the view goes on without reading. Anything else means it is read again before the model is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast import types
from holdfast.model import tokens
from holdfast.store import async_db, message_codec, tool_pairs


class ContextCache:
    """The context of one conversation, as of (epoch, last_seq)."""

    def __init__(self, db: async_db.AsyncSessionDB, conversation_id: str) -> None:
        self._db = db
        self._conversation_id = conversation_id
        self._messages: list[types.Message] = []
        self.mark: tuple[int, int] | None = None
        self.loads = 0
        self._changes = 0

    def forget(self) -> None:
        """Read the context again before it is used."""
        self._changes += 1
        self.mark = None

    def settle(self, epoch: int, last_seq: int) -> None:
        """Forget what is held, unless the conversation still stands where the view does."""
        if self.mark != (epoch, last_seq):
            self.forget()

    def add(self, receipt: types.Receipt, message: types.NewMessage) -> types.Message:
        """A message this agent has just appended, as it stands in the log."""
        stored = _stored(receipt, message)
        self._changes += 1
        if self.mark == (receipt.epoch, receipt.seq - 1):
            self._messages.append(stored)
            self.mark = (receipt.epoch, receipt.seq)
        elif self.mark is None or receipt.seq > self.mark[1] or receipt.epoch != self.mark[0]:
            self.mark = None
        return stored

    async def messages(self) -> Sequence[types.Message]:
        """Every call with its result next to it, in the order of the calls: what the store would say now."""
        while self.mark is None:
            changes = self._changes
            found = await self._db.context(self._conversation_id)
            # What a message takes is kept with it; to count them all for the first time is no work for the loop.
            await asyncio.to_thread(_weigh, found)
            # Somebody may ask beside a turn that appends meanwhile: what was read then is old already.
            if changes == self._changes:
                self._messages, self.mark = list(found), (found.epoch, found.last_seq)
                self.loads += 1
        self._tidy()
        return self._messages

    def _tidy(self) -> None:
        """Results of parallel calls were appended as they came; only the newest calls can be out of order."""
        start = len(self._messages)
        while start and self._messages[start - 1].role == "tool":
            start -= 1
        if start and len(self._messages) - start > 1:
            arranged, _ = tool_pairs.arrange(self._messages[start - 1 :], None)
            self._messages[start - 1 :] = arranged


def _weigh(messages: Sequence[types.Message]) -> None:
    for message in messages:
        tokens.size(message)


def _stored(receipt: types.Receipt, message: types.NewMessage) -> types.Message:
    body = message_codec.encode(message.content, message.tool_calls, message.tool_call_id, message.model, message.usage)
    at = message.at if message.at is not None else 0.0
    return types.Message(receipt.seq, receipt.uid, receipt.session_id, message.role, at, body)
