"""A list to pick a conversation from: most recent first, filtered by typed text, drawn below the cursor.

The state and its drawing are pure. Message texts are searched in the background, and matches are added when found.
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

QUESTION = "Which conversation? "
KEYS = "Type to filter, Enter to resume, Esc to cancel."
NO_MATCH = "No matching conversation."
MAX_ROWS = 15
# The rows of the question and the footer.
OTHER_ROWS = 2
# Narrower terminals leave the year out.
YEAR_COLUMNS = 60
MIN_TEXT_COLUMNS = 12
# The width of the folder, and the terminal width from which it is shown.
FOLDER_COLUMNS, WITH_FOLDER_COLUMNS = 20, 72
DIM = "fg:ansibrightblack"

Fragment = tuple[str, str]
"""A style and a text, as prompt_toolkit takes them."""


class ConversationSource(Protocol):
    """Finds conversations; each call is short."""

    def find_by_name(self, text: str) -> Sequence[types.Session]:
        """Return the conversations whose title or id contains the text, most recently active first."""

    def find_by_message(self, text: str) -> Sequence[types.Session]:
        """Return the conversations with messages that match the text, best first."""

    def first_message(self, head: types.Session) -> str:
        """Return the first message of a conversation."""


class PickerState(msgspec.Struct, frozen=True):
    """The offered conversations and the selected one."""

    heads: tuple[types.Session, ...]
    index: int = 0

    @property
    def selected(self) -> types.Session | None:
        return self.heads[self.index] if self.heads else None

    def move(self, step: int) -> PickerState:
        return PickerState(self.heads, max(0, min(self.index + step, len(self.heads) - 1)))

    def extend(self, more: Sequence[types.Session]) -> PickerState:
        """Append conversations that are not in the list yet; the selection stays."""
        known = {head.conversation_id for head in self.heads}
        return PickerState((*self.heads, *(each for each in more if each.conversation_id not in known)), self.index)


def draw_rows(
    state: PickerState, columns: int, rows: int, first_message: Callable[[types.Session], str], marks: event_text.Marks
) -> list[list[Fragment]]:
    """Draw the rows around the selected conversation, and a footer."""
    count = count_rows(state, rows)
    first = max(0, min(state.index - count // 2, len(state.heads) - count))
    lines = [
        _draw_row(head, first_message(head), columns, marks, selected=first + place == state.index)
        for place, head in enumerate(state.heads[first : first + count])
    ]
    footer = f"{state.index + 1} of {len(state.heads):,} {marks.dot} {KEYS}" if state.heads else NO_MATCH
    return [*lines, [(DIM, safe_text.clip(footer, columns, marks.more))]]


def count_rows(state: PickerState, rows: int) -> int:
    """Return the number of conversations that are visible at once."""
    return max(1, min(len(state.heads), MAX_ROWS, rows - OTHER_ROWS))


def _draw_row(
    head: types.Session, first_message: str, columns: int, marks: event_text.Marks, *, selected: bool
) -> list[Fragment]:
    """Draw title, first message, folder, message count and time, as far as there is room."""
    when = safe_text.date(head.active_at)
    behind = f"{head.last_seq:,}  {when if columns >= YEAR_COLUMNS else when[5:]}"
    if head.folder and columns >= WITH_FOLDER_COLUMNS:
        behind = f"{safe_text.clip_path(head.folder, FOLDER_COLUMNS, marks.more)}  {behind}"
    room = max(columns - 4 - safe_text.cells(behind), 0)
    text = safe_text.safe(first_message)
    title = safe_text.clip(safe_text.safe(head.title or text or head.conversation_id), room, marks.more)
    left = room - safe_text.cells(title) - 2
    more = safe_text.clip(text, left, marks.more) if head.title and left >= MIN_TEXT_COLUMNS and text != title else ""
    space = " " * (room - safe_text.cells(title) - (safe_text.cells(more) + 2 if more else 0) + 2)
    style, dim = ("reverse", "reverse") if selected else ("", DIM)
    mark = ">" if selected else " "
    if not room:
        return [(style, safe_text.clip(f"{mark} {head.last_seq}", columns, ""))]
    return [(style, f"{mark} {title}"), (dim, f"  {more}" if more else ""), (style, space), (dim, behind)]


class Picker:
    """The list on a terminal."""

    def __init__(
        self,
        source: ConversationSource,
        marks: event_text.Marks,
        *,
        colour: bool,
        keyboard: Input | None = None,
        screen: Output | None = None,
    ) -> None:
        self._source, self._marks = source, marks
        self._state = PickerState(tuple(source.find_by_name("")))
        self._searching = False
        self._filter = Buffer(multiline=False, on_text_changed=self._apply_filter)
        control = BufferControl(self._filter, input_processors=[BeforeInput(QUESTION)])
        rows = FormattedTextControl(self._draw)
        self._app: Application[types.Session | None] = Application(
            Layout(HSplit([Window(control, height=1), Window(rows, dont_extend_height=True)])),
            key_bindings=self._key_bindings(),
            erase_when_done=True,
            color_depth=color_depth.ColorDepth.DEPTH_4_BIT if colour else color_depth.ColorDepth.DEPTH_1_BIT,
            input=keyboard,
            output=screen or vt100.Vt100_Output(sys.stdout, renderer.terminal_size, enable_cpr=False),
        )
        # Esc is a key here. Terminals send the escape sequences of other keys at once.
        self._app.ttimeoutlen = 0.05

    def run(self) -> types.Session | None:
        """Return the conversation that was picked; None if the person cancelled."""
        return self._app.run()

    def _draw(self) -> FormattedText:
        size = self._app.output.get_size()
        # The last column stays free: some terminals wrap when it is written.
        rows = draw_rows(self._state, size.columns - 1, size.rows - 1, self._source.first_message, self._marks)
        return FormattedText([part for row in rows for part in (*row, ("", "\n"))][:-1])

    def _apply_filter(self, _: Buffer) -> None:
        text = self._filter.text.strip()
        self._state = PickerState(tuple(self._source.find_by_name(text)))
        if text and not self._searching:
            self._searching = True
            self._app.create_background_task(self._search())

    async def _search(self) -> None:
        """Add conversations whose messages match. One search runs at a time; the text may change meanwhile."""
        searched = ""
        while (text := self._filter.text.strip()) not in ("", searched):
            found = await asyncio.to_thread(self._source.find_by_message, text)
            searched = text
            if self._filter.text.strip() == text:
                self._state = self._state.extend(found)
                self._app.invalidate()
        self._searching = False

    def _key_bindings(self) -> KeyBindings:
        keys = KeyBindings()

        def bind_move(*names: str, step: Callable[[], int]) -> None:
            def move(_: KeyPressEvent) -> None:
                self._state = self._state.move(step())

            for name in names:
                keys.add(name)(move)

        def page() -> int:
            return count_rows(self._state, self._app.output.get_size().rows - 1)

        bind_move("up", "c-p", step=lambda: -1)
        bind_move("down", "c-n", step=lambda: 1)
        bind_move("pageup", step=lambda: -page())
        bind_move("pagedown", step=page)

        @keys.add("enter")
        def _pick(event: KeyPressEvent) -> None:
            if self._state.selected is not None:
                event.app.exit(result=self._state.selected)

        def cancel(event: KeyPressEvent) -> None:
            event.app.exit(result=None)

        cancel_keys: tuple[Any, ...] = ("escape", "c-c", "c-d", "<sigint>")
        for name in cancel_keys:
            keys.add(name, eager=True)(cancel)
        return keys
