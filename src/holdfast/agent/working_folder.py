"""The working folder of a conversation: the folder of its last turn.

If a turn runs in another folder, the message carries a note for the model, the user gets a notice and the store records
the new folder. Failures of any of this never stop the turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from holdfast import events
from holdfast.store import async_db, titles

logger = logging.getLogger("holdfast.agent")


class FolderChange(msgspec.Struct, frozen=True):
    """A turn that runs in `folder`, in a conversation whose folder is `previous` (None: not recorded)."""

    previous: str | None
    folder: str

    @property
    def note(self) -> str | None:
        """The note for the model."""
        if self.previous is None:
            return None
        return (
            f"The conversation continues in another folder: {titles.normalize(self.folder)}. Tools work there now. "
            f"Before this message it was in {titles.normalize(self.previous)}: "
            "earlier relative paths refer to that folder."
        )

    async def record(
        self, db: async_db.AsyncSessionDB, conversation_id: str, emit: Callable[[events.AnyEvent], None]
    ) -> None:
        """Notify the user and record the folder, after the message with the note was stored."""
        if self.previous is not None:
            previous, folder = titles.normalize(self.previous), titles.normalize(self.folder)
            emit(events.Notice(f"This conversation was in {previous}. It continues in {folder}."))
        try:
            await db.set_session_folder(conversation_id, self.folder)
        except Exception as error:  # noqa: BLE001 -- the folder is for lists: a turn never fails because of it
            logger.warning("could not record the folder of %s: %s", conversation_id, error)


async def find_change(db: async_db.AsyncSessionDB, conversation_id: str, folder: str) -> FolderChange | None:
    """Return the change that a turn in `folder` means; None if there is none or the store cannot be read."""
    try:
        previous = (await db.conversation(conversation_id)).folder
    except Exception as error:  # noqa: BLE001 -- see FolderChange.record
        logger.warning("could not read the folder of %s: %s", conversation_id, error)
        return None
    return FolderChange(previous, folder) if previous != folder else None
