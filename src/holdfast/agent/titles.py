"""Titles of conversations: a requested one, or the first words of the first message.

A title requested before the conversation exists is set after its first turn. If it is invalid or taken, the user is
notified and the automatic title is used. Any other failure is retried after the next turn; it never fails the turn.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

from holdfast import errors, events
from holdfast.store import async_db, titles

logger = logging.getLogger("holdfast.agent")

MAX_SUFFIX = 50

Emit = Callable[[events.AnyEvent], None]


class PendingTitle:
    """The title that a conversation is to get after a turn."""

    def __init__(self, wanted: str | None = None, first_message: str | None = None) -> None:
        self.wanted = wanted
        self.first_message = first_message
        """The first message, until the conversation has a title."""

    async def apply(self, db: async_db.AsyncSessionDB, conversation_id: str, emit: Emit) -> None:
        """Set the title if there is one to set. Failures are reported and retried after the next turn."""
        try:
            if self.wanted is not None:
                await self._set_wanted(db, conversation_id, self.wanted, emit)
            if self.first_message is not None and (await db.conversation(conversation_id)).title is None:
                await _set_automatic(db, conversation_id, title_from_text(self.first_message), emit)
        except Exception as error:  # noqa: BLE001 -- an answered turn never fails because of its title
            logger.warning("could not set the title of %s: %s", conversation_id, error)
            emit(events.Notice(f"The title could not be set; the next turn tries again. {error}", "warning"))
        else:
            self.first_message = None

    async def _set_wanted(self, db: async_db.AsyncSessionDB, conversation_id: str, wanted: str, emit: Emit) -> None:
        try:
            emit(events.Titled(await db.set_session_title(conversation_id, wanted)))
        except (errors.InvalidArgument, errors.TitleTaken) as error:
            emit(events.Notice(f"The title was not set. {error}", "warning"))
        self.wanted = None


async def _set_automatic(db: async_db.AsyncSessionDB, conversation_id: str, title: str, emit: Emit) -> None:
    """Set the title, with the first free number if it is taken."""
    for number in range(1, MAX_SUFFIX):
        try:
            numbered = title if number == 1 else f"{title} #{number}"
            emit(events.Titled(await db.set_session_title(conversation_id, numbered)))
            return
        except errors.TitleTaken:
            continue
        except errors.InvalidArgument:
            return


def title_from_text(text: str) -> str:
    """Return the first words of a message as a title."""
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
