"""The panel for approval requests, answered with a key or a click.

Text typed into the prompt is never an answer. The panel takes the focus only if the prompt is empty, and input that
arrives just as it appears goes to the prompt.
"""

from __future__ import annotations

import time

from rich.text import Text
from textual import events as keys
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Button, Static
from textual.widgets.button import ButtonVariant

from holdfast import events, safe_text
from holdfast.runtime import wording
from holdfast.terminal import event_text

ANSWERS: dict[str, events.Answered] = {"y": "once", "c": "conversation", "a": "always", "n": "deny"}
LABELS = {"y": "y once", "c": "c conversation", "a": "a always", "n": "n no"}
VARIANTS: dict[str, ButtonVariant] = {"y": "success", "n": "error"}
NARROW_COLUMNS = 52
GRACE_SECONDS = 0.4
"""For so long after the panel appeared, keys and clicks are taken for input to what was there before."""


class ApprovalPanel(Vertical, can_focus=True):
    """Shows one request after the other."""

    class Answered(Message):
        """A request was answered."""

        def __init__(self, answer: events.Approve) -> None:
            super().__init__()
            self.answer = answer

    class Typed(Message):
        """A key that belongs to the prompt."""

        def __init__(self, character: str) -> None:
            super().__init__()
            self.character = character

    def __init__(self, grace_seconds: float = GRACE_SECONDS) -> None:
        super().__init__(id="approval")
        self.grace_seconds = grace_seconds
        self.requests: list[events.ApprovalAsked] = []
        self._shown: events.ApprovalAsked | None = None
        self._shown_at = self._clicked_at = 0.0

    def compose(self) -> ComposeResult:
        """Create the texts and buttons: the danger first, and the buttons outside the scrolled part."""
        for name in ("danger", "what", "remembers", "detail"):
            yield Static(id=name, markup=False)
        with Horizontal(id="answers"):
            for key, label in LABELS.items():
                button = Button(label, variant=VARIANTS.get(key, "default"), id=f"answer-{key}", compact=True)
                button.can_focus = False
                yield button

    def on_resize(self) -> None:
        self.set_class(self.size.width < NARROW_COLUMNS, "narrow")

    def show(self, requests: list[events.ApprovalAsked]) -> None:
        """Show the first of the pending requests."""
        self.requests = requests
        self.set_class(bool(requests), "shown")
        before, self._shown = self._shown, self.requests[0] if self.requests else None
        if (asked := self._shown) is None:
            return
        if asked != before:  # Otherwise another request was queued behind it.
            self.scroll_home(animate=False)
            self._shown_at = time.monotonic()
        more = len(self.requests) - 1
        behind = f"  ({more} more after this)" if more else ""
        self.set_class(bool(asked.danger), "dangerous")
        self.query_one("#what", Static).update(safe_text.safe(f"{wording.approval_asked(asked).text}{behind}"))
        self.query_one("#detail", Static).update(Text("\n".join(safe_text.safe_lines(asked.detail.rstrip("\n")))))
        self.query_one("#detail").display = bool(asked.detail.strip())
        remembers = f"{event_text.REMEMBERS}{asked.remembers}" if asked.remembers else ""
        for name, text in (("#danger", asked.danger), ("#remembers", remembers)):
            self.query_one(name, Static).update(safe_text.safe(text))
            self.query_one(name).display = bool(text)
        for key in "ca":
            self.query_one(f"#answer-{key}").display = bool(asked.remembers)

    def on_key(self, event: keys.Key) -> None:
        """Answer with a letter, scroll with the arrows."""
        if not self.requests:
            return
        # The time of the key press counts, not that of its delivery, which may be late while much is drawn.
        if event.is_printable and event.time - self._shown_at < self.grace_seconds:
            event.stop()
            self.post_message(self.Typed(event.character or ""))
        elif event.key in ANSWERS:
            event.stop()
            self._answer(event.key)
        elif event.key in ("up", "down"):
            event.stop()
            self.scroll_relative(y=1 if event.key == "down" else -1, animate=False)

    def on_mouse_down(self, event: keys.MouseDown) -> None:
        self._clicked_at = event.time

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Answer with a click, unless it was meant for what was there before."""
        event.stop()
        if self._clicked_at - self._shown_at >= self.grace_seconds:
            self._answer((event.button.id or "").removeprefix("answer-"))

    def _answer(self, key: str) -> None:
        if self.requests and (key in "yn" or self.requests[0].remembers):
            answer = events.Approve(self.requests[0].request_id, ANSWERS[key], "at the terminal")
            self.post_message(self.Answered(answer))
