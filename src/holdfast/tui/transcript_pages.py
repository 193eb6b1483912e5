"""The pages of a transcript: their cache, their heights, the entries that can be opened, and scroll anchors. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec

from holdfast import types
from holdfast.tui import entries, entry_rows

MAX_PAGES = 60
MAX_CHARACTERS = 16_000_000
"""Characters that stay in memory, however few pages they are on."""
ANCHOR_ROWS = 6
"""So many rows identify a position."""
ANCHOR_REACH_ROWS = 400


class Page(msgspec.Struct):
    """The messages of a page, their entries, and their rows if they were drawn."""

    messages: Sequence[types.Message]
    entries: list[entries.Entry]
    rows: list[entry_rows.Row] | None = None
    failed: bool = False
    """Whether the page could not be read, so that its height is unknown."""

    @property
    def size(self) -> int:
        return sum(len(each.body) for each in self.messages)


class PageCache(OrderedDict[int, Page]):
    """Pages by number, least recently seen first."""

    def is_drawn(self, page: int) -> bool:
        return page in self and self[page].rows is not None

    def drawn_around(self, page: int) -> range:
        """Return the pages around one that are drawn without a gap."""
        first = last = page
        while self.is_drawn(first - 1):
            first -= 1
        while self.is_drawn(last + 1):
            last += 1
        return range(first, last + 1)

    def evict(self, seen: range) -> None:
        """Keep the pages that are seen, and the most recently seen ones of the rest."""
        for page in seen:
            if page in self:
                self.move_to_end(page)
        size = sum(each.size for each in self.values())
        for page in list(self):
            if page in seen or (len(self) <= MAX_PAGES and size <= MAX_CHARACTERS):
                break
            size -= self.pop(page).size


class PageHeights:
    """The heights of all pages, measured or estimated, so that any row can be found before its page is read.

    There is always one page.
    """

    def __init__(self, pages: int = 1, estimate: int = 1) -> None:
        self._estimate = max(estimate, 1)
        self._rows: list[int | None] = [None] * max(pages, 1)
        self._ends: list[int] | None = None

    @property
    def pages(self) -> int:
        return len(self._rows)

    @property
    def total(self) -> int:
        return self._page_ends()[-1]

    def top(self, page: int) -> int:
        return self._page_ends()[page - 1] if page else 0

    def locate(self, row: int) -> tuple[int, int]:
        """Return the page of a row, and the row within it; rows outside belong to the first or last page."""
        row = max(row, 0)
        page = min(bisect_right(self._page_ends(), row), self.pages - 1)
        return page, row - self.top(page)

    def between(self, first: int, last: int) -> range:
        """Return the pages that contain the rows from first to last."""
        return range(self.locate(first)[0], self.locate(last)[0] + 1)

    def measure(self, page: int, rows: int) -> int:
        """Record the height of a page; return by how much everything below it has moved."""
        before, was = self.top(page), self._height(page)
        known = any(each is not None for each in self._rows)
        self._rows[page] = rows
        if not known:
            # The first measured page is a better estimate for the others than any constant.
            self._estimate = max(rows, 1)
        self._ends = None
        return rows - was + self.top(page) - before

    def resize(self, pages: int) -> None:
        """Change the number of pages; the remaining ones keep their heights."""
        del self._rows[max(pages, 1) :]
        self._rows += [None] * (max(pages, 1) - len(self._rows))
        self._ends = None

    def forget(self) -> None:
        """Replace all heights by their average, because the width has changed."""
        known = [each for each in self._rows if each is not None]
        self._estimate = max(sum(known) // len(known), 1) if known else self._estimate
        self._rows = [None] * len(self._rows)
        self._ends = None

    def _height(self, page: int) -> int:
        found = self._rows[page]
        return self._estimate if found is None else found

    def _page_ends(self) -> list[int]:
        if self._ends is None:
            self._ends = list(accumulate(map(self._height, range(len(self._rows)))))
        return self._ends


class Stop(NamedTuple):
    """An entry that can be opened, and its first row."""

    row: int
    key: entries.Key


def find_stops(parts: Iterable[tuple[int, Sequence[entry_rows.Row]]]) -> list[Stop]:
    """Return the stops in parts of the transcript, each given with its first row, from top to bottom."""
    found, before = list[Stop](), None
    for top, rows in parts:
        for number, row in enumerate(rows):
            if row.key is not None and row.key != before:
                found.append(Stop(top + number, row.key))
            before = row.key
    return found


def next_stop(stops: Sequence[Stop], selected: entries.Key | None, screen: range, step: int) -> Stop | None:
    """Return the next or previous stop, from the selected one or else from the visible rows."""
    keys = [each.key for each in stops]
    if selected in keys:
        place = keys.index(selected) + step
    elif step < 0:
        place = max((n for n, each in enumerate(stops) if each.row < screen.stop), default=-1)
    else:
        place = next((n for n, each in enumerate(stops) if each.row >= screen.start), len(stops))
    return stops[place] if 0 <= place < len(stops) else None


def find_anchor(shown: Sequence[str], top: int, row: Callable[[int], str]) -> int:
    """Return the row where these rows start now, nearest to where they started; `top` if they are gone."""
    wanted = shown[:ANCHOR_ROWS]
    for step in range(ANCHOR_REACH_ROWS):
        for place in (top + step, top - step):
            if place >= 0 and all(row(place + number) == line for number, line in enumerate(wanted)):
                return place
    return top
