"""The turn under way, from its events: what is not in the log yet, or was not read from there. Pure.

What the log has of a turn is read when it is over, and this begins anew. Text is drawn as it comes: what is complete
once, what is being written each time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
from rich.text import Text

from holdfast import events
from holdfast.terminal import markdown
from holdfast.tui import entries, entry_rows

PLACE = 1_000_000
"""What is not stored has keys of its own, that no message has."""


class Flow:
    """Words that come one after the other, as rows."""

    def __init__(self, key: entries.Key, model: str) -> None:
        self.key, self.model, self.words = key, model, ""
        self._pen: entry_rows.Pen | None = None

    def add(self, words: str) -> None:
        self.words += words
        if self._pen is not None:
            self._rows += entry_rows.answered(self.model, self._drawn(words, self._pen), self._pen)[1:-1]

    def rows(self, pen: entry_rows.Pen) -> list[entry_rows.Row]:
        """What was said so far."""
        if pen != self._pen:
            self._pen, room = pen, pen.room
            self._reply = markdown.MarkdownStream(lambda: room, pen.marks)
            self._rows = entry_rows.answered(self.model, self._drawn(self.words.lstrip("\n"), pen), pen)[:-1]
        being_written = [Text(line) for line in entry_rows.plain(self._reply.open, pen)] if self._reply.open else []
        return [*self._rows, *entry_rows.answered(self.model, being_written, pen)[1:]]

    def _drawn(self, words: str, pen: entry_rows.Pen) -> list[Text]:
        """The rows that these words complete."""
        return entry_rows.rows(self._reply.add(words), pen.room)


class Drawn(NamedTuple):
    """Rows, and what they are of."""

    of: tuple[entries.Entry, entry_rows.Pen, bool]
    rows: list[entry_rows.Row]


class Tail:
    """What is shown below the log."""

    def __init__(self, model: Callable[[], str] = str, clock: Callable[[], float] = time.time) -> None:
        self._model, self._clock = model, clock
        self._parts: list[entries.Entry | Flow] = []
        self._calls: dict[str, int] = {}
        self._flow: Flow | None = None
        self._drawn: dict[entries.Key, Drawn] = {}
        self._count = 0
        self.waiting: Sequence[str] = ()
        """What people said and is not answered yet."""

    def begin(self) -> None:
        """The log has all of it."""
        self._parts, self._calls, self._flow, self._drawn = [], {}, None, {}

    @property
    def empty(self) -> bool:
        """Whether there is nothing of a turn in it."""
        return not self._parts

    def heard(self, event: events.AnyEvent) -> bool:
        """To be told of what happens in a turn; whether that changed anything to be seen."""
        match event:
            case events.TurnStarted(text=words, notice=kind):
                self.begin()
                self._put(entries.Entry(self._key(), "told" if kind else "said", words, at=self._clock()))
            case events.TextDelta(words):
                if self._flow is None:
                    self._flow = Flow(self._key(), self._model())
                    self._parts.append(self._flow)
                self._flow.add(words)
            case events.ReasoningDelta(words):
                self._think(words)
            case events.ToolStarted(call_id, name, given):
                self._calls[call_id] = len(self._parts)
                self._put(entries.Entry(self._key(), "tool", "", f"{name} {'' if given == '{}' else given}".rstrip()))
            case events.ToolProgress(call_id, words):
                self._change(call_id, words, None)
            case events.ToolFinished(call_id, _, ok, preview):
                self._change(call_id, preview, ok)
            case _:
                return False
        return True

    def say(self, kind: entries.Kind, words: str, level: events.Level = "info") -> None:
        """Something beside the talk."""
        self._put(entries.Entry(self._key(), kind, words, level=level))

    def opened(self, opened: set[entries.Key]) -> set[str]:
        """The calls that are open."""
        return {call_id for call_id, place in self._calls.items() if self._parts[place].key in opened}

    def entry(self, key: entries.Key) -> entries.Entry | None:
        return next((each for each in self._parts if isinstance(each, entries.Entry) and each.key == key), None)

    def rows(self, pen: entry_rows.Pen, opened: set[entries.Key]) -> list[entry_rows.Row]:
        rows: list[entry_rows.Row] = []
        for each in self._parts:
            rows += each.rows(pen) if isinstance(each, Flow) else self._entry(rows, each, pen, each.key in opened)
        for place, words in enumerate(self.waiting):
            rows += self._entry(rows, entries.Entry((2 * PLACE, place), "waiting", words), pen, False)
        return rows

    def _entry(
        self, above: Sequence[entry_rows.Row], entry: entries.Entry, pen: entry_rows.Pen, opened: bool
    ) -> list[entry_rows.Row]:
        """Its rows; drawn anew only if it looks different from what it was: this is done for each frame."""
        found = self._drawn.get(entry.key)
        if found is None or found.of != (entry, pen, opened):
            found = self._drawn[entry.key] = Drawn((entry, pen, opened), entry_rows.drawn(entry, pen, opened))
        return [*entry_rows.apart(above, entry), *found.rows]

    def _key(self) -> entries.Key:
        self._count += 1
        return (PLACE, self._count)

    def _put(self, entry: entries.Entry) -> None:
        self._flow = None
        self._parts.append(entry)

    def _think(self, words: str) -> None:
        last = self._parts[-1] if self._parts else None
        if isinstance(last, entries.Entry) and last.kind == "thought":
            self._parts[-1] = msgspec.structs.replace(last, text=last.text + words)
        else:
            self._put(entries.Entry(self._key(), "thought", words))

    def _change(self, call_id: str, words: str, ok: bool | None) -> None:
        place = self._calls.get(call_id)
        entry = self._parts[place] if place is not None else None
        if place is not None and isinstance(entry, entries.Entry):
            shown = words if ok is not None else (entry.text + words)[-2_000:]
            self._parts[place] = msgspec.structs.replace(entry, text=shown, ok=ok)
