"""A list to pick a conversation from: newest first, narrowed by what is typed, drawn where the cursor is.

What there is to pick and how it looks are pure. What was said is searched beside the typing, and joins the list when it
is found. Nothing of a title or a message can act on the terminal.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
from prompt_toolkit import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import BufferControl, FormattedTextControl, HSplit, Layout, Window
from prompt_toolkit.layout.processors import BeforeInput
from prompt_toolkit.output import Output, color_depth, vt100

from holdfast import safe_text, types
from holdfast.chat import renderer
from holdfast.terminal import event_text

ASKED = "Which conversation? "
KEYS = "Type to find, Enter takes it, Esc leaves."
NOTHING = "Nothing is found by that."
# Rows of the list, where the terminal has them; what is around it takes two.
MOST, AROUND = 15, 2
# With less room than this the year goes, and what was said first is not worth beginning with.
NARROW, LEAST = 60, 12
# Columns of the folder, and how wide a terminal has to be to have it.
FOLDER, WIDE = 20, 72
DIM = "fg:ansibrightblack"

Fragment = tuple[str, str]
"""A style and text, as prompt_toolkit takes them."""


class Shelf(Protocol):
    """Where conversations are found; each call is short."""

    def matching(self, words: str) -> Sequence[types.Session]:
        """Those whose title or id has these words in it, the most recently active first; without words, all."""

    def telling(self, words: str) -> Sequence[types.Session]:
        """Those in which something of the kind was said, the best first."""

    def begins(self, head: types.Session) -> str:
        """What was said there first."""


class State(msgspec.Struct, frozen=True):
    """What can be picked, and what would be."""

    heads: tuple[types.Session, ...]
    at: int = 0

    @property
    def chosen(self) -> types.Session | None:
        return self.heads[self.at] if self.heads else None

    def moved(self, by: int) -> State:
        return State(self.heads, max(0, min(self.at + by, len(self.heads) - 1)))

    def joined(self, more: Sequence[types.Session]) -> State:
        """With those behind it that are not there yet; what would be picked stays the same."""
        there = {head.conversation_id for head in self.heads}
        return State((*self.heads, *(each for each in more if each.conversation_id not in there)), self.at)


def drawn(
    state: State, columns: int, rows: int, begins: Callable[[types.Session], str], marks: event_text.Marks
) -> list[list[Fragment]]:
    """The lines under the one that is typed on: as many as there is room for, around what would be picked."""
    room = shown_rows(state, rows)
    first = max(0, min(state.at - room // 2, len(state.heads) - room))
    lines = [
        _line(head, begins(head), columns, marks, chosen=first + place == state.at)
        for place, head in enumerate(state.heads[first : first + room])
    ]
    many = f"{state.at + 1} of {len(state.heads):,} {marks.dot} {KEYS}" if state.heads else NOTHING
    return [*lines, [(DIM, safe_text.clipped(many, columns, marks.more))]]


def shown_rows(state: State, rows: int) -> int:
    return max(1, min(len(state.heads), MOST, rows - AROUND))


def _line(head: types.Session, begins: str, columns: int, marks: event_text.Marks, *, chosen: bool) -> list[Fragment]:
    """The title, what was said first, the folder, how much, and when; where room is short, not all of it."""
    when = safe_text.when(head.active_at)
    behind = f"{head.last_seq:,}  {when if columns >= NARROW else when[5:]}"
    if head.folder and columns >= WIDE:
        behind = f"{safe_text.clipped_path(head.folder, FOLDER, marks.more)}  {behind}"
    room = max(columns - 4 - safe_text.cells(behind), 0)
    said = safe_text.safe(begins)
    title = safe_text.clipped(safe_text.safe(head.title or said or head.conversation_id), room, marks.more)
    left = room - safe_text.cells(title) - 2
    more = safe_text.clipped(said, left, marks.more) if head.title and left >= LEAST and said != title else ""
    space = " " * (room - safe_text.cells(title) - (safe_text.cells(more) + 2 if more else 0) + 2)
    style, beside = ("reverse", "reverse") if chosen else ("", DIM)
    parts = [(style, f"{'>' if chosen else ' '} {title}"), (beside, f"  {more}" if more else "")]
    whole = [*parts, (style, space), (beside, behind)]
    # A terminal too narrow for all of it keeps the beginning.
    return whole if room else [(style, safe_text.clipped(f"{'>' if chosen else ' '} {head.last_seq}", columns, ""))]


# --- keys ----------------------------------------------------------------------------------------------


class Picker:
    """The list on a terminal."""

    def __init__(
        self,
        shelf: Shelf,
        marks: event_text.Marks,
        *,
        colour: bool,
        keyboard: Input | None = None,
        screen: Output | None = None,
    ) -> None:
        self._shelf, self._marks = shelf, marks
        self._state = State(tuple(shelf.matching("")))
        self._searching = False
        self._words = Buffer(multiline=False, on_text_changed=self._typed)
        control = BufferControl(self._words, input_processors=[BeforeInput(ASKED)])
        listed = FormattedTextControl(self._lines)
        self._app: Application[types.Session | None] = Application(
            Layout(HSplit([Window(control, height=1), Window(listed, dont_extend_height=True)])),
            key_bindings=self._bindings(),
            erase_when_done=True,
            color_depth=color_depth.ColorDepth.DEPTH_4_BIT if colour else color_depth.ColorDepth.DEPTH_1_BIT,
            input=keyboard,
            output=screen or vt100.Vt100_Output(sys.stdout, renderer.size, enable_cpr=False),
        )
        # Esc is a key of its own here; what a terminal sends for others comes all at once.
        self._app.ttimeoutlen = 0.05

    def run(self) -> types.Session | None:
        """The conversation that was picked; None when the person left."""
        return self._app.run()

    def _lines(self) -> FormattedText:
        size = self._app.output.get_size()
        # The last column stays free: some terminals go on to the next row when it is written.
        lines = drawn(self._state, size.columns - 1, size.rows - 1, self._shelf.begins, self._marks)
        return FormattedText([part for line in lines for part in (*line, ("", "\n"))][:-1])

    def _typed(self, _: Buffer) -> None:
        words = self._words.text.strip()
        self._state = State(tuple(self._shelf.matching(words)))
        if words and not self._searching:
            self._searching = True
            self._app.create_background_task(self._search())

    async def _search(self) -> None:
        """Add those that tell of what is typed. One search at a time: by its end something else may be typed."""
        searched = ""
        while (words := self._words.text.strip()) not in ("", searched):
            found = await asyncio.to_thread(self._shelf.telling, words)
            searched = words
            if self._words.text.strip() == words:
                self._state = self._state.joined(found)
                self._app.invalidate()
        self._searching = False

    def _bindings(self) -> KeyBindings:
        keys = KeyBindings()

        def move(*names: str, by: Callable[[], int]) -> None:
            def moved(_: KeyPressEvent) -> None:
                self._state = self._state.moved(by())

            for name in names:
                keys.add(name)(moved)

        def page() -> int:
            return shown_rows(self._state, self._app.output.get_size().rows - 1)

        move("up", "c-p", by=lambda: -1)
        move("down", "c-n", by=lambda: 1)
        move("pageup", by=lambda: -page())
        move("pagedown", by=page)

        @keys.add("enter")
        def _take(event: KeyPressEvent) -> None:
            if self._state.chosen is not None:
                event.app.exit(result=self._state.chosen)

        def leave(event: KeyPressEvent) -> None:
            event.app.exit(result=None)

        leaving: tuple[Any, ...] = ("escape", "c-c", "c-d", "<sigint>")
        for name in leaving:
            keys.add(name, eager=True)(leave)
        return keys
