"""The prompt of the full screen: Enter sends, Ctrl-J starts a new line, Tab completes, the arrows recall typed lines.

Many terminals send the same code for Alt-Enter and Enter, so Alt-Enter starts a new line only in some.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from prompt_toolkit.completion import CompleteEvent, Completion
from prompt_toolkit.document import Document
from textual import events as keys
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from holdfast import safe_text
from holdfast.terminal import input_completion, input_history

HELP = "\n".join(
    (
        "Enter sends, Ctrl-J starts a new line, Tab completes commands, arguments and paths.",
        "Messages sent during a reply are queued: /queue lists them. /steer TEXT adds to the running turn.",
        "Ctrl-C clears the prompt; at an empty one it interrupts the reply, and twice exits. Ctrl-Q exits.",
        "Ctrl-P: commands. Ctrl-O: conversations. Ctrl-T: light or dark theme. F6: transcript and back.",
        "//text sends a message that starts with a slash.",
    )
)
PLACEHOLDER = "Message. Ctrl-P: commands, Ctrl-O: conversations."
SHORT_PLACEHOLDER = "Message. Ctrl-P: commands."


class PromptInput(TextArea):
    """An editor for one message."""

    # Ctrl-Z suspends the program, so undo has the key that shells use.
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+underscore", "undo", "undo", show=False)]

    class Sent(Message):
        """A line was ended with Enter."""

        def __init__(self, line: str) -> None:
            super().__init__()
            self.line = line

    class Offered(Message):
        """The candidates have changed; there may be none."""

        def __init__(self, candidates: Sequence[Completion]) -> None:
            super().__init__()
            self.candidates = candidates

    class Paged(Message):
        """The transcript is to be scrolled by a screen."""

        def __init__(self, step: int) -> None:
            super().__init__()
            self.step = step

    def __init__(self, completer: input_completion.InputCompleter, history_path: str) -> None:
        super().__init__(id="prompt", show_line_numbers=False, tab_behavior="focus", placeholder=PLACEHOLDER)
        self.highlight_cursor_line = False
        self._completer = completer
        self._history = input_history.open_history(history_path)
        self._loaded: list[str] | None = None
        self._place = 0
        self._edited: dict[int, str] = {}

    def on_resize(self) -> None:
        fits = safe_text.cells(PLACEHOLDER) <= self.content_size.width
        self.placeholder = PLACEHOLDER if fits else SHORT_PLACEHOLDER

    async def _on_key(self, event: keys.Key) -> None:
        match event.key:
            case "enter":
                _consume(event)
                self._send()
            case "alt+enter" | "shift+enter" | "ctrl+j":
                _consume(event)
                self.insert("\n")
            case "tab":
                _consume(event)
                self.run_worker(self._complete(self._before), exclusive=True, group="completion")
            case "pageup" | "pagedown":
                _consume(event)
                self.post_message(self.Paged(-1 if event.key == "pageup" else 1))
            case "up" if self._row == 0:
                _consume(event)
                self._recall(1)
            case "down" if self._row == self.wrapped_document.height - 1:
                _consume(event)
                self._recall(-1)
            case _:
                self.post_message(self.Offered(()))
                await super()._on_key(event)

    def put(self, text: str) -> None:
        """Replace the text, with the cursor at its end."""
        self.text = text
        self.move_cursor(self.document.end)
        self.post_message(self.Offered(()))

    def remember(self) -> None:
        """Add the text to the lines that the arrows recall, without sending it."""
        if self.text.strip():
            self._lines.insert(0, self.text)
        self._place, self._edited = 0, {}

    def _send(self) -> None:
        line = self.text.encode("utf-8", "replace").decode().strip()  # A keyboard may send unpaired surrogates.
        self.put("")
        self._place, self._edited = 0, {}
        if line:
            # Before the file is written: otherwise the first reading of the file would have the line twice.
            self._lines.insert(0, line)
            self._history.store_string(line)
            self.post_message(self.Sent(line))

    @property
    def _lines(self) -> list[str]:
        """The typed lines, newest first; read on first use."""
        if self._loaded is None:
            self._loaded = list(self._history.load_history_strings())
        return self._loaded

    def _recall(self, step: int) -> None:
        place = self._place + step
        if not 0 <= place <= len(self._lines):
            return
        # An edited line is still there when the arrows return to it.
        self._edited[self._place] = self.text
        self._place = place
        self.put(self._edited.get(place, self._lines[place - 1] if place else ""))

    @property
    def _row(self) -> int:
        """The screen row of the cursor: a long line has several."""
        return self.wrapped_document.location_to_offset(self.cursor_location).y

    @property
    def _before(self) -> str:
        return self.get_text_range((0, 0), self.cursor_location)

    async def _complete(self, before: str) -> None:
        offers = self._completer.get_completions_async(Document(before), CompleteEvent(completion_requested=True))
        found = [each async for each in offers]
        if self._before != before or not found:
            return
        prefix = _common_prefix([before[: len(before) + each.start_position] + each.text for each in found])
        if len(prefix) > len(before):
            self.replace(prefix, (0, 0), self.cursor_location, maintain_selection_offset=False)
        self.post_message(self.Offered(found if len(found) > 1 else ()))


def draw_choices(candidates: Sequence[Completion], rows: int) -> str:
    """Return the candidates, one per row, in at most so many rows."""
    count = rows if len(candidates) <= rows else rows - 1
    shown = [
        safe_text.safe(f"{each.display_text.strip()}  {each.display_meta_text}".rstrip()) for each in candidates[:count]
    ]
    left = len(candidates) - count
    return "\n".join([*shown, *([f"and {left} more"] if left > 0 else [])])


def _common_prefix(lines: Sequence[str]) -> str:
    first, last = min(lines), max(lines)
    return first[: next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]


def _consume(event: keys.Key) -> None:
    event.stop()
    event.prevent_default()
