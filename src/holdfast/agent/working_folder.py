"""The folder of a conversation: the one its last turn was taken in.

When a turn is taken in another folder, the model gets a note with the message, the user a notice, and the store
records the new one. A failure of any of this never stops the turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from holdfast import events
from holdfast.store import async_db, titles

logger = logging.getLogger("holdfast.agent")


class Change:
    """A turn of a conversation that was in `before` (None: in no folder) and is taken in `here`."""

    def __init__(self, before: str | None, here: str) -> None:
        self._before, self._here = before, here

    @property
    def note(self) -> str | None:
        """The note for the model, if the conversation was in another folder."""
        if self._before is None:
            return None
        return (
            f"The conversation continues in another folder: {titles.normalize(self._here)}. Tools work there now. "
            f"Before this message it was in {titles.normalize(self._before)}: "
            "earlier relative paths refer to that folder."
        )

    async def record(
        self, db: async_db.AsyncSessionDB, conversation_id: str, emit: Callable[[events.AnyEvent], None]
    ) -> None:
        """Notify the user and record the folder, after the message with the note is in the log."""
        if self._before is not None:
            before, here = titles.normalize(self._before), titles.normalize(self._here)
            emit(events.Notice(f"This conversation was in {before}. It continues in {here}."))
        try:
            await db.set_session_folder(conversation_id, self._here)
        except Exception as error:  # noqa: BLE001 -- the folder is for lists: a turn never fails because of it
            _log(conversation_id, error)


async def changed(db: async_db.AsyncSessionDB, conversation_id: str, here: str) -> Change | None:
    """Return the change of folder that a turn in `here` means; None where there is none or the store cannot say."""
    try:
        before = (await db.conversation(conversation_id)).folder
    except Exception as error:  # noqa: BLE001 -- see Change.record
        _log(conversation_id, error)
        return None
    return Change(before, here) if before != here else None


def _log(conversation_id: str, error: Exception) -> None:
    logger.warning("the folder of %s could not be recorded: %s", conversation_id, error)
