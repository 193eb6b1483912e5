"""A compaction, opened: what it stands for on one side, the summary on the other."""

from __future__ import annotations

from typing import ClassVar

import msgspec
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from holdfast import safe_text, types
from holdfast.compaction import summary
from holdfast.terminal import event_text
from holdfast.tui import entries, transcript

NARROW = 80


async def _nothing(_: int, __: int) -> list[types.Message]:
    return []


class Compacted(ModalScreen[None]):
    """Both scroll; Tab goes from one to the other."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "leave", "back"),
        Binding("tab,left,right", "app.focus_next", "the other side", priority=True),
    ]

    def __init__(
        self, compaction: types.Compaction, story: entries.Story, read: transcript.Read, marks: event_text.Marks
    ) -> None:
        super().__init__()
        self._compaction, self._story = compaction, story
        self._originals = transcript.Transcript(read, marks, id="originals")
        self._summary = transcript.Transcript(_nothing, marks, id="summary")

    def compose(self) -> ComposeResult:
        made, begins = self._compaction, self._story.begins(self._compaction)
        with Vertical(id="compared") as box:
            box.border_title = f"Compaction of {safe_text.when(made.at)}"
            box.border_subtitle = "Tab goes to the other side, Esc back"
            with Horizontal(id="both"):
                with Vertical(classes="side"):
                    yield Static(f"what was said: messages {begins:,} to {made.cut_seq:,}", classes="heading")
                    yield self._originals
                with Vertical(classes="side summary"):
                    yield Static(f"what the model sees of 1 to {made.cut_seq:,}", classes="heading")
                    yield self._summary

    async def on_mount(self) -> None:
        made = self._compaction
        self.on_resize()
        story = msgspec.structs.replace(
            self._story, first=self._story.begins(made), last=made.cut_seq, compactions=(), in_force=None
        )
        await self._originals.show(story, top=True)
        await self._summary.show(entries.Story(), top=True)
        self._summary.aside("summary", summary.remove_mark(made.summary) or "(No summary.)")
        if made.pinned:
            kept = ", ".join(f"{seq:,}" for seq in made.pinned)
            self._summary.aside("notice", f"Pinned, and kept word for word: {kept}.")
        self._originals.focus()

    def on_resize(self) -> None:
        self.set_class(self.size.width < NARROW, "narrow")

    def action_leave(self) -> None:
        self.dismiss(None)
