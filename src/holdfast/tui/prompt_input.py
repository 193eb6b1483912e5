"""Where people write: Enter sends, Ctrl-J begins a new line, Tab completes, arrows bring back what was typed.

Many terminals send the same for Alt-Enter and Enter, so that only some can begin a line with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from textual import events as keys
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from holdfast import safe_text
from holdfast.agent import commands
from holdfast.terminal import completion, input_history


class Choice(commands.Candidate, frozen=True):
    """All that may stand before the cursor, and what is shown of it."""

    shown: str = ""


class Prompt(TextArea):
    """A text of one or more lines."""

    # Ctrl-Z is the shell's: what else takes back a change, as in shells.
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+underscore", "undo", "take back a change", show=False)]

    class Sent(Message):
        """A line, ended with Enter."""

        def __init__(self, line: str) -> None:
            super().__init__()
            self.line = line

    class Offered(Message):
        """What the line may become; nothing, where that is no question any more."""

        def __init__(self, candidates: Sequence[Choice]) -> None:
            super().__init__()
            self.candidates = candidates

    class Paged(Message):
        """The transcript is to go on by a page."""

        def __init__(self, step: int) -> None:
            super().__init__()
            self.step = step

    def __init__(self, words: completion.Words, past: str) -> None:
        super().__init__(id="prompt", show_line_numbers=False, tab_behavior="focus", placeholder=HINT)
        self.highlight_cursor_line = False
        self._words = words
        self._history = input_history.at(past)
        self._past: list[str] | None = None
        self._place = 0
        self._changed: dict[int, str] = {}

    def on_resize(self) -> None:
        self.placeholder = HINT if safe_text.cells(HINT) <= self.content_size.width else SHORT

    async def _on_key(self, event: keys.Key) -> None:
        match event.key:
            case "enter":
                _handled(event)
                self._send()
            case "alt+enter" | "shift+enter" | "ctrl+j":
                _handled(event)
                self.insert("\n")
            case "tab":
                _handled(event)
                self.run_worker(self._completed(self._before), exclusive=True, group="completing")
            case "pageup" | "pagedown":
                _handled(event)
                self.post_message(self.Paged(-1 if event.key == "pageup" else 1))
            case "up" if self._row == 0:
                _handled(event)
                self._bring_back(1)
            case "down" if self._row == self.wrapped_document.height - 1:
                _handled(event)
                self._bring_back(-1)
            case _:
                self.post_message(self.Offered(()))
                await super()._on_key(event)

    def put(self, words: str) -> None:
        """Have these words written, to be changed or sent."""
        self.text = words
        self.move_cursor(self.document.end)
        self.post_message(self.Offered(()))

    def keep(self) -> None:
        """What is written can be brought back with the arrows, as if it were sent."""
        if self.text.strip():
            self._lines.insert(0, self.text)
        self._place, self._changed = 0, {}

    def _send(self) -> None:
        # A keyboard may send what is no text.
        line = self.text.encode("utf-8", "replace").decode().strip()
        self.put("")
        self._place, self._changed = 0, {}
        if line:
            # Before it is in the file: what reads that for the first time would have it twice.
            self._lines.insert(0, line)
            self._history.store_string(line)
            self.post_message(self.Sent(line))

    @property
    def _lines(self) -> list[str]:
        """What was typed before, the last first; read when it is first wanted."""
        if self._past is None:
            self._past = list(self._history.load_history_strings())
        return self._past

    def _bring_back(self, step: int) -> None:
        place = self._place + step
        if not 0 <= place <= len(self._lines):
            return
        # What was begun, or changed in what was brought back, is there again when it is come back to.
        self._changed[self._place] = self.text
        self._place = place
        self.put(self._changed.get(place, self._lines[place - 1] if place else ""))

    @property
    def _row(self) -> int:
        """The row of the cursor: a long line has more than one."""
        return self.wrapped_document.location_to_offset(self.cursor_location).y

    @property
    def _before(self) -> str:
        """What stands before the cursor."""
        return self.get_text_range((0, 0), self.cursor_location)

    async def _completed(self, before: str) -> None:
        found = await completed(self._words, before)
        if self._before != before or not found:
            return
        common = _common([each.value for each in found])
        if len(common) > len(before):
            self.replace(common, (0, 0), self.cursor_location, maintain_selection_offset=False)
        self.post_message(self.Offered(found if len(found) > 1 else ()))


async def completed(words: completion.Words, before: str) -> list[Choice]:
    """What this may become: the same as in the chat."""
    offers = words.get_completions_async(Document(before), CompleteEvent(completion_requested=True))
    return [
        Choice(
            before[: len(before) + each.start_position] + each.text, each.display_meta_text, each.display_text.strip()
        )
        async for each in offers
    ]


HELP = "\n".join(
    (
        "Enter sends, Ctrl-J begins a new line, Tab completes commands, what they take, and paths.",
        "While an answer comes, what you send waits for it: /queue lists it. /steer TEXT tells the answer something.",
        "Ctrl-C takes back what is written; else it stops the answer, and twice leaves. Ctrl-Q leaves.",
        "Ctrl-P: commands. Ctrl-O: conversations. Ctrl-T: light or dark. F6: to the transcript, and back.",
        "//text sends a line that begins with a slash.",
    )
)
HINT, SHORT = "Write here. Ctrl-P: commands, Ctrl-O: conversations.", "Write here. Ctrl-P: commands."


def offered(candidates: Sequence[Choice], rows: int) -> str:
    """What the line may become, one a row, in as many rows as there are."""
    most = rows if len(candidates) <= rows else rows - 1
    shown = [safe_text.safe(f"{each.shown}  {each.help}".rstrip()) for each in candidates[:most]]
    left = len(candidates) - most
    return "\n".join([*shown, *([f"and {left} more"] if left > 0 else [])])


def _common(lines: Sequence[str]) -> str:
    """What all of them begin with."""
    first, last = min(lines), max(lines)
    return first[: next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]


def _handled(event: keys.Key) -> None:
    event.stop()
    event.prevent_default()
