"""The running turn, built from its events: the part that was not read from the log. Pure.

When the turn ends, the log has all of it and this is cleared. Complete blocks of a reply are drawn once, the unfinished
text with each frame.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache

import msgspec
from rich.text import Text

from holdfast import events
from holdfast.runtime import wording
from holdfast.terminal import markdown
from holdfast.tui import entries, entry_rows

LIVE_SEQ = 1_000_000
"""The seq in the keys of entries that are not stored; no message has it."""
QUEUED_SEQ = 2 * LIVE_SEQ
MAX_OUTPUT_CHARACTERS = 2_000


class StreamedReply:
    """A reply that is being received, as rows."""

    def __init__(self, key: entries.Key, model: str) -> None:
        self.key, self.model, self.text = key, model, ""
        self._form: entry_rows.RowFormat | None = None

    def add(self, text: str) -> None:
        self.text += text
        if self._form is not None:
            self._rows += entry_rows.draw_reply(self.model, self._draw_complete(text, self._form), self._form)[1:-1]

    def rows(self, form: entry_rows.RowFormat) -> list[entry_rows.Row]:
        """Draw the reply so far."""
        if form != self._form:
            self._form, room = form, form.room
            self._stream = markdown.MarkdownStream(lambda: room, form.marks)
            complete = self._draw_complete(self.text.lstrip("\n"), form)
            self._rows = entry_rows.draw_reply(self.model, complete, form)[:-1]
        unfinished = [Text(line) for line in entry_rows.plain_lines(self._stream.open, form)]
        return [*self._rows, *entry_rows.draw_reply(self.model, unfinished if self._stream.open else [], form)[1:]]

    def _draw_complete(self, text: str, form: entry_rows.RowFormat) -> list[Text]:
        """Draw the blocks that this text completes."""
        return entry_rows.decode_rows(self._stream.add(text), form.room)


# With each frame, only entries that have changed are drawn.
_draw_entry = lru_cache(maxsize=2_000)(entry_rows.draw_entry)


class LiveTurn:
    """The entries below the stored ones."""

    def __init__(self, model: Callable[[], str] = str, clock: Callable[[], float] = time.time) -> None:
        self._model, self._clock = model, clock
        self._parts: list[entries.Entry | StreamedReply] = []
        self._calls: dict[str, int] = {}
        self._reply: StreamedReply | None = None
        self._count = 0
        self.queued: Sequence[str] = ()
        """The messages that wait for their turn."""

    def clear(self) -> None:
        """Remove everything but the queued messages."""
        self._parts, self._calls, self._reply = [], {}, None

    @property
    def is_empty(self) -> bool:
        """Whether nothing of a turn is there."""
        return not self._parts

    def handle(self, event: events.AnyEvent) -> bool:
        """Take an event of the turn; return whether it changed what is shown."""
        match event:
            case events.TurnStarted(text=text, notice=kind):
                self.clear()
                self._append(entries.Entry(self._new_key(), "program" if kind else "user", text, at=self._clock()))
            case events.TextDelta(text):
                if self._reply is None:
                    self._reply = StreamedReply(self._new_key(), self._model())
                    self._parts.append(self._reply)
                self._reply.add(text)
            case events.ReasoningDelta(text):
                self._add_reasoning(text)
            case events.ToolStarted(call_id):
                self._calls[call_id] = len(self._parts)
                self._append(entries.Entry(self._new_key(), "tool", "", wording.tool_started(event).text))
            case events.ToolProgress(call_id, text):
                self._update_call(call_id, text, None)
            case events.ToolFinished(call_id, _, ok, preview):
                self._update_call(call_id, preview, ok)
            case _:
                return False
        return True

    def add_notice(self, kind: entries.Kind, text: str, level: events.Level = "info") -> None:
        self._append(entries.Entry(self._new_key(), kind, text, level=level))

    def opened_calls(self, opened: set[entries.Key]) -> set[str]:
        """Return the ids of the calls whose entries are open."""
        return {call_id for call_id, place in self._calls.items() if self._parts[place].key in opened}

    def entry(self, key: entries.Key) -> entries.Entry | None:
        return next((each for each in self._parts if isinstance(each, entries.Entry) and each.key == key), None)

    def rows(self, form: entry_rows.RowFormat, opened: set[entries.Key]) -> list[entry_rows.Row]:
        """Draw all entries, the queued messages last."""
        rows: list[entry_rows.Row] = []
        for each in self._parts:
            if isinstance(each, StreamedReply):
                rows += each.rows(form)
            else:
                rows += [*entry_rows.separator(rows, each), *_draw_entry(each, form, each.key in opened)]
        for place, text in enumerate(self.queued):
            queued = entries.Entry((QUEUED_SEQ, place), "queued", text)
            rows += [*entry_rows.separator(rows, queued), *_draw_entry(queued, form, False)]
        return rows

    def _new_key(self) -> entries.Key:
        self._count += 1
        return (LIVE_SEQ, self._count)

    def _append(self, entry: entries.Entry) -> None:
        self._reply = None
        self._parts.append(entry)

    def _add_reasoning(self, text: str) -> None:
        last = self._parts[-1] if self._parts else None
        if isinstance(last, entries.Entry) and last.kind == "reasoning":
            self._parts[-1] = msgspec.structs.replace(last, text=last.text + text)
        else:
            self._append(entries.Entry(self._new_key(), "reasoning", text))

    def _update_call(self, call_id: str, text: str, ok: bool | None) -> None:
        place = self._calls.get(call_id)
        entry = self._parts[place] if place is not None else None
        if place is not None and isinstance(entry, entries.Entry):
            shown = text if ok is not None else (entry.text + text)[-MAX_OUTPUT_CHARACTERS:]
            self._parts[place] = msgspec.structs.replace(entry, text=shown, ok=ok)
