"""A reply in Markdown as it comes: what is complete is drawn, what is being written is seen as it was said.

The block under way stands at the end of the screen as plain text. Once it is complete it is taken back and drawn;
where it cannot be taken back it stays as it is. Nothing is shown twice, and nothing is lost.
"""

from __future__ import annotations

from holdfast.terminal import blocks, live, markdown, show, text


class Reply:
    """One reply after the other, at the beginning of a row each."""

    def __init__(self, measure: live.Measure, marks: show.Marks | None = None) -> None:
        self._measure, self._marks = measure, marks or show.Marks()
        self._live = live.Live(measure)
        self._begin()

    def _begin(self) -> None:
        self._reader, self._drawing = blocks.Reader(), markdown.Drawing(self._marks)
        self._line = ""
        self._raw = self._gap = self._said = False
        self._live.leave()

    @property
    def fresh(self) -> bool:
        """Whether the cursor stands at the beginning of a row."""
        return self._live.fresh

    def add(self, words: str) -> str:
        """What to write for the next words."""
        words = text.flowing(words).replace("\t", "    ")
        *lines, self._line = (self._line + words).split("\n")
        done = [block for line in lines for block in self._reader.read(line)]
        if self._raw:
            return self._as_it_is(words)
        if not done:
            return self._seen(words)
        back = self._live.taken_back()
        if back is None:
            return self._as_it_is(words)
        return back + self._drawn(done) + self._seen("\n".join([*self._reader.source, self._line]))

    def end(self) -> str:
        """What to write when the reply is over; the next begins anew."""
        done = [*(self._reader.read(self._line) if self._line else []), *self._reader.finish()]
        back = None if self._raw else self._live.taken_back()
        shown = self._drawn(done) if back is not None else "" if self.fresh else "\n"
        self._begin()
        return (back or "") + shown

    def _seen(self, words: str) -> str:
        """What is being written."""
        if not words:
            return ""
        gap = self._between()
        self._live.put(words)
        return gap + words

    def _as_it_is(self, words: str) -> str:
        """What is on the screen stays there, so the rest of it is written likewise, up to where a block begins."""
        self._live.put(words)
        self._raw = bool(self._line or self._reader.source)
        self._said = True
        if not self._raw:
            self._live.leave()
        return words

    def _drawn(self, done: list[blocks.Block]) -> str:
        shown = ""
        for block in done:
            if block.kind == "blank":
                self._gap = self._said
                continue
            shown += self._between() + self._drawing.drawn(block, max(self._measure().columns, 1))
            self._said = True
        return shown

    def _between(self) -> str:
        """The one empty row between blocks that had any between them."""
        gap, self._gap = "\n" if self._gap else "", False
        return gap
