"""What a conversation has said so far, read in stretches and told from first to last.

What was taken back by an undo is left out: it is no part of what the model knows.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator, Sequence
from functools import partial

from holdfast import content_parts, errors, types
from holdfast.acp import updates
from holdfast.store import async_db, db

logger = logging.getLogger("holdfast.acp")

PAGE = 50
LARGEST = 5_000_000
"""Bytes of a picture that is shown again."""


async def messages(
    store: async_db.AsyncSessionDB, conversation_id: str, after: int, last: int, within: float | None = None
) -> AsyncIterator[types.Message]:
    """The messages behind `after`, up to `last`. TimeoutError where the store does not answer `within` so many
    seconds, as often as it is asked."""
    if after >= last:
        return
    async with asyncio.timeout(within):
        hides = [each for each in await store.hides(conversation_id) if each.shown_epoch is None]
    while after < last:
        upto = min(after + PAGE, last)
        async with asyncio.timeout(within):
            found = await store.transcript(conversation_id, after, upto)
        for message in found:
            if not _is_hidden(message, hides):
                yield message
        after = upto


async def pictures(
    store: async_db.AsyncSessionDB, message: types.Message, within: float | None = None
) -> list[updates.Update]:
    """Those that a person sent with a message; TimeoutError as above."""
    if message.role != "user":
        return []
    try:
        found = content_parts.parse(message.content)
    except errors.StoreCorrupt:
        return []  # It is said where its words are told.
    async with asyncio.timeout(within):
        return await _pictures(store, message.uid, found)


def _is_hidden(message: types.Message, hides: Sequence[types.Hide]) -> bool:
    return any(each.from_seq <= message.seq <= each.to_seq for each in hides)


async def _pictures(
    store: async_db.AsyncSessionDB, uid: str, found: Sequence[content_parts.Part]
) -> list[updates.Update]:
    shown = [part for part in found if isinstance(part, content_parts.Image) and (part.blob or part.data)]
    made = [
        (part.media_type, part.data or await store.run(partial(_data, store.db, part.blob)))
        for part in shown
        if part.media_type.startswith("image/")
    ]
    return [updates.picture(media_type, data, uid) for media_type, data in made if data]


def _data(store: db.SessionDB, digest: str) -> str:
    """The bytes in base64; nothing where they cannot be had, or are too many: the words are told all the same."""
    try:
        found = store.blobs.get(digest)
        if found is None or found.size > LARGEST:
            return ""
        with store.blobs.open(digest) as content:
            return base64.b64encode(content.read()).decode()
    except (errors.HoldfastError, OSError) as error:
        logger.warning("a picture cannot be shown again: %s", error)
        return ""
