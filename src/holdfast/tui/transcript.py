"""The transcript: a list of any length, of which only what is seen is read and drawn.

Messages are read in pages by their numbers. A page that was never seen has the height of the others; when it is seen,
what stands on the screen stays where it is. Nothing of it is a widget of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import ClassVar

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
from holdfast.terminal import event_text
from holdfast.tui import entries, entry_rows, focus_stops, live_turn, page_cache, page_heights, positions

PAGE = 20
"""Messages of a page."""
NEAR = 20
"""So many messages before and after a page may have the call or the result of one in it."""
AGAIN = 1.0
"""Seconds until what could not be read is read again."""
GUESS = 4 * PAGE

Read = Callable[[int, int], Awaitable[Sequence[types.Message]]]
"""The messages behind a number, up to another."""


class Transcript(ScrollView, can_focus=True):
    """A conversation, or a stretch of one."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *(f"transcript--{name}" for name in entry_rows.Ink._fields),
        "transcript--chosen",
    }
    DEFAULT_CSS = """
    Transcript { overflow-x: hidden; overflow-y: scroll; }
    Transcript > .transcript--person { color: $primary; text-style: bold; }
    Transcript > .transcript--person_paper { background: $surface; }
    Transcript > .transcript--model { color: $secondary; text-style: bold; }
    Transcript > .transcript--aside { color: $foreground 68%; }
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

    def __init__(self, read: Read, marks: event_text.Marks | None = None, id: str | None = None) -> None:
        super().__init__(id=id)
        self.read, self._marks = read, marks or event_text.Marks()
        self.story = entries.Story()
        self.tail = live_turn.Tail()
        self._beside: dict[int, list[entries.Entry]] = {}
        self._count = 0
        self._heights = page_heights.Heights()
        self._pages = page_cache.Pages()
        self._coming = set[int]()
        self._generation = 0
        self._opened = set[entries.Key]()
        self._chosen: entries.Key | None = None
        self._sought: entries.Key | None = None
        self._tail_rows: list[entry_rows.Row] = []
        self._pen = entry_rows.Pen(0)
        self._follows, self._settling = True, False

    # --- what is shown -------------------------------------------------------------------------------

    async def show(self, story: entries.Story, read: Read | None = None, top: bool = False) -> None:
        """Another story, from its end, its messages read so; nothing is left of the one before."""
        self.read = read or self.read
        self.tail.begin()
        self.tail.waiting = ()
        self.story = story
        self._beside, self._opened, self._chosen = {}, set(), None
        self._anew()
        self._heights = page_heights.Heights(self._page_of(story.last) + 1, GUESS)
        # Nobody scrolled: it is followed to its end, however far down the one before was.
        self._settling = True
        self.scroll_to(y=0, animate=False)
        self._follows, self._settling = not top, False
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
        read: dict[int, page_cache.Page] = {}
        anywhere = turn_over and not self._follows
        # Read before anything is taken away, so that nothing flickers; what lies between is read when it is seen. But
        # who reads in a turn that ends may be anywhere in it.
        try:
            for page in range(first, last + 1) if anywhere else {first, max(last - 1, first), last}:
                read[page] = page_cache.Page(found := await self._messages(page), self._gathered(page, found))
        except errors.HoldfastError:
            self.story = was
            raise
        shown = self.shown
        self._heights.resize(last + 1)
        for page in [each for each in self._pages if each >= first]:
            del self._pages[page]
        for page, there in self._pages.items():
            if not same:
                self._gather_again(page, there)
        self._pages.update(read)
        if turn_over:
            opened = self.tail.opened(self._opened)
            self._opened |= {key for each in read.values() for key in entries.called(each.messages, opened)}
            self.tail.begin()
        self._tail_rows = self.tail.rows(self._pen, self._opened) if self._pen.width else []
        self._settle_around(shown)

    def aside(self, kind: entries.Kind, words: str, level: events.Level = "info", seq: int | None = None) -> None:
        """Something that is no message, behind the last one there is, or behind the one given."""
        self._count += 1
        place = min(self.story.last if seq is None else seq, self.story.last)
        entry = entries.Entry((place, 10**6 + self._count), kind, words, level=level)
        self._beside.setdefault(place, []).append(entry)
        page, shown = self._page_of(place), self.shown
        if page in self._pages:
            self._gather_again(page, self._pages[page])
        self._settle_around(shown)

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
        return await self.read(max(first - 1 - NEAR, 0), last + NEAR)

    def _gathered(self, page: int, messages: Sequence[types.Message]) -> list[entries.Entry]:
        return entries.gathered(messages, self.story, self._beside, self._span(page))

    def _gather_again(self, page: int, there: page_cache.Page) -> None:
        if not there.failed:
            there.entries, there.rows = self._gathered(page, there.messages), None

    async def _load(self, page: int, generation: int) -> None:
        try:
            messages = await self._messages(page)
        except errors.HoldfastError as error:
            if self._wanted(page, generation):
                told = entries.Entry((0, 0), "notice", str(error), level="error")
                self._pages[page] = page_cache.Page((), [told], failed=True)
                self.set_timer(AGAIN, partial(self._try_again, page, generation))
        else:
            if self._wanted(page, generation):
                self._pages[page] = page_cache.Page(messages, self._gathered(page, messages))
        self._coming.discard(page)

    def _wanted(self, page: int, generation: int) -> bool:
        """Whether what was read is still to be shown: no other story is told, and nothing newer was read meanwhile."""
        return generation == self._generation and page not in self._pages

    def _try_again(self, page: int, generation: int) -> None:
        if generation == self._generation and page in self._pages and self._pages[page].failed:
            del self._pages[page]
            self._settle()

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
            self._follow()
            while self._lay_next():
                self._follow()
        finally:
            self._settling = False
        self._reach()
        self._pages.let_go(self._seen())
        self.refresh()

    def _follow(self) -> None:
        self._stretch()
        if self._follows:
            self.scroll_to(y=self.max_scroll_y, animate=False)

    def _lay_next(self) -> bool:
        """Draw one page that is seen, or nearly so; whether there was one."""
        for page in self._seen():
            there = self._pages.get(page)
            if there is None:
                self._want(page)
            elif there.rows is None:
                above = self._heights.top(page) < self.scroll_offset.y and not self._follows
                moved = self._measure(page, there)
                self._stretch()
                if above and moved:
                    self.scroll_to(y=self.scroll_y + moved, animate=False)
                return True
        return False

    def _measure(self, page: int, there: page_cache.Page) -> int:
        """Draw a page; by how much that moved what is below it."""
        there.rows = []
        for entry in there.entries:
            there.rows += entry_rows.spaced(there.rows, entry, self._pen, entry.key in self._opened)
        return 0 if there.failed else self._heights.measure(page, len(there.rows))

    def _seen(self) -> range:
        """The pages on the screen, and half a screen around it."""
        top, room = self.scroll_offset.y, max(self.size.height, 1)
        return self._heights.between(top - room // 2, top + room + room // 2)

    def _stretch(self) -> None:
        size = Size(self._pen.width, self._heights.total + len(self._tail_rows))
        if size != self.virtual_size:
            self.virtual_size = size

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
            self._measure(page, there)
            self._stretch()
            found = next((n for n, each in enumerate(there.rows or ()) if key is not None and each.key == key), row)
            self.scroll_to(y=self._heights.top(page) + min(found, len(there.rows or ()) - 1), animate=False)
        self._settle()

    def _inked(self) -> entry_rows.Ink:
        found = {name: self.get_component_rich_style(f"transcript--{name}") for name in entry_rows.Ink._fields}
        paper = Style(bgcolor=found.pop("person_paper").bgcolor)
        return entry_rows.Ink(person_paper=paper, **{name: _on_any_paper(each) for name, each in found.items()})

    @property
    def ink(self) -> entry_rows.Ink:
        """How things look in the theme this is."""
        return self._pen.ink

    def repaint(self) -> None:
        """The theme, or the room there is, may be another."""
        pen = entry_rows.Pen(self.scrollable_content_region.width, self._inked(), self._marks)
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

    def _row(self, row: int) -> entry_rows.Row | None:
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
        return [self._plain(row) for row in range(top, top + self.size.height)]

    def _plain(self, row: int) -> str:
        found = self._row(row)
        return found.text.plain.rstrip() if found else ""

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

    def focus_on_click(self) -> bool:
        # What is clicked open is looked at while one writes; what lies over the screen has no prompt.
        return self.screen.is_modal

    def on_click(self, event: keys.Click) -> None:
        found = self._row(event.y + self.scroll_offset.y)
        if found is not None and found.key is not None and not self.screen.get_selected_text():
            self._chosen = found.key
            self.action_open()

    def action_choose(self, step: int) -> None:
        """Go to the next thing that opens, or to the one before; from the one that is chosen, where it is in sight."""
        screen = range(self.scroll_offset.y, self.scroll_offset.y + self.size.height)
        seen = {each.key for y in screen if (each := self._row(y)) is not None}
        stop = focus_stops.following(self._stops(), self._chosen if self._chosen in seen else None, screen, step)
        if stop is not None:
            self._chosen = stop.key
            self._bring(stop.row)
        elif (mark := self.story.mark_beyond(*self._span_around(), step)) is not None:
            self._sought = self._chosen = entries.mark_key(mark)
            self._follows = False
            self.scroll_to(y=self._heights.top(self._page_of(mark.cut_seq)), animate=False)
            self._settle()
        self.refresh()

    def _stops(self) -> list[focus_stops.Stop]:
        """What can be opened, of what was drawn around here."""
        around = self._around()
        drawn = [(self._heights.top(page), self._pages[page].rows or []) for page in around if page in self._pages]
        return focus_stops.of(
            [*drawn, *([(self._heights.total, self._tail_rows)] if around.stop == self._heights.pages else [])]
        )

    def _around(self) -> range:
        """The pages that are drawn without a gap around the first row of the screen."""
        return self._pages.around(self._heights.at(self.scroll_offset.y)[0])

    def _span_around(self) -> tuple[int, int]:
        around = self._around()
        return self._span(around.start)[0], self._span(around.stop - 1)[1]

    def _bring(self, row: int) -> None:
        """Have a row in sight."""
        if not self.scroll_offset.y <= row < self.scroll_offset.y + self.size.height:
            self.scroll_to(y=max(row - self.size.height // 2, 0), animate=False)

    def _reach(self) -> None:
        """Go to the mark that was sought, once its page is drawn; whoever scrolls away seeks it no more."""
        if (key := self._sought) is None:
            return
        page = self._page_of(key[0])
        if self._pages.drawn(page) or page not in self._seen():
            self._sought = None
        if self._pages.drawn(page):
            rows = self._pages[page].rows or ()
            place = next((n for n, each in enumerate(rows) if each.key == key), None)
            if place is not None:
                self._bring(self._heights.top(page) + place)

    def action_open(self) -> None:
        """Open what was chosen, or close it."""
        key = self._chosen
        if key is None:
            return
        for compaction in self.story.compactions:
            if key == entries.mark_key(compaction):
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

    def _settle_around(self, shown: Sequence[str]) -> None:
        """Draw again what changed; whoever reads these rows goes on reading them, wherever they are now."""
        if not self._follows:
            self._settle_from_top(lambda top: positions.nearest(shown, top, self._plain))
        self._settle()

    def _settle_from_top(self, place: Callable[[int], int] = int) -> None:
        """Draw again with the first row where it is, or where that is now."""
        top = self.scroll_offset.y
        for page in range(self._seen().start, self._heights.pages):
            there = self._pages.get(page)
            if there is not None and there.rows is None:
                self._measure(page, there)
        self._stretch()
        self.scroll_to(y=place(top), animate=False)
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
