"""Copies of turns for linked chats, so that each chat of a person shows what was said in the others.

A copy is a notice in the outbox. It is queued after the turn, outside of the transaction that stores the reply. A
gateway that is killed in between queues it when it repeats the turn of its message; another process leaves the log
complete and the other chats without the copy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from hashlib import blake2b
from itertools import islice
from urllib.parse import unquote

from holdfast import content_parts, events, types
from holdfast.store import async_db

logger = logging.getLogger("holdfast.runtime")

MAX_COPY = 1_500
"""The longest copied text in characters, which every platform can send as one message."""
NO_CHAT = frozenset({"http", "hooks"})
"""Platforms whose clients receive nothing but the response to their request."""
RECIPIENT = "linked"
"""The field of an address that names the sender whose link a copy depends on."""
SHORTENED = "… (/recall {seq} shows all of it)"


async def post_copies(
    db: async_db.AsyncSessionDB, route: str | None, result: events.TurnResult, wake_sender: Callable[[str], object]
) -> None:
    """Queue the message and the reply of a direct turn for every linked chat of the conversation but `route`."""
    if not result.messages or (route is not None and route.split(":")[3:4] != ["dm"]):
        return
    try:
        for chat in await db.mail.linked_chats(result.conversation_id):
            # In a group other people would read the copy.
            is_direct = chat.route.split(":")[2:4] == [chat.platform, "dm"]
            if chat.route != route and is_direct and chat.platform not in NO_CHAT:
                for message, text in await _texts(db, route, result):
                    copy = types.NewOutgoing(
                        platform=chat.platform,
                        chat=chat.chat,
                        address={**chat.address, RECIPIENT: chat.sender},
                        text=text,
                        kind="notice",
                        seq=message.seq,
                    )
                    key = blake2b(f"{message.uid} {chat.route}".encode(), digest_size=20).hexdigest()
                    await db.mail.post(copy, key=f"copy:{key}", conversation_id=result.conversation_id)
                wake_sender(chat.platform)
    except Exception as error:  # noqa: BLE001 -- a copy never affects a turn
        logger.warning("could not copy a turn to the linked chats of %s: %s", result.conversation_id, error)


async def _texts(
    db: async_db.AsyncSessionDB, route: str | None, result: events.TurnResult
) -> list[tuple[types.Message, str]]:
    """Return the user's messages and the last reply of a turn, as they are shown in another chat."""
    place, last = "elsewhere" if route is None else f"on {unquote(route.split(':')[2])}", result.messages[-1]
    found = [(each, f"You {place}: {_shorten(each)}") for each in result.messages if each.role == "user"]
    # A repeated turn has no reply if an earlier attempt stored it.
    later = [last] if last.role == "assistant" else await db.transcript(result.conversation_id, last.seq)
    is_reply = (each for each in later if each.role == "assistant" and _text(each) == result.final_response != "")
    return found + [(each, _shorten(each)) for each in islice(is_reply, 1)]


def _text(message: types.Message) -> str:
    return content_parts.text(message.content)


def _shorten(message: types.Message) -> str:
    text = _text(message)
    return text if len(text) <= MAX_COPY else text[:MAX_COPY] + SHORTENED.format(seq=message.seq)
