"""Commands about conversations: begin one, name it, find it, go to it, branch it off."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from holdfast import errors, events, time_format, types
from holdfast.agent.commands import base, turns
from holdfast.store import conversation_row, titles

LISTED = 15
OFFERED = 100
HITS = 10
TITLES = 1_000


async def new(asked: base.Asked) -> None:
    """The row comes with the first message: whoever opens a conversation and says nothing leaves nothing behind."""
    fresh = conversation_row.generate_session_id(time.time())
    if asked.argument:
        asked.desk.want_title(fresh, asked.argument)
    asked.emit(events.Moved(fresh, new=True))
    await _left(asked)


async def title(asked: base.Asked) -> None:
    db, here = asked.desk.db, asked.conversation_id
    try:
        if asked.argument:
            asked.emit(events.Titled(await db.set_session_title(here, asked.argument)))
            asked.desk.want_title(here, None)
            return
        found = (await db.conversation(here)).title
    except errors.ConversationDeleted:
        raise
    except errors.NoSuchSession:
        if asked.argument:
            asked.desk.want_title(here, titles.clean(asked.argument))
            asked.emit(events.Notice("The conversation gets this title with its first message."))
            return
        found = asked.desk.wanted_title(here)
    asked.emit(events.Answer(found or "This conversation has no title. /title TEXT gives it one."))


async def sessions(asked: base.Asked) -> None:
    heads = await asked.desk.db.list_sessions(owner=asked.desk.owner, limit=LISTED)
    lines = [_listed(head, head.conversation_id == asked.conversation_id) for head in heads]
    asked.emit(events.Answer("\n".join(lines) or "There are no conversations yet."))


def _listed(head: types.Session, here: bool) -> str:
    mark, many = "*" if here else " ", f"{head.last_seq:>5}"
    return f"{mark} {head.conversation_id}  {time_format.when(head.active_at)}  {many}  {head.title or ''}".rstrip()


async def resume(asked: base.Asked) -> None:
    db, owner = asked.desk.db, asked.desk.owner
    if asked.argument in ("", "last"):
        # Whoever is in the most recent one means the one before.
        recent = await db.list_sessions(owner=owner, limit=2)
        others = [head for head in recent if head.conversation_id != asked.conversation_id]
        if not others:
            raise errors.HoldfastError("There is no other conversation to go on with.")
        asked.emit(events.Moved(others[0].conversation_id))
        return
    asked.emit(events.Moved((await db.resolve(asked.argument, owner=owner, near=True)).conversation_id))


async def resumable(asked: base.Asked) -> Sequence[base.Candidate]:
    """All but the one this is, by title where there is one."""
    heads = await asked.desk.db.list_sessions(owner=asked.desk.owner, limit=OFFERED)
    return [
        base.Candidate(
            head.title or head.conversation_id, f"{time_format.when(head.active_at)}, {head.last_seq} messages"
        )
        for head in heads
        if head.conversation_id != asked.conversation_id
    ]


async def branch(asked: base.Asked) -> None:
    """Between turns: half of one would be nobody's to finish."""
    desk, here = asked.desk, asked.conversation_id
    async with turns.alone(asked):
        made = await desk.db.branch(here, title=asked.argument or None)
    if desk.models is not None:
        desk.models.follow(made.conversation_id, here)
    name, has = made.title or made.conversation_id, f"it has everything up to message {made.first_seq - 1}."
    if asked.place == "editor":
        asked.emit(events.Answer(f"{name} is a branch of this now: {has} Open it from your editor's list of sessions."))
        return
    asked.emit(events.Answer(f"This is {name} now, a branch: {has} {_way(asked.place, here)} goes back."))
    asked.emit(events.Moved(made.conversation_id))
    await _left(asked)


async def search(asked: base.Asked) -> None:
    """Over everything the person said anywhere; where it was said, and how to go there."""
    db, lines = asked.desk.db, await _titled(asked)
    hits = await db.search(asked.argument, owner=asked.desk.owner, limit=HITS, own=True)
    if not hits and not lines:
        asked.emit(events.Answer("Nothing was found. Try fewer or other words."))
        return
    for hit in hits:
        titled = await _title_of(asked, hit.conversation_id)
        here = "*" if hit.conversation_id == asked.conversation_id else " "
        lines.append(
            f"{here} {hit.conversation_id}  {hit.seq} {hit.role}  {time_format.when(hit.at)}  {titled}".rstrip()
        )
        lines.append(f"    {' '.join(hit.snippet.split())}")
    lines.append(f"{_way(asked.place)} goes to a conversation; there, /recall NUMBER shows a message as it was said.")
    asked.emit(events.Answer("\n".join(lines)))


async def _titled(asked: base.Asked) -> list[str]:
    """The conversations whose titles have all the words, a line each."""
    wanted = re.findall(r"\w+", asked.argument.casefold())
    heads = await asked.desk.db.list_sessions(owner=asked.desk.owner, limit=TITLES) if wanted else []
    found = [head for head in heads if all(word in (head.title or "").casefold() for word in wanted)]
    return [_listed(head, head.conversation_id == asked.conversation_id) for head in found[:HITS]]


async def _title_of(asked: base.Asked, conversation_id: str) -> str:
    try:
        return (await asked.desk.db.conversation(conversation_id)).title or ""
    except errors.NoSuchSession:
        return "(deleted meanwhile)"


def _way(place: events.Place, id: str = "ID") -> str:
    """What goes to another conversation, where it is asked for."""
    match place:
        case "editor":
            return "Your editor's list of sessions"
        case "once":
            return f"-r {id}"
        case _:
            return f"/resume {id}"


async def _left(asked: base.Asked) -> None:
    left = asked.desk.agents.peek(asked.conversation_id)
    if left is not None:
        await left.leave()
