"""Conversations for an editor to choose from, a page at a time, the most recently active first.

Meanwhile conversations become active and move to the front: a page begins behind the last one that was shown, wherever
that one was, and not at a number.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from holdfast import errors, types
from holdfast.rpc import frames
from holdfast.store import async_db

PAGE = 50
"""Conversations of one answer."""

_CURSOR = re.compile(r"(\d{1,15}) ([-+.0-9a-fx]{1,40}p[-+]\d{1,4}) (.{1,300})", re.ASCII)


class Cursor(NamedTuple):
    """The last conversation that was shown, and about how many come before it."""

    shown: int
    active_at: float
    conversation_id: str

    def __str__(self) -> str:
        return f"{self.shown} {self.active_at.hex()} {self.conversation_id}"


def cursor(text: str) -> Cursor:
    """One that was given; RpcRefused where it was not."""
    if (found := _CURSOR.fullmatch(text)) is not None:
        shown, active_at, conversation_id = found.groups()
        try:
            at = float.fromhex(active_at)
        except (ValueError, OverflowError):
            at = math.inf
        if math.isfinite(at):
            return Cursor(int(shown), at, conversation_id)
    raise errors.RpcRefused(frames.PARAMS, "That cursor was never given.")


async def page(
    store: async_db.AsyncSessionDB, after: Cursor | None, size: int = PAGE, folder: str | None = None
) -> tuple[list[types.Session], Cursor | None]:
    """The heads behind this one, and where the next page begins, where there is one.

    With a folder, those of it, and those of none: what a cursor counts are those, too.
    """
    at = max(0, after.shown - 1) if after is not None else 0
    heads = await _heads(store, folder, at, size)
    while after is not None and at and not _reaches(heads, after):
        # Some that came before it are not there any more.
        at = max(0, at - size)
        heads = await _heads(store, folder, at, size)
    while len(found := _behind(heads, after)) <= size:
        more = await _heads(store, folder, at + len(heads), size + 1)
        heads += more
        if len(more) <= size:
            found = _behind(heads, after)
            break
    if len(found) <= size:
        return found, None
    last = found[size - 1]
    return found[:size], Cursor(at + heads.index(last) + 1, last.active_at, last.conversation_id)


async def _heads(store: async_db.AsyncSessionDB, folder: str | None, skip: int, limit: int) -> list[types.Session]:
    return await store.list_sessions(owner="", folder=folder, limit=limit, skip=skip)


def _reaches(heads: list[types.Session], after: Cursor) -> bool:
    """Whether these begin before what comes behind it."""
    return bool(heads) and (heads[0].conversation_id == after.conversation_id or heads[0].active_at > after.active_at)


def _behind(heads: list[types.Session], after: Cursor | None) -> list[types.Session]:
    if after is None:
        return heads
    known = [each.conversation_id for each in heads if each.active_at == after.active_at]
    shown = known[: known.index(after.conversation_id) + 1] if after.conversation_id in known else []
    return [each for each in heads if each.active_at <= after.active_at and each.conversation_id not in shown]
