"""The transcript: a list of any length, of which only what is seen is read and drawn.

Messages are read in pages by their numbers. A page that was never seen has the height of the others; when it is seen,
what stands on the screen stays where it is. Nothing of it is a widget of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import ClassVar

import msgspec
from rich.segment import Segment
from rich.style import Style
from textual import events as keys
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from holdfast import errors, events, types
from holdfast.terminal import show
from holdfast.terminal.screen import drawing, entries, heights, tail

PAGE = 20
"""Messages of a page."""
NEAR = 20
"""So many messages before and after a page may have the call or the result of one in it."""
KEPT = 60
"""Pages that stay in memory."""
GUESS = 4 * PAGE

Read = Callable[[int, int], Awaitable[Sequence[types.Message]]]
"""The messages behind a number, up to another."""


class Page(msgspec.Struct):
    """What was read, and what it looks like, where it was drawn since."""

    messages: Sequence[types.Message]
    entries: list[entries.Entry]
    rows: list[drawing.Row] | None = None


class Transcript(ScrollView, can_focus=True):
    """A conversation, or a stretch of one."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *(f"transcript--{name}" for name in drawing.Ink._fields),
        "transcript--chosen",
    }
    DEFAULT_CSS = """
    Transcript { overflow-x: hidden; overflow-y: scroll; }
    Transcript > .transcript--person { color: $primary; text-style: bold; }
    Transcript > .transcript--person_paper { background: $surface; }
    Transcript > .transcript--model { color: $secondary; text-style: bold; }
    Transcript > .transcript--aside { color: $foreground 55%; }
    Transcript > .transcript--good { color: $success; }
    Transcript > .transcript--warning { color: $warning; }
    Transcript > .transcript--error { color: $error; }
    Transcript > .transcript--mark { color: $accent; text-style: bold; }
    Transcript > .transcript--chosen { background: $primary 20%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "choose(1)", "next that opens"),
        Binding("p", "choose(-1)", "the one before"),
        Binding("enter", "open", "open or close"),
        Binding("home", "to_top", "top", show=False),
        Binding("end", "to_end", "end", show=False),
    ]

    class MarkOpened(Message):
        """Somebody wants to see what a compaction stands for."""

        def __init__(self, compaction: types.Compaction) -> None:
            super().__init__()
            self.compaction = compaction

    def __init__(self, read: Read, marks: show.Marks | None = None, id: str | None = None) -> None:
        super().__init__(id=id)
        self._read, self._marks = read, marks or show.Marks()
        self.story = entries.Story()
        self.tail = tail.Tail()
        self._beside: dict[int, list[entries.Entry]] = {}
        self._count = 0
        self._heights = heights.Heights()
        self._pages: OrderedDict[int, Page] = OrderedDict()
        self._coming = set[int]()
        self._generation = 0
        self._opened = set[entries.Key]()
        self._chosen: entries.Key | None = None
        self._tail_rows: list[drawing.Row] = []
        self._pen = drawing.Pen(0)
        self._follows, self._settling = True, False

    # --- what is shown -------------------------------------------------------------------------------

    async def show(self, story: entries.Story, top: bool = False) -> None:
        """Another story, from its end; nothing is left of the one before."""
        self.tail.begin()
        self.tail.waiting = ()
        self.story = story
        self._beside, self._opened, self._chosen = {}, set(), None
        self._anew()
        self._heights = heights.Heights(self._page_of(story.last) + 1, GUESS)
        self._follows = not top
        self.scroll_to(y=0, animate=False)
        last = 0 if top else self._heights.pages - 1
        for page in sorted({max(last - 1, 0), last}):
            await self._load(page, self._generation)
        self._settle()

    async def tell(self, story: entries.Story, *, turn_over: bool = False) -> None:
        """The same story, longer or otherwise changed. When a turn is over, the log has what its tail showed."""
        was, self.story = self.story, story
        same = (was.hides, was.compactions, was.in_force) == (story.hides, story.compactions, story.in_force)
        if same and was.last == story.last and not turn_over:
            return
        last = self._page_of(story.last)
        first = min(self._page_of(was.last), last)
        read: dict[int, Page] = {}
        # Read before anything is taken away, so that nothing flickers; what lies between is read when it is seen.
        for page in {first, max(last - 1, first), last}:
            read[page] = Page(found := await self._messages(page), self._gathered(page, found))
        self._heights.resize(last + 1)
        for page in [each for each in self._pages if each >= first]:
            del self._pages[page]
        for page, there in self._pages.items():
            if not same:
                there.entries, there.rows = self._gathered(page, there.messages), None
        self._pages.update(read)
        if turn_over:
            self.tail.begin()
        self.redraw_tail()

    def aside(self, kind: entries.Kind, words: str, level: events.Level = "info", seq: int | None = None) -> None:
        """Something that is no message, behind the last one there is, or behind the one given."""
        self._count += 1
        place = min(self.story.last if seq is None else seq, self.story.last)
        entry = entries.Entry((place, 10**6 + self._count), kind, words, level=level)
        self._beside.setdefault(place, []).append(entry)
        page = self._page_of(place)
        if page in self._pages:
            there = self._pages[page]
            there.entries, there.rows = self._gathered(page, there.messages), None
        self._settle()

    def redraw_tail(self) -> None:
        """What the tail shows has changed."""
        self._tail_rows = self.tail.rows(self._pen, self._opened) if self._pen.width else []
        self._settle()

    # --- reading -------------------------------------------------------------------------------------

    def _page_of(self, seq: int) -> int:
        return max(seq - self.story.first, 0) // PAGE

    def _span(self, page: int) -> tuple[int, int]:
        first = self.story.first + page * PAGE
        return first, min(first + PAGE - 1, self.story.last)

    async def _messages(self, page: int) -> Sequence[types.Message]:
        first, last = self._span(page)
        if last < first:
            return ()
        return await self._read(max(first - 1 - NEAR, 0), last + NEAR)

    def _gathered(self, page: int, messages: Sequence[types.Message]) -> list[entries.Entry]:
        return entries.gathered(messages, self.story, self._beside, self._span(page))

    async def _load(self, page: int, generation: int) -> None:
        try:
            messages = await self._messages(page)
        except errors.HoldfastError as error:
            if generation == self._generation:
                self._pages[page] = Page((), [entries.Entry((0, 0), "notice", str(error), level="error")])
        else:
            if generation == self._generation:
                self._pages[page] = Page(messages, self._gathered(page, messages))
        self._coming.discard(page)

    async def _come(self, page: int, generation: int) -> None:
        await self._load(page, generation)
        self._settle()

    def _want(self, page: int) -> None:
        if page not in self._coming:
            self._coming.add(page)
            self.run_worker(self._come(page, self._generation), group="pages")

    def _anew(self) -> None:
        self._generation += 1
        self._pages.clear()
        self._coming.clear()

    # --- placing -------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Draw what can be seen, and have read what cannot be drawn yet; what is seen stays where it is."""
        if self._settling or not self._pen.width:
            return
        self._settling = True
        try:
            while self._lay_next():
                pass
            self._stretch()
            if self._follows:
                self.scroll_to(y=self.max_scroll_y, animate=False)
                while self._lay_next():
                    self._stretch()
                    self.scroll_to(y=self.max_scroll_y, animate=False)
        finally:
            self._settling = False
        self._let_go()
        self.refresh()

    def _lay_next(self) -> bool:
        """Draw one page that is seen, or nearly so; whether there was one."""
        for page in self._seen():
            there = self._pages.get(page)
            if there is None:
                self._want(page)
            elif there.rows is None:
                above = self._heights.top(page) < self.scroll_offset.y and not self._follows
                moved = self._heights.measure(page, self._lay(there))
                self._stretch()
                if above and moved:
                    self.scroll_to(y=self.scroll_y + moved, animate=False)
                return True
        return False

    def _lay(self, page: Page) -> int:
        page.rows = []
        for entry in page.entries:
            page.rows += drawing.spaced(page.rows, entry, self._pen, entry.key in self._opened)
        return len(page.rows)

    def _seen(self) -> range:
        """The pages on the screen, and half a screen around it."""
        top, room = self.scroll_offset.y, max(self.size.height, 1)
        return self._heights.between(top - room // 2, top + room + room // 2)

    def _stretch(self) -> None:
        size = Size(self._pen.width, self._heights.total + len(self._tail_rows))
        if size != self.virtual_size:
            self.virtual_size = size

    def _let_go(self) -> None:
        seen = self._seen()
        for page in list(self._pages):
            if len(self._pages) <= KEPT:
                break
            if page not in seen:
                del self._pages[page]

    def _redraw(self) -> None:
        """All of it looks different: the screen is wider, or the theme is another. What is on top stays on top."""
        page, row = self._heights.at(self.scroll_offset.y)
        there = self._pages.get(page)
        key = there.rows[row].key if there and there.rows and row < len(there.rows) else None
        self._heights.forget()
        for each in self._pages.values():
            each.rows = None
        self._tail_rows = self.tail.rows(self._pen, self._opened)
        if not self._follows and there is not None:
            self._heights.measure(page, self._lay(there))
            self._stretch()
            found = next((n for n, each in enumerate(there.rows or ()) if key is not None and each.key == key), row)
            self.scroll_to(y=self._heights.top(page) + min(found, len(there.rows or ()) - 1), animate=False)
        self._settle()

    def _inked(self) -> drawing.Ink:
        found = {name: self.get_component_rich_style(f"transcript--{name}") for name in drawing.Ink._fields}
        paper = Style(bgcolor=found.pop("person_paper").bgcolor)
        return drawing.Ink(person_paper=paper, **{name: _on_any_paper(each) for name, each in found.items()})

    @property
    def ink(self) -> drawing.Ink:
        """How things look in the theme this is."""
        return self._pen.ink

    def repaint(self) -> None:
        """The theme, or the room there is, may be another."""
        pen = drawing.Pen(self.scrollable_content_region.width, self._inked(), self._marks)
        if pen != self._pen and pen.width:
            self._pen = pen
            self._redraw()

    def on_resize(self) -> None:
        self.repaint()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        if self.is_mounted:
            self.call_after_refresh(self.repaint)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if not self._settling:
            self._follows = new_value >= self.max_scroll_y
            self._settle()

    # --- drawing -------------------------------------------------------------------------------------

    def _row(self, row: int) -> drawing.Row | None:
        if row >= self._heights.total:
            place = row - self._heights.total
            return self._tail_rows[place] if place < len(self._tail_rows) else None
        page, within = self._heights.at(row)
        there = self._pages.get(page)
        return there.rows[within] if there and there.rows and within < len(there.rows) else None

    def render_line(self, y: int) -> Strip:
        row, width, base = y + self.scroll_offset.y, self.size.width, self.rich_style
        found = self._row(row)
        if found is None:
            return Strip.blank(width, base)
        line = found.text
        if (selection := self.text_selection) is not None and (span := selection.get_span(row)) is not None:
            line = line.copy()
            end = len(line) if span[1] == -1 else span[1]
            line.stylize(self.screen.get_component_rich_style("screen--selection"), span[0], end)
        strip = Strip(_segments(line.render(self.app.console)))
        paper = found.paper if found.paper is not None else Style()
        if found.key is not None and found.key == self._chosen:
            paper = Style(bgcolor=self.get_component_rich_style("transcript--chosen").bgcolor)
        return strip.crop_extend(0, width, None).apply_style(base + paper).apply_offsets(0, row)

    @property
    def shown(self) -> list[str]:
        """The rows on the screen, as text."""
        top = self.scroll_offset.y
        found = [self._row(row) for row in range(top, top + self.size.height)]
        return [row.text.plain.rstrip() if row else "" for row in found]

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        total = self._heights.total + len(self._tail_rows)
        first = selection.start.y if selection.start else 0
        last = min(selection.end.y if selection.end else total - 1, total - 1)
        lines = [row.text.plain if (row := self._row(each)) else "" for each in range(first, last + 1)]
        if not lines:
            return None
        if selection.end:
            lines[-1] = lines[-1][: selection.end.x]
        if selection.start:
            lines[0] = lines[0][selection.start.x :]
        return "\n".join(line.rstrip() for line in lines), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        super().selection_updated(selection)
        self.refresh()

    # --- keys and mouse ------------------------------------------------------------------------------

    def on_click(self, event: keys.Click) -> None:
        found = self._row(event.y + self.scroll_offset.y)
        if found is not None and found.key is not None and not self.screen.get_selected_text():
            self._chosen = found.key
            self.action_open()

    def _opening(self) -> Iterator[tuple[int, entries.Key]]:
        """What can be opened, of what was drawn, and the row where each begins."""
        seen: entries.Key | None = None
        drawn = [(self._heights.top(page), there.rows) for page, there in sorted(self._pages.items()) if there.rows]
        for top, rows in [*drawn, (self._heights.total, self._tail_rows)]:
            for number, row in enumerate(rows):
                if row.key is not None and row.key != seen:
                    yield top + number, row.key
                seen = row.key

    def action_choose(self, step: int) -> None:
        """Go to the next thing that opens, or to the one before; first to the last one seen."""
        found = list(self._opening())
        keys_ = [key for _, key in found]
        if not found:
            return
        if self._chosen in keys_:
            place = min(max(keys_.index(self._chosen) + step, 0), len(found) - 1)
        else:
            bottom = self.scroll_offset.y + self.size.height
            place = max((n for n, (row, _) in enumerate(found) if row < bottom), default=0)
        row, self._chosen = found[place]
        if not self.scroll_offset.y <= row < self.scroll_offset.y + self.size.height:
            self.scroll_to(y=max(row - self.size.height // 2, 0), animate=False)
        self.refresh()

    def action_open(self) -> None:
        """Open what was chosen, or close it."""
        key = self._chosen
        if key is None:
            return
        for compaction in self.story.compactions:
            if key == (compaction.cut_seq, entries.BESIDE + compaction.epoch):
                self.post_message(self.MarkOpened(compaction))
                return
        self._opened ^= {key}
        # What is opened grows downwards, where it is: who reads it stays there.
        self._follows = False
        for page in self._pages.values():
            if any(entry.key == key for entry in page.entries):
                page.rows = None
        if self.tail.entry(key):
            self._tail_rows = self.tail.rows(self._pen, self._opened)
        self._settle_from_top()

    def _settle_from_top(self) -> None:
        """Draw again with the first row where it is."""
        top = self.scroll_offset.y
        for page in self._seen():
            there = self._pages.get(page)
            if there is not None and there.rows is None:
                self._heights.measure(page, self._lay(there))
        self._stretch()
        self.scroll_to(y=top, animate=False)
        self._settle()

    def page(self, step: int) -> None:
        """As many rows as there are on the screen, but for two that lead over."""
        self.scroll_relative(y=step * max(self.size.height - 2, 1), animate=False)

    def action_page_up(self) -> None:
        self.page(-1)

    def action_page_down(self) -> None:
        self.page(1)

    def action_to_top(self) -> None:
        self._follows = False
        self.scroll_to(y=0, animate=False)

    def action_to_end(self) -> None:
        self._follows = True
        self._settle()


def _segments(found: Iterable[Segment]) -> list[Segment]:
    return [each for each in found if each.text and each.text != "\n"]


def _on_any_paper(style: Style) -> Style:
    return Style(color=style.color, bold=style.bold, italic=style.italic, underline=style.underline)
