"""Conversations and their messages as a client gets them: in lists, and a stretch of the transcript at a time."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast import content_parts, types
from holdfast.rpc_server import wire_types
from holdfast.store import async_db

LARGEST = 1_000_000
"""Characters of the messages of one answer, of which there is always one at least."""
PAGE = 100


def listed(head: types.Session, is_open: bool) -> wire_types.Listed:
    """A conversation in a list."""
    return wire_types.Listed(
        session_id=head.id,
        conversation_id=head.conversation_id,
        title=head.title,
        live=head.live,
        started_at=head.started_at,
        active_at=head.active_at,
        last_seq=head.last_seq,
        source=head.source,
        model=head.model,
        open=is_open,
    )


async def stretch(
    db: async_db.AsyncSessionDB, found: types.Conversation, after: int, limit: int
) -> list[wire_types.Said]:
    """The messages behind `after`: as many as were asked for, or as fit into one answer."""
    hides = [each for each in await db.hides(found.id) if each.shown_epoch is None]
    taken: list[wire_types.Said] = []
    room = LARGEST
    while len(taken) < limit and after < found.last_seq:
        upto = min(after + min(PAGE, limit - len(taken)), found.last_seq)
        for message in await db.transcript(found.id, after, upto):
            said = _said(message, hides)
            # What was said comes twice: as it is kept, and as text.
            room -= len(message.body) + len(said.text)
            if taken and room < 0:
                return taken
            taken.append(said)
        after = upto
    return taken


def _said(message: types.Message, hides: Sequence[types.Hide]) -> wire_types.Said:
    return wire_types.Said(
        seq=message.seq,
        uid=message.uid,
        session_id=message.session_id,
        role=message.role,
        at=message.at,
        text=content_parts.text(message.content),
        content=message.content,
        tool_calls=[*message.tool_calls],
        tool_call_id=message.tool_call_id,
        redacted=message.redacted,
        taken_back=any(each.from_seq <= message.seq <= each.to_seq for each in hides),
    )
