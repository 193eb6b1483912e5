"""Originals for a person: messages by number (17 or 17-23) or by words, whatever stands for them in the context."""

from __future__ import annotations

import re

from holdfast import errors, types
from holdfast.store import async_db
from holdfast.tools import recall

MOST = 50
HITS = 15

_NUMBERS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


async def recalled(db: async_db.AsyncSessionDB, conversation_id: str, argument: str) -> str:
    """What was asked for, word for word; InvalidArgument where that is not the number of any message."""
    if not argument:
        raise errors.InvalidArgument("/recall takes the number of a message, a range (17-23), or words.")
    numbers = _NUMBERS.fullmatch(argument)
    if numbers:
        return await _by_number(db, conversation_id, int(numbers[1]), int(numbers[2] or numbers[1]))
    hits = await db.search(argument, session_id=conversation_id, limit=HITS)
    # The index knows words alone.
    found = [each for hit in hits for each in await db.transcript(conversation_id, hit.seq - 1, hit.seq)]
    return "\n".join(map(_line, found)) or "Nothing was found."


async def _by_number(db: async_db.AsyncSessionDB, conversation_id: str, first: int, last: int) -> str:
    if not 1 <= first <= last:
        raise errors.InvalidArgument("Messages are numbered from 1 on, and a range begins with the smaller number.")
    there = min(last, (await db.conversation(conversation_id)).last_seq)
    until = min(there, first + MOST - 1)
    found = await db.transcript(conversation_id, first - 1, until) if first <= until else []
    lines = list(map(_line, found))
    if until < there:
        lines.append(f"[{MOST} messages at once; /recall {until + 1}-{there} shows the others.]")
    return "\n".join(lines) or "Nothing was found."


def _line(message: types.Message) -> str:
    return f"[{message.seq} {message.role}] {recall.shown(message)}"
