"""What is to be seen of a conversation, read from the store."""

from __future__ import annotations

import msgspec

from holdfast import errors, safe_text, types
from holdfast.store import async_db
from holdfast.terminal import event_text
from holdfast.tui import entries


class Told(msgspec.Struct, frozen=True):
    """A conversation, and what is to be seen of it."""

    conversation: types.Conversation
    story: entries.Story


async def read(
    db: async_db.AsyncSessionDB, conversation_id: str, upto: int | None = None, known: Told | None = None
) -> Told:
    """As it is now; only the messages up to a number, where that is given. Raises NoSuchSession before it begins.

    What is `known` of it is read again only where it has changed since: every summary there is may be a lot.
    """
    found = await db.conversation(conversation_id)
    last = found.last_seq if upto is None else min(found.last_seq, upto)
    if known is not None and _same(found, known.conversation):
        return Told(found, msgspec.structs.replace(known.story, last=last))
    compactions, hides = await db.compactions(conversation_id), await db.hides(conversation_id)
    return Told(
        found,
        entries.Story(last, 1, tuple(hides), tuple(compactions), found.compaction_epoch),
    )


def _same(now: types.Conversation, before: types.Conversation) -> bool:
    return (now.id, now.epoch, now.compaction_epoch) == (before.id, before.epoch, before.compaction_epoch)


async def unfinished(db: async_db.AsyncSessionDB, told: Told) -> bool:
    """Whether the last message has no answer, and nobody is about to give one."""
    last = await db.transcript(told.conversation.id, max(told.story.last - 1, 0), told.story.last)
    try:
        if not last or (last[-1].role == "assistant" and not last[-1].tool_calls):
            return False
    except errors.StoreCorrupt:
        return False
    held = await db.leases()
    return not any(
        each.conversation_id == told.conversation.id and each.purpose == "turn" and each.state == "held"
        for each in held
    )


def heading(found: types.Conversation | None, story: entries.Story, marks: event_text.Marks) -> str:
    """What it is, in one line."""
    if found is None:
        return f"Holdfast {marks.dot} a new conversation"
    made = len(story.chain)
    told = [found.title or found.id, safe_text.count(found.last_seq, "message")]
    told += [safe_text.count(made, "compaction")] if made else []
    return safe_text.safe(f" {marks.dot} ".join(told))
