"""Pages of the list of conversations, the most recently active first.

Conversations move to the front while an editor turns pages, so a page begins after the last conversation that was
listed, wherever that one is now, and not at an offset.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from holdfast import errors, types
from holdfast.rpc import frames
from holdfast.store import async_db

PAGE_SIZE = 50

_CURSOR = re.compile(r"(\d{1,15}) ([-+.0-9a-fx]{1,40}p[-+]\d{1,4}) (.{1,300})", re.ASCII)


class Cursor(NamedTuple):
    """The last conversation of a page, and about how many come before it."""

    offset: int
    active_at: float
    conversation_id: str

    def __str__(self) -> str:
        return f"{self.offset} {self.active_at.hex()} {self.conversation_id}"


def parse_cursor(text: str) -> Cursor:
    """Parse a cursor. Raises RpcRefused if it is not one of ours."""
    if (found := _CURSOR.fullmatch(text)) is not None:
        offset, active_at, conversation_id = found.groups()
        try:
            at = float.fromhex(active_at)
        except (ValueError, OverflowError):
            at = math.inf
        if math.isfinite(at):
            return Cursor(int(offset), at, conversation_id)
    raise errors.RpcRefused(frames.INVALID_PARAMS, "Invalid cursor: use the nextCursor of a previous response.")


async def read_page(
    db: async_db.AsyncSessionDB, after: Cursor | None, size: int = PAGE_SIZE, folder: str | None = None
) -> tuple[list[types.Session], Cursor | None]:
    """Return the heads after the cursor, and the cursor of the next page if there is one.

    With a folder, only its conversations and those without a folder are listed and counted.
    """
    at = max(0, after.offset - 1) if after is not None else 0
    heads = await _read_heads(db, folder, at, size)
    while after is not None and at and not _begins_before(heads, after):
        # Conversations before the cursor were deleted.
        at = max(0, at - size)
        heads = await _read_heads(db, folder, at, size)
    while len(found := _after(heads, after)) <= size:
        more = await _read_heads(db, folder, at + len(heads), size + 1)
        heads += more
        if len(more) <= size:
            found = _after(heads, after)
            break
    if len(found) <= size:
        return found, None
    last = found[size - 1]
    return found[:size], Cursor(at + heads.index(last) + 1, last.active_at, last.conversation_id)


async def _read_heads(db: async_db.AsyncSessionDB, folder: str | None, skip: int, limit: int) -> list[types.Session]:
    return await db.list_sessions(owner="", folder=folder, limit=limit, skip=skip)


def _begins_before(heads: list[types.Session], cursor: Cursor) -> bool:
    return bool(heads) and (heads[0].conversation_id == cursor.conversation_id or heads[0].active_at > cursor.active_at)


def _after(heads: list[types.Session], cursor: Cursor | None) -> list[types.Session]:
    if cursor is None:
        return heads
    known = [each.conversation_id for each in heads if each.active_at == cursor.active_at]
    listed = known[: known.index(cursor.conversation_id) + 1] if cursor.conversation_id in known else []
    return [each for each in heads if each.active_at <= cursor.active_at and each.conversation_id not in listed]
