"""The panel that asks whether a tool may do something: answered with a key, or with a click.

What is typed into the prompt is never an answer. The panel takes the keyboard only where nothing was being written, and
what comes at the very moment it appears was meant for the prompt.
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
COLOURS: dict[str, ButtonVariant] = {"y": "success", "n": "error"}
NARROW = 52
STARTLED = 0.4
"""For so many seconds after it appeared, a key or a click was meant for what was there before."""


class Approval(Vertical, can_focus=True):
    """One question after the other."""

    class Answered(Message):
        """Somebody answered."""

        def __init__(self, where: str, given: events.Approve) -> None:
            super().__init__()
            self.where, self.given = where, given

    class Meant(Message):
        """A key that was meant for the prompt."""

        def __init__(self, character: str) -> None:
            super().__init__()
            self.character = character

    def __init__(self, startled: float = STARTLED) -> None:
        super().__init__(id="approval")
        self.startled = startled
        self.asked: list[events.ApprovalAsked] = []
        self.where = ""
        """The conversation that is asked about."""
        self._now: events.ApprovalAsked | None = None
        self._since = self._clicked = 0.0

    def compose(self) -> ComposeResult:
        # However long it is: how dangerous it is stands first, and the answers stay where they are as it scrolls.
        for name in ("danger", "what", "remembers", "detail"):
            yield Static(id=name, markup=False)
        with Horizontal(id="answers"):
            for key, label in LABELS.items():
                button = Button(label, variant=COLOURS.get(key, "default"), id=f"answer-{key}", compact=True)
                button.can_focus = False
                yield button

    def on_resize(self) -> None:
        self.set_class(self.size.width < NARROW, "narrow")

    def heard(self, event: events.AnyEvent) -> None:
        """To be told of every event."""
        match event:
            case events.ApprovalAsked():
                self.asked.append(event)
            case events.ApprovalSettled(request_id):
                self.asked = [each for each in self.asked if each.request_id != request_id]
            case _:
                return
        self._show()

    def leave(self) -> None:
        """Nobody is here to answer any more."""
        self.asked = []
        self._show()

    def _show(self) -> None:
        self.set_class(bool(self.asked), "shown")
        before, self._now = self._now, self.asked[0] if self.asked else None
        if (now := self._now) is None:
            return
        if now != before:  # Else another came behind it.
            self.scroll_home(animate=False)
            self._since = time.monotonic()
        waiting = len(self.asked) - 1
        behind = f"  ({waiting} more after this)" if waiting else ""
        self.set_class(bool(now.danger), "dangerous")
        self.query_one("#what", Static).update(safe_text.safe(f"{wording.approval_asked(now).text}{behind}"))
        self.query_one("#detail", Static).update(Text("\n".join(safe_text.safe_lines(now.detail.rstrip("\n")))))
        self.query_one("#detail").display = bool(now.detail.strip())
        remembers = f"{event_text.REMEMBERS}{now.remembers}" if now.remembers else ""
        for name, words in (("#danger", now.danger), ("#remembers", remembers)):
            self.query_one(name, Static).update(safe_text.safe(words))
            self.query_one(name).display = bool(words)
        for key in "ca":
            self.query_one(f"#answer-{key}").display = bool(now.remembers)

    def on_key(self, event: keys.Key) -> None:
        if not self.asked:
            return
        # When it was pressed, not when it comes here: that may be later, where there was much to draw.
        if event.is_printable and event.time - self._since < self.startled:
            event.stop()
            self.post_message(self.Meant(event.character or ""))
        elif event.key in ANSWERS:
            event.stop()
            self._answer(event.key)
        elif event.key in ("up", "down"):
            event.stop()
            self.scroll_relative(y=1 if event.key == "down" else -1, animate=False)

    def on_mouse_down(self, event: keys.MouseDown) -> None:
        self._clicked = event.time

    def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        # Whoever meant to click on what was there before may do so still when it has moved away.
        if self._clicked - self._since >= self.startled:
            self._answer((event.button.id or "").removeprefix("answer-"))

    def _answer(self, key: str) -> None:
        if self.asked and (key in "yn" or self.asked[0].remembers):
            given = events.Approve(self.asked[0].request_id, ANSWERS[key], "at the terminal")
            self.post_message(self.Answered(self.where, given))
