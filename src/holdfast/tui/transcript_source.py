"""Reads the messages range of a conversation from the store."""

from __future__ import annotations

import msgspec

from holdfast import safe_text, types
from holdfast.store import async_db
from holdfast.terminal import event_text, recap
from holdfast.tui import entries


class ConversationView(msgspec.Struct, frozen=True):
    """A conversation, and the range that is shown of it."""

    conversation: types.Conversation
    range: entries.TranscriptRange


async def read(
    db: async_db.AsyncSessionDB,
    conversation_id: str,
    upto: int | None = None,
    known: ConversationView | None = None,
) -> ConversationView:
    """Read a conversation up to a seq, or all of it; raises NoSuchSession if it does not exist yet.

    Compactions and hides are read again only if the epochs differ from those `known`: summaries may be long.
    """
    found = await db.conversation(conversation_id)
    last = found.last_seq if upto is None else min(found.last_seq, upto)
    if known is not None and _epochs(found) == _epochs(known.conversation):
        return ConversationView(found, msgspec.structs.replace(known.range, last=last))
    compactions, hides = await db.compactions(conversation_id), await db.hides(conversation_id)
    shown = entries.TranscriptRange(last, 1, tuple(hides), tuple(compactions), found.compaction_epoch)
    return ConversationView(found, shown)


def _epochs(conversation: types.Conversation) -> tuple[str, int, int | None]:
    return conversation.id, conversation.epoch, conversation.compaction_epoch


async def is_unfinished(db: async_db.AsyncSessionDB, view: ConversationView) -> bool:
    """Return whether the last message has no reply, and no process is working on one."""
    last = await db.transcript(view.conversation.id, max(view.range.last - 1, 0), view.range.last)
    return recap.lacks_reply(last) and not any(
        each.conversation_id == view.conversation.id and each.purpose == "turn" and each.state == "held"
        for each in await db.leases()
    )


def heading(found: types.Conversation | None, shown: entries.TranscriptRange, marks: event_text.Marks) -> str:
    """Return the heading of the screen: title, messages, compactions."""
    if found is None:
        return f"Holdfast {marks.dot} new conversation"
    compactions = len(shown.active_epochs)
    parts = [found.title or found.id, safe_text.count(found.last_seq, "message")]
    parts += [safe_text.count(compactions, "compaction")] if compactions else []
    return safe_text.safe(f" {marks.dot} ".join(parts))
