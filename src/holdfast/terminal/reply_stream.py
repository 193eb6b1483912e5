"""A reply in Markdown as it comes: what is complete is drawn, what is being written is seen as it was said.

Pure: words in, drawn blocks out. The block under way is open until it is complete; nothing is shown twice, and
nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast import safe_text
from holdfast.terminal import event_text, markdown, markdown_blocks


class Reply:
    """One reply after the other, at the beginning of a row each."""

    def __init__(self, width: Callable[[], int], marks: event_text.Marks | None = None) -> None:
        self._width, self._marks = width, marks or event_text.Marks()
        self._begin()

    def _begin(self) -> None:
        self._reader, self._drawing = markdown_blocks.Reader(), markdown.Drawing(self._marks)
        self._line = ""
        self._gap = self._said = False

    @property
    def open(self) -> str:
        """What is being written, as it was said."""
        words = "\n".join([*self._reader.source, self._line])
        return f"\n{words}" if words and self._gap else words

    @property
    def in_code(self) -> bool:
        """Whether the end of what was drawn is the middle of a block of code."""
        return self._reader.in_code

    def add(self, words: str) -> str:
        """The blocks that are complete with the next words."""
        words = safe_text.flowing(words).replace("\t", "    ")
        *lines, self._line = (self._line + words).split("\n")
        return self._drawn([block for line in lines for block in self._reader.read(line)])

    def end(self) -> str:
        """What was open when the reply was over; the next begins anew."""
        shown = self._drawn([*(self._reader.read(self._line) if self._line else []), *self._reader.finish()])
        self._begin()
        return shown

    def _drawn(self, done: list[markdown_blocks.Block]) -> str:
        shown = ""
        for block in done:
            if block.kind == "blank":
                self._gap = self._said
                continue
            # One empty row between blocks that had any between them.
            shown += ("\n" if self._gap else "") + self._drawing.drawn(block, max(self._width(), 1))
            self._gap, self._said = False, True
        return shown
