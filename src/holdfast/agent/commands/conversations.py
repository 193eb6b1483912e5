"""Commands about conversations: begin, name, find, continue and branch them."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from holdfast import errors, events, safe_text, types
from holdfast.agent.commands import base, turns
from holdfast.store import conversation_row, titles

MAX_LISTED = 15
MAX_COMPLETIONS = 100
MAX_HITS = 10
MAX_TITLES = 1_000


async def new(invocation: base.Invocation) -> None:
    """Continue in a new conversation. It is stored with its first message, so an unused one leaves no trace."""
    new_id = conversation_row.generate_session_id(time.time())
    if invocation.argument:
        invocation.host.want_title(new_id, invocation.argument)
    invocation.emit(events.Moved(new_id, new=True))


async def title(invocation: base.Invocation) -> None:
    host, conversation_id = invocation.host, invocation.conversation_id
    try:
        if invocation.argument:
            invocation.emit(events.Titled(await host.db.set_session_title(conversation_id, invocation.argument)))
            host.want_title(conversation_id, None)
            return
        found = (await host.db.conversation(conversation_id)).title
    except errors.ConversationDeleted:
        raise
    except errors.NoSuchSession:
        if invocation.argument:
            host.want_title(conversation_id, titles.clean(invocation.argument))
            invocation.emit(events.Notice("The conversation gets this title with its first message."))
            return
        found = host.wanted_title(conversation_id)
    invocation.answer(found or "This conversation has no title. /title TEXT sets one.")


async def sessions(invocation: base.Invocation) -> None:
    heads = await invocation.host.db.list_sessions(owner=invocation.host.owner, limit=MAX_LISTED)
    invocation.answer("\n".join(_line(head, invocation) for head in heads) or "There are no conversations yet.")


def _line(head: types.Session, invocation: base.Invocation) -> str:
    mark = "*" if head.conversation_id == invocation.conversation_id else " "
    when, count = safe_text.date(head.active_at), f"{head.last_seq:>5}"
    return f"{mark} {head.conversation_id}  {when}  {count}  {head.title or ''}".rstrip()


async def resume(invocation: base.Invocation) -> None:
    db, owner = invocation.host.db, invocation.host.owner
    if invocation.argument in ("", "last"):
        # In the most recent conversation, `last` means the one before.
        recent = await db.list_sessions(owner=owner, limit=2)
        others = [head for head in recent if head.conversation_id != invocation.conversation_id]
        if not others:
            raise errors.HoldfastError("There is no other conversation to continue.")
        invocation.emit(events.Moved(others[0].conversation_id))
        return
    try:
        found = await db.resolve(invocation.argument, owner=owner, near=True)
    except errors.ConversationDeleted:
        raise
    except errors.NoSuchSession:
        problem = f"There is no conversation {errors.quote(invocation.argument)}. /sessions lists them."
        raise errors.NoSuchSession(invocation.argument, problem) from None
    invocation.emit(events.Moved(found.conversation_id))


async def complete_resume(invocation: base.Invocation) -> Sequence[base.Candidate]:
    heads = await invocation.host.db.list_sessions(owner=invocation.host.owner, limit=MAX_COMPLETIONS)
    return [
        base.Candidate(
            head.title or head.conversation_id, f"{safe_text.date(head.active_at)}, {head.last_seq} messages"
        )
        for head in heads
        if head.conversation_id != invocation.conversation_id
    ]


async def branch(invocation: base.Invocation) -> None:
    """Branch between turns: no agent would finish half a turn."""
    host, conversation_id = invocation.host, invocation.conversation_id
    async with turns.exclusive(invocation):
        made = await host.db.branch(conversation_id, title=invocation.argument or None)
    if host.models is not None:
        host.models.follow(made.conversation_id, conversation_id)
    name, content = made.title or made.conversation_id, f"It has all messages up to {made.first_seq - 1}."
    if invocation.place == "editor":
        invocation.answer(f"Created the branch {name}. {content} Open it from your editor's list of sessions.")
        return
    invocation.answer(
        f"You are in the branch {name} now. {content} {_way(invocation.place, conversation_id)} goes back."
    )
    invocation.emit(events.Moved(made.conversation_id))


async def search(invocation: base.Invocation) -> None:
    """Search all conversations of the owner, titles first."""
    db, lines = invocation.host.db, await _search_titles(invocation)
    hits = await db.search(invocation.argument, owner=invocation.host.owner, limit=MAX_HITS, own=True)
    if not hits and not lines:
        invocation.answer("Nothing was found. Try fewer or other words.")
        return
    for hit in hits:
        mark = "*" if hit.conversation_id == invocation.conversation_id else " "
        where, title = f"{hit.seq} {hit.role}  {safe_text.date(hit.at)}", await _title(invocation, hit)
        lines.append(f"{mark} {hit.conversation_id}  {where}  {title}".rstrip())
        lines.append(f"    {' '.join(hit.snippet.split())}")
    lines.append(f"{_way(invocation.place)} opens a conversation; there, /recall NUMBER shows a message verbatim.")
    invocation.answer("\n".join(lines))


async def _search_titles(invocation: base.Invocation) -> list[str]:
    words = re.findall(r"\w+", invocation.argument.casefold())
    heads = await invocation.host.db.list_sessions(owner=invocation.host.owner, limit=MAX_TITLES) if words else []
    found = [head for head in heads if all(word in (head.title or "").casefold() for word in words)]
    return [_line(head, invocation) for head in found[:MAX_HITS]]


async def _title(invocation: base.Invocation, hit: types.Hit) -> str:
    try:
        return (await invocation.host.db.conversation(hit.conversation_id)).title or ""
    except errors.NoSuchSession:
        return "(deleted meanwhile)"


def _way(place: events.Place, id: str = "ID") -> str:
    """Return how another conversation is opened in a front end."""
    match place:
        case "editor":
            return "Your editor's list of sessions"
        case "once":
            return f"-r {id}"
        case _:
            return f"/resume {id}"
