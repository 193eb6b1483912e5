"""How the conversation on the screen stands: looked at again and again, and told in two lines."""

from __future__ import annotations

import time
from contextlib import suppress

import msgspec
from rich.text import Text

from holdfast import errors
from holdfast.runtime import runtime
from holdfast.terminal import status_line
from holdfast.tui import context_meter, entry_rows


class Watch:
    """What was seen last."""

    def __init__(self, door: runtime.Runtime, model: str) -> None:
        self._door = door
        self.standing = status_line.Standing(model)
        self._compacting_since: float | None = None

    async def look(self, conversation_id: str) -> None:
        """See how it stands now; where the store cannot say, as before."""
        with suppress(errors.HoldfastError):
            self.standing = await status_line.looked(self._door, conversation_id)
        going_on = self.standing.compacting
        self._compacting_since = (self._compacting_since or time.monotonic()) if going_on else None

    def progress(self, pen: entry_rows.Pen) -> Text | None:
        """A compaction under way; None where there is none."""
        if (since := self._compacting_since) is None:
            return None
        seconds = time.monotonic() - since
        return context_meter.progress(self.standing.progress, seconds, pen.width, pen.ink, pen.marks)

    def line(self, pen: entry_rows.Pen, queued: int, waiting: bool, answering: float | None) -> Text:
        here = msgspec.structs.replace(self.standing, queued=queued, waiting=waiting)
        return context_meter.standing(here, context_meter.gauged(here), pen.width, pen.ink, pen.marks, answering)
