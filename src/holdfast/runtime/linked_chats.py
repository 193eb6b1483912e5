"""Copies of turns for linked chats, so that each chat of a person shows what was said in the others.

A copy is a notice in the outbox. That of a message is queued when its turn begins, that of the reply after the turn,
outside of the transaction that stores the reply. A gateway that is killed in between repeats the turn of its message,
and queues the copies of the message and of the reply again; another process leaves the log complete and the other chats
without the copy of the reply. The key of a copy depends on its message, so a repeated turn queues none twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from hashlib import blake2b
from itertools import islice
from urllib.parse import unquote

from holdfast import content_parts, events, types
from holdfast.store import async_db

logger = logging.getLogger("holdfast.runtime")

MAX_COPY = 1_500
"""The longest copied text in characters. The gateway shortens it further if a platform has a lower limit."""
NO_CHAT = frozenset({"http", "hooks"})
"""Platforms whose clients receive nothing but the response to their request."""
RECIPIENT = "linked"
"""The field of an address that names the sender whose link a copy depends on."""
SHORTENED = "… (/recall {seq} shows all of it)"

Texts = list[tuple[types.Message, str]]
"""Messages, and their texts as they are shown in another chat."""


class TurnCopies:
    """Queues copies of a turn for every linked chat of its conversation but `route`, where the turn is shown."""

    def __init__(
        self,
        db: async_db.AsyncSessionDB,
        conversation_id: str,
        route: str | None,
        wake_sender: Callable[[str], object],
    ) -> None:
        self._db, self._conversation_id, self._route, self._wake_sender = db, conversation_id, route, wake_sender
        self._begun: list[asyncio.Task[None]] = []
        self._in_order = asyncio.Lock()

    def on_event(self, event: events.AnyEvent) -> None:
        """Begin to copy a message of the user when it is stored."""
        if isinstance(event, events.MessageStored) and event.role == "user":
            self._begun.append(asyncio.create_task(self._post(partial(self._read_message, event.seq))))

    async def finish(self, result: events.TurnResult) -> None:
        """Copy the reply, and the messages that were not copied yet."""
        if self._begun:
            await asyncio.wait(self._begun)
        if result.messages:
            await self._post(partial(self._read_turn, result))

    async def _post(self, read: Callable[[], Awaitable[Texts]]) -> None:
        if self._route is not None and self._route.split(":")[3:4] != ["dm"]:
            return
        try:
            async with self._in_order:
                chats = [
                    each for each in await self._db.mail.linked_chats(self._conversation_id) if self._is_shown(each)
                ]
                for message, text in await read() if chats else ():
                    for chat in chats:
                        await self._post_copy(chat, message, text)
        except Exception as error:  # noqa: BLE001 -- a copy never affects a turn
            logger.warning("could not copy a turn to the linked chats of %s: %s", self._conversation_id, error)

    def _is_shown(self, chat: types.Home) -> bool:
        # In a group other people would read the copy.
        is_direct = chat.route.split(":")[2:4] == [chat.platform, "dm"]
        return chat.route != self._route and is_direct and chat.platform not in NO_CHAT

    async def _post_copy(self, chat: types.Home, message: types.Message, text: str) -> None:
        address = {**chat.address, RECIPIENT: chat.sender}
        copy = types.NewOutgoing(
            platform=chat.platform, chat=chat.chat, address=address, text=text, kind="notice", seq=message.seq
        )
        key = blake2b(f"{message.uid} {chat.route}".encode(), digest_size=20).hexdigest()
        await self._db.mail.post(copy, key=f"copy:{key}", conversation_id=self._conversation_id)
        self._wake_sender(chat.platform)

    async def _read_message(self, seq: int) -> Texts:
        return self._said(await self._db.transcript(self._conversation_id, seq - 1, seq))

    async def _read_turn(self, result: events.TurnResult) -> Texts:
        """Return the user's messages and the last reply of a turn."""
        last = result.messages[-1]
        # A repeated turn has no reply if an earlier attempt stored it.
        later = [last] if last.role == "assistant" else await self._db.transcript(self._conversation_id, last.seq)
        is_reply = (each for each in later if each.role == "assistant" and _text(each) == result.final_response != "")
        return self._said(result.messages) + [(each, _shorten(each)) for each in islice(is_reply, 1)]

    def _said(self, messages: Iterable[types.Message]) -> Texts:
        """Return the messages of the user; a notice of the program has the same role."""
        place = "elsewhere" if self._route is None else f"on {unquote(self._route.split(':')[2])}"
        own = (each for each in messages if each.role == "user" and not content_parts.notice_kind(each.content))
        return [(each, f"You {place}: {_shorten(each)}") for each in own]


def _text(message: types.Message) -> str:
    return content_parts.text(message.content)


def _shorten(message: types.Message) -> str:
    text = _text(message)
    return text if len(text) <= MAX_COPY else text[:MAX_COPY] + SHORTENED.format(seq=message.seq)
