"""How tall the pages of a long list are: measured where a page was drawn, guessed where it was not. Pure.

A list of ten thousand messages has a height, and a row of it is found, before any of it was read.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate


class Heights:
    """The pages from top to bottom; there is always one."""

    def __init__(self, pages: int = 1, guess: int = 1) -> None:
        self._guess = max(guess, 1)
        self._rows: list[int | None] = [None] * max(pages, 1)
        self._ends: list[int] | None = None

    @property
    def pages(self) -> int:
        return len(self._rows)

    @property
    def total(self) -> int:
        return self._end()[-1]

    def top(self, page: int) -> int:
        """The first row of a page."""
        return self._end()[page - 1] if page else 0

    def at(self, row: int) -> tuple[int, int]:
        """The page of a row, and the row within it; what lies outside belongs to the first or the last page."""
        row = max(row, 0)
        page = min(bisect_right(self._end(), row), self.pages - 1)
        return page, row - self.top(page)

    def between(self, first: int, last: int) -> range:
        """The pages that have rows from the first to the last one given."""
        return range(self.at(first)[0], self.at(last)[0] + 1)

    def measure(self, page: int, rows: int) -> int:
        """Note how tall a page is; by how much everything below it has moved."""
        before, was = self.top(page), self._height(page)
        known = any(each is not None for each in self._rows)
        self._rows[page] = rows
        if not known:
            # The first that is known says more about the others than any number given before.
            self._guess = max(rows, 1)
        self._ends = None
        return rows - was + self.top(page) - before

    def resize(self, pages: int) -> None:
        """There are so many pages now; those that are left keep their heights."""
        del self._rows[max(pages, 1) :]
        self._rows += [None] * (max(pages, 1) - len(self._rows))
        self._ends = None

    def forget(self) -> None:
        """All are as wide as never before: what was measured is a guess again."""
        known = [each for each in self._rows if each is not None]
        self._guess = max(sum(known) // len(known), 1) if known else self._guess
        self._rows = [None] * len(self._rows)
        self._ends = None

    def _height(self, page: int) -> int:
        found = self._rows[page]
        return self._guess if found is None else found

    def _end(self) -> list[int]:
        if self._ends is None:
            self._ends = list(accumulate(map(self._height, range(len(self._rows)))))
        return self._ends
