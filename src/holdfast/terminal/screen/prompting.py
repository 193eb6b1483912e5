"""Where people write: Enter sends, Ctrl-J begins a new line, Tab completes, arrows bring back what was typed.

Many terminals send the same for Alt-Enter and Enter, so that only some can begin a line with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from textual import events as keys
from textual.message import Message
from textual.widgets import TextArea

from holdfast.agent import commands
from holdfast.terminal import history, text

OFFERED = 12

Complete = Callable[[str], Awaitable[Sequence[commands.Candidate]]]


class Prompt(TextArea):
    """A text of one or more lines."""

    class Sent(Message):
        """A line, ended with Enter."""

        def __init__(self, line: str) -> None:
            super().__init__()
            self.line = line

    class Offered(Message):
        """What the line may become; nothing, where that is no question any more."""

        def __init__(self, candidates: Sequence[commands.Candidate]) -> None:
            super().__init__()
            self.candidates = candidates

    class Paged(Message):
        """The transcript is to go on by a page."""

        def __init__(self, step: int) -> None:
            super().__init__()
            self.step = step

    def __init__(self, complete: Complete, past: str) -> None:
        super().__init__(id="prompt", show_line_numbers=False, tab_behavior="focus", placeholder=HINT)
        self.highlight_cursor_line = False
        self._complete = complete
        self._history = history.at(past)
        self._past: list[str] | None = None
        self._place, self._draft = 0, ""

    async def _on_key(self, event: keys.Key) -> None:
        match event.key:
            case "enter":
                _handled(event)
                self._send()
            case "alt+enter" | "shift+enter" | "ctrl+j":
                _handled(event)
                self.insert("\n")
            case "tab" if self.text.startswith("/"):
                _handled(event)
                self.run_worker(self._completed(self.text), exclusive=True, group="completing")
            case "pageup" | "pagedown":
                _handled(event)
                self.post_message(self.Paged(-1 if event.key == "pageup" else 1))
            case "up" if self.cursor_location[0] == 0:
                _handled(event)
                self._bring_back(1)
            case "down" if self.cursor_location[0] == self.document.line_count - 1:
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

    def _send(self) -> None:
        # A keyboard may send what is no text.
        line = self.text.encode("utf-8", "replace").decode().strip()
        self.put("")
        self._place = 0
        if line:
            self._history.store_string(line)
            self._lines.insert(0, line)
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
        if self._place == 0:
            self._draft = self.text
        self._place = place
        self.put(self._lines[place - 1] if place else self._draft)

    async def _completed(self, line: str) -> None:
        found = await self._complete(line)
        if self.text != line or not found:
            return
        common = _common([each.value for each in found])
        if len(common) > len(line):
            self.put(common)
        if len(found) > 1:
            self.post_message(self.Offered(found))


HINT = "Write here. Ctrl-P: commands, Ctrl-O: conversations."


def offered(candidates: Sequence[commands.Candidate]) -> str:
    """What the line may become, one a row."""
    shown = [text.safe(f"{each.value.strip()}  {each.help}") for each in candidates[:OFFERED]]
    left = len(candidates) - OFFERED
    return "\n".join([*shown, *([f"and {left} more"] if left > 0 else [])])


def _common(lines: Sequence[str]) -> str:
    """What all of them begin with."""
    first, last = min(lines), max(lines)
    return first[: next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]


def _handled(event: keys.Key) -> None:
    event.stop()
    event.prevent_default()
