"""The transcript: a list of any length, of which only the visible part is read and drawn.

Messages are read in pages by seq. A page that was not read yet has an estimated height; when it is read, the visible
rows stay where they are. The entries are not widgets.
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
from holdfast.tui import entries, entry_rows, live_turn, transcript_pages

PAGE_MESSAGES = 20
NEARBY_MESSAGES = 20
"""Messages read before and after a page, because a call and its result may be on different pages."""
RETRY_SECONDS = 1.0
ESTIMATED_PAGE_ROWS = 4 * PAGE_MESSAGES

ReadMessages = Callable[[int, int], Awaitable[Sequence[types.Message]]]
"""Reads the messages after one seq, up to another."""


class Transcript(ScrollView, can_focus=True):
    """A conversation, or a range of its messages."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        *(f"transcript--{name}" for name in entry_rows.EntryStyles._fields),
        "transcript--selected",
    }
    DEFAULT_CSS = """
    Transcript { overflow-x: hidden; overflow-y: scroll; }
    Transcript > .transcript--user { color: $primary; text-style: bold; }
    Transcript > .transcript--user_background { background: $surface; }
    Transcript > .transcript--model { color: $secondary; text-style: bold; }
    Transcript > .transcript--dim { color: $foreground 68%; }
    Transcript > .transcript--success { color: $success; }
    Transcript > .transcript--warning { color: $warning; }
    Transcript > .transcript--error { color: $error; }
    Transcript > .transcript--compaction { color: $accent; text-style: bold; }
    Transcript > .transcript--selected { background: $primary 20%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "select(1)", "next entry"),
        Binding("p", "select(-1)", "previous entry"),
        Binding("enter", "open", "open or close"),
        Binding("home", "to_top", "top", show=False),
        Binding("end", "to_end", "end", show=False),
    ]

    class CompactionOpened(Message):
        """A compaction was opened."""

        def __init__(self, compaction: types.Compaction) -> None:
            super().__init__()
            self.compaction = compaction

    def __init__(self, read: ReadMessages, marks: event_text.Marks | None = None, id: str | None = None) -> None:
        super().__init__(id=id)
        self.read, self._marks = read, marks or event_text.Marks()
        self.range = entries.TranscriptRange()
        self.live = live_turn.LiveTurn()
        self._notices: dict[int, list[entries.Entry]] = {}
        self._count = 0
        self._heights = transcript_pages.PageHeights()
        self._pages = transcript_pages.PageCache()
        self._loading = set[int]()
        self._generation = 0
        self._opened = set[entries.Key]()
        self._selected: entries.Key | None = None
        self._live_rows: list[entry_rows.Row] = []
        self._form = entry_rows.RowFormat(0)
        self._follows, self._arranging = True, False

    # --- content -------------------------------------------------------------------------------------

    async def show(self, shown: entries.TranscriptRange, read: ReadMessages | None = None, top: bool = False) -> None:
        """Show another range, from its end or from its top."""
        self.read = read or self.read
        self.live.clear()
        self.live.queued = ()
        self.range = shown
        self._notices, self._opened, self._selected = {}, set(), None
        self._generation += 1
        self._pages.clear()
        self._loading.clear()
        self._heights = transcript_pages.PageHeights(self._page_of(shown.last) + 1, ESTIMATED_PAGE_ROWS)
        # This is not a person's scrolling, so it must not end following.
        self._arranging = True
        self.scroll_to(y=0, animate=False)
        self._follows, self._arranging = not top, False
        last = 0 if top else self._heights.pages - 1
        for page in sorted({max(last - 1, 0), last}):
            await self._load(page, self._generation)
        self._arrange()

    async def extend(self, shown: entries.TranscriptRange, *, turn_over: bool = False) -> None:
        """Show the same conversation after it has changed. After a turn, the log has the entries of the live turn."""
        was, self.range = self.range, shown
        same = (was.hides, was.compactions, was.active_epoch) == (shown.hides, shown.compactions, shown.active_epoch)
        if same and was.last == shown.last and not turn_over:
            return
        last = self._page_of(shown.last)
        first = min(self._page_of(was.last), last)
        read: dict[int, transcript_pages.Page] = {}
        anywhere = turn_over and not self._follows
        # Read before pages are removed, so that nothing flickers; pages between are read when they are seen. The reader
        # of a turn that ends may be anywhere in it.
        try:
            for page in range(first, last + 1) if anywhere else {first, max(last - 1, first), last}:
                messages = await self._read_page(page)
                read[page] = transcript_pages.Page(messages, self._build_entries(page, messages))
        except errors.HoldfastError:
            self.range = was
            raise
        visible = self.visible_rows
        self._heights.resize(last + 1)
        for number in [each for each in self._pages if each >= first]:
            del self._pages[number]
        for number, kept in self._pages.items():
            if not same:
                self._rebuild_page(number, kept)
        self._pages.update(read)
        if turn_over:
            opened = self.live.opened_calls(self._opened)
            self._opened |= {key for each in read.values() for key in entries.call_keys(each.messages, opened)}
            self.live.clear()
        self._draw_live()
        self._arrange_around(visible)

    def add_notice(self, kind: entries.Kind, text: str, level: events.Level = "info", seq: int | None = None) -> None:
        """Add an entry that is not a message, behind the last message or the one given."""
        self._count += 1
        place = min(self.range.last if seq is None else seq, self.range.last)
        entry = entries.Entry((place, 10**6 + self._count), kind, text, level=level)
        self._notices.setdefault(place, []).append(entry)
        page, visible = self._page_of(place), self.visible_rows
        if page in self._pages:
            self._rebuild_page(page, self._pages[page])
        self._arrange_around(visible)

    def redraw_live(self) -> None:
        self._draw_live()
        self._arrange()

    def _draw_live(self) -> None:
        self._live_rows = self.live.rows(self._form, self._opened) if self._form.width else []

    # --- reading -------------------------------------------------------------------------------------

    def _page_of(self, seq: int) -> int:
        return max(seq - self.range.first, 0) // PAGE_MESSAGES

    def _span(self, page: int) -> tuple[int, int]:
        first = self.range.first + page * PAGE_MESSAGES
        return first, min(first + PAGE_MESSAGES - 1, self.range.last)

    async def _read_page(self, page: int) -> Sequence[types.Message]:
        first, last = self._span(page)
        if last < first:
            return ()
        return await self.read(max(first - 1 - NEARBY_MESSAGES, 0), last + NEARBY_MESSAGES)

    def _build_entries(self, page: int, messages: Sequence[types.Message]) -> list[entries.Entry]:
        return entries.build_entries(messages, self.range, self._notices, self._span(page))

    def _rebuild_page(self, number: int, page: transcript_pages.Page) -> None:
        if not page.failed:
            page.entries, page.rows = self._build_entries(number, page.messages), None

    async def _load(self, page: int, generation: int) -> None:
        try:
            messages = await self._read_page(page)
        except errors.HoldfastError as error:
            if self._is_wanted(page, generation):
                notice = entries.Entry((0, 0), "notice", str(error), level="error")
                self._pages[page] = transcript_pages.Page((), [notice], failed=True)
                self.set_timer(RETRY_SECONDS, partial(self._retry, page, generation))
        else:
            if self._is_wanted(page, generation):
                self._pages[page] = transcript_pages.Page(messages, self._build_entries(page, messages))
        self._loading.discard(page)

    def _is_wanted(self, page: int, generation: int) -> bool:
        """Return whether the range is still the same, and nothing newer was read meanwhile."""
        return generation == self._generation and page not in self._pages

    def _retry(self, page: int, generation: int) -> None:
        if generation == self._generation and page in self._pages and self._pages[page].failed:
            del self._pages[page]
            self._arrange()

    def _request(self, page: int) -> None:
        async def load(generation: int) -> None:
            await self._load(page, generation)
            self._arrange()

        if page not in self._loading:
            self._loading.add(page)
            self.run_worker(load(self._generation), group="pages")

    # --- layout --------------------------------------------------------------------------------------

    def _arrange(self) -> None:
        """Draw the visible pages and request those that are missing; visible rows stay where they are."""
        if self._arranging or not self._form.width:
            return
        self._arranging = True
        try:
            self._follow_end()
            while self._draw_next_page():
                self._follow_end()
        finally:
            self._arranging = False
        self._pages.evict(self._seen())
        self.refresh()

    def _follow_end(self) -> None:
        self._update_size()
        if self._follows:
            self.scroll_to(y=self.max_scroll_y, animate=False)

    def _draw_next_page(self) -> bool:
        """Draw one page that is visible or nearly so; return whether there was one."""
        for number in self._seen():
            page = self._pages.get(number)
            if page is None:
                self._request(number)
            elif page.rows is None:
                above = self._heights.top(number) < self.scroll_offset.y and not self._follows
                moved = self._draw_page(number, page)
                self._update_size()
                if above and moved:
                    self.scroll_to(y=self.scroll_y + moved, animate=False)
                return True
        return False

    def _draw_page(self, number: int, page: transcript_pages.Page) -> int:
        """Draw a page; return by how much the rows below it have moved."""
        page.rows = []
        for entry in page.entries:
            page.rows += entry_rows.draw_below(page.rows, entry, self._form, entry.key in self._opened)
        return 0 if page.failed else self._heights.measure(number, len(page.rows))

    def _seen(self) -> range:
        """Return the pages on the screen and half a screen around it."""
        top, room = self.scroll_offset.y, max(self.size.height, 1)
        return self._heights.between(top - room // 2, top + room + room // 2)

    def _update_size(self) -> None:
        size = Size(self._form.width, self._heights.total + len(self._live_rows))
        if size != self.virtual_size:
            self.virtual_size = size

    def _redraw(self) -> None:
        """Draw all rows again after the width or the theme has changed; the top row stays at the top."""
        number, row = self._heights.locate(self.scroll_offset.y)
        page = self._pages.get(number)
        key = page.rows[row].key if page and page.rows and row < len(page.rows) else None
        self._heights.forget()
        for each in self._pages.values():
            each.rows = None
        self._draw_live()
        if not self._follows and page is not None:
            self._draw_page(number, page)
            self._update_size()
            found = next((n for n, each in enumerate(page.rows or ()) if key is not None and each.key == key), row)
            self.scroll_to(y=self._heights.top(number) + min(found, len(page.rows or ()) - 1), animate=False)
        self._arrange()

    @property
    def theme_styles(self) -> entry_rows.EntryStyles:
        return self._form.styles

    def _read_styles(self) -> entry_rows.EntryStyles:
        found = {name: self.get_component_rich_style(f"transcript--{name}") for name in entry_rows.EntryStyles._fields}
        background = Style(bgcolor=found.pop("user_background").bgcolor)
        return entry_rows.EntryStyles(
            user_background=background, **{name: _without_background(each) for name, each in found.items()}
        )

    def update_format(self) -> None:
        """Draw all rows again if the theme or the width has changed."""
        form = entry_rows.RowFormat(self.scrollable_content_region.width, self._read_styles(), self._marks)
        if form != self._form and form.width:
            self._form = form
            self._redraw()

    def on_resize(self) -> None:
        self.update_format()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        if self.is_mounted:
            self.call_after_refresh(self.update_format)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Follow the end if a person scrolled there, and draw the pages that are visible now."""
        super().watch_scroll_y(old_value, new_value)
        if not self._arranging:
            self._follows = new_value >= self.max_scroll_y
            self._arrange()

    # --- drawing -------------------------------------------------------------------------------------

    def _row(self, row: int) -> entry_rows.Row | None:
        if row >= self._heights.total:
            place = row - self._heights.total
            return self._live_rows[place] if place < len(self._live_rows) else None
        number, within = self._heights.locate(row)
        page = self._pages.get(number)
        return page.rows[within] if page and page.rows and within < len(page.rows) else None

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
        background = found.background if found.background is not None else Style()
        if found.key is not None and found.key == self._selected:
            background = Style(bgcolor=self.get_component_rich_style("transcript--selected").bgcolor)
        return strip.crop_extend(0, width, None).apply_style(base + background).apply_offsets(0, row)

    @property
    def visible_rows(self) -> list[str]:
        """The rows on the screen, as plain text."""
        top = self.scroll_offset.y
        return [self._plain_row(row) for row in range(top, top + self.size.height)]

    def _plain_row(self, row: int) -> str:
        found = self._row(row)
        return found.text.plain.rstrip() if found else ""

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """Return the text that was selected with the mouse."""
        total = self._heights.total + len(self._live_rows)
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
        """Keep the focus in the prompt; a modal screen has none."""
        return self.screen.is_modal

    def on_click(self, event: keys.Click) -> None:
        """Open or close the entry under the mouse."""
        found = self._row(event.y + self.scroll_offset.y)
        if found is not None and found.key is not None and not self.screen.get_selected_text():
            self._selected = found.key
            self.action_open()

    def action_select(self, step: int) -> None:
        """Select the next or previous entry that can be opened, from the selected one if it is visible."""
        screen = range(self.scroll_offset.y, self.scroll_offset.y + self.size.height)
        seen = {each.key for y in screen if (each := self._row(y)) is not None}
        selected = self._selected if self._selected in seen else None
        stop = transcript_pages.next_stop(self._find_stops(), selected, screen, step)
        if stop is not None:
            self._selected = stop.key
            if stop.row not in screen:
                self.scroll_to(y=max(stop.row - self.size.height // 2, 0), animate=False)
        else:
            self.scroll_pages(step)
        self.refresh()

    def _find_stops(self) -> list[transcript_pages.Stop]:
        """Return the entries around the screen that can be opened."""
        around = self._pages.drawn_around(self._heights.locate(self.scroll_offset.y)[0])
        parts = [(self._heights.top(page), self._pages[page].rows or []) for page in around if page in self._pages]
        if around.stop == self._heights.pages:
            parts.append((self._heights.total, self._live_rows))
        return transcript_pages.find_stops(parts)

    def action_open(self) -> None:
        """Open or close the selected entry."""
        key = self._selected
        if key is None:
            return
        for compaction in self.range.compactions:
            if key == entries.compaction_key(compaction):
                self.post_message(self.CompactionOpened(compaction))
                return
        self._opened ^= {key}
        # An entry grows downwards, so the reader stays at its top.
        self._follows = False
        for page in self._pages.values():
            if any(entry.key == key for entry in page.entries):
                page.rows = None
        if self.live.entry(key):
            self._draw_live()
        self._arrange_from_top()

    def _arrange_around(self, visible: Sequence[str]) -> None:
        """Draw changed pages, and keep these rows on the screen, wherever they are now."""
        if not self._follows:
            self._arrange_from_top(lambda top: transcript_pages.find_anchor(visible, top, self._plain_row))
        self._arrange()

    def _arrange_from_top(self, place: Callable[[int], int] = int) -> None:
        """Draw changed pages with the first row where it is, or where `place` says it is now."""
        top = self.scroll_offset.y
        for number in range(self._seen().start, self._heights.pages):
            page = self._pages.get(number)
            if page is not None and page.rows is None:
                self._draw_page(number, page)
        self._update_size()
        self.scroll_to(y=place(top), animate=False)
        self._arrange()

    def scroll_pages(self, step: int) -> None:
        """Scroll by screens; two rows overlap."""
        self.scroll_relative(y=step * max(self.size.height - 2, 1), animate=False)

    def action_page_up(self) -> None:
        self.scroll_pages(-1)

    def action_page_down(self) -> None:
        self.scroll_pages(1)

    def action_to_top(self) -> None:
        self._follows = False
        self.scroll_to(y=0, animate=False)

    def action_to_end(self) -> None:
        """Scroll to the end and follow it."""
        self._follows = True
        self._arrange()


def _segments(found: Iterable[Segment]) -> list[Segment]:
    return [each for each in found if each.text and each.text != "\n"]


def _without_background(style: Style) -> Style:
    return Style(color=style.color, bold=style.bold, italic=style.italic, underline=style.underline)
