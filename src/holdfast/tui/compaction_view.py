"""A compaction: the original messages on one side, the summary on the other."""

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

NARROW_COLUMNS = 80


async def _read_nothing(_: int, __: int) -> list[types.Message]:
    return []


class CompactionScreen(ModalScreen[None]):
    """Both sides scroll; Tab switches between them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close", "back"),
        Binding("tab,left,right", "app.focus_next", "other side", priority=True),
    ]

    def __init__(
        self,
        compaction: types.Compaction,
        shown: entries.TranscriptRange,
        read: transcript.ReadMessages,
        marks: event_text.Marks,
    ) -> None:
        super().__init__()
        self._compaction, self._range = compaction, shown
        self._originals = transcript.Transcript(read, marks, id="originals")
        self._summary = transcript.Transcript(_read_nothing, marks, id="summary")

    def compose(self) -> ComposeResult:
        compaction, first = self._compaction, self._range.first_seq(self._compaction)
        with Vertical(id="compared") as box:
            box.border_title = f"Compaction of {safe_text.date(compaction.at)}"
            box.border_subtitle = "Tab: other side, Esc: back"
            with Horizontal(id="both"):
                with Vertical(classes="side"):
                    yield Static(f"Originals: messages {first:,} to {compaction.cut_seq:,}", classes="heading")
                    yield self._originals
                with Vertical(classes="side summary"):
                    yield Static(f"Summary of messages 1 to {compaction.cut_seq:,}", classes="heading")
                    yield self._summary

    async def on_mount(self) -> None:
        """Show the originals and the summary from their tops."""
        compaction = self._compaction
        self.on_resize()
        shown = msgspec.structs.replace(
            self._range,
            first=self._range.first_seq(compaction),
            last=compaction.cut_seq,
            compactions=(),
            active_epoch=None,
        )
        await self._originals.show(shown, top=True)
        await self._summary.show(entries.TranscriptRange(), top=True)
        self._summary.add_notice("summary", summary.remove_mark(compaction.summary) or "(No summary.)")
        if compaction.pinned:
            pinned = ", ".join(f"{seq:,}" for seq in compaction.pinned)
            self._summary.add_notice("notice", f"Pinned messages, kept verbatim: {pinned}.")
        self._originals.focus()

    def on_resize(self) -> None:
        self.set_class(self.size.width < NARROW_COLUMNS, "narrow")

    def action_close(self) -> None:
        self.dismiss(None)
