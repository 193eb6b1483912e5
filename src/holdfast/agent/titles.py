"""Titles of conversations: the one somebody asked for, else one made from the first words.

A title asked for before the conversation exists is applied after its first message. One that cannot be had
is dropped, which is said, and the automatic one takes its place. Where anything else fails, the turn was answered all
the same, and the title is set after the next turn.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

from holdfast import content_parts, errors, events
from holdfast.store import async_db, titles

logger = logging.getLogger("holdfast.agent")

TRIES = 50

Emit = Callable[[events.AnyEvent], None]


async def settle(
    db: async_db.AsyncSessionDB, conversation_id: str, wanted: str | None, first_words: str | None, emit: Emit
) -> tuple[str | None, str | None]:
    """Give the conversation a title, if there is one to give. Return what is left to do after the next turn.

    `first_words` are what its first exchange began with, until it was named by them.
    """
    try:
        if wanted is not None:
            try:
                emit(events.Titled(await db.set_session_title(conversation_id, wanted)))
                return None, None
            except (errors.InvalidArgument, errors.TitleTaken) as error:
                wanted = None
                emit(events.Notice(f"The title was not set. {error}", "warning"))
                # It may have waited for longer than the first exchange.
                first_words = await _first_words(db, conversation_id) if first_words is None else first_words
        if first_words is not None and (await db.conversation(conversation_id)).title is None:
            await _automatic(db, conversation_id, from_words(first_words), emit)
    except Exception as error:  # noqa: BLE001 -- an answered turn never fails because of its title
        why = str(error) if isinstance(error, errors.HoldfastError) else f"{type(error).__name__}: {error}"
        logger.warning("could not set the title of %s: %s", conversation_id, why)
        emit(events.Notice(f"The title could not be set; the next turn tries again. {why}", "warning"))
        return wanted, first_words
    return None, None


async def _first_words(db: async_db.AsyncSessionDB, conversation_id: str) -> str | None:
    """What the conversation began with, where somebody said it and was answered."""
    begun = await db.transcript(conversation_id, 0, 2)
    answered = [message.role for message in begun] == ["user", "assistant"]
    said = begun[0].content if answered else ""
    return content_parts.text(said) or None if not content_parts.notice_kind(said) else None


async def _automatic(db: async_db.AsyncSessionDB, conversation_id: str, title: str, emit: Emit) -> None:
    """The words, or the words and the first free number."""
    for number in range(1, TRIES):
        try:
            named = title if number == 1 else f"{title} #{number}"
            emit(events.Titled(await db.set_session_title(conversation_id, named)))
            return
        except errors.TitleTaken:
            continue
        except errors.InvalidArgument:
            return


def from_words(text: str) -> str:
    """The first words of a message, as a title."""
    words = re.sub(r"[`*_#>]+", " ", titles.normalize(text)).split()
    title = ""
    for word in words:
        longer = f"{title} {word}".strip()
        if len(longer) > titles.AUTOMATIC:
            break
        title = longer
        if word.endswith((".", "?", "!")) and len(title) > 12:
            break
    return (title or "".join(words)[: titles.AUTOMATIC]).rstrip(".,;:!? ")
