"""The pages of a transcript that are in memory: what was read of them, and what it looks like. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from holdfast import types
from holdfast.tui import entries, entry_rows

KEPT = 60
"""Pages that stay in memory."""
HELD = 16_000_000
"""Characters that stay in memory, however few pages have them."""


class Page(msgspec.Struct):
    """What was read, and what it looks like, where it was drawn since."""

    messages: Sequence[types.Message]
    entries: list[entries.Entry]
    rows: list[entry_rows.Row] | None = None
    failed: bool = False
    """It could not be read: how tall it is, is not known."""

    @property
    def size(self) -> int:
        return sum(len(each.body) for each in self.messages)


class Pages(OrderedDict[int, Page]):
    """By their numbers; the one that was not seen for longest comes first."""

    def drawn(self, page: int) -> bool:
        return page in self and self[page].rows is not None

    def around(self, page: int) -> range:
        """The pages that are drawn without a gap around one."""
        first = last = page
        while self.drawn(first - 1):
            first -= 1
        while self.drawn(last + 1):
            last += 1
        return range(first, last + 1)

    def let_go(self, seen: range) -> None:
        """Keep what is seen, and of the rest what was seen last."""
        for page in seen:
            if page in self:
                self.move_to_end(page)
        held = sum(each.size for each in self.values())
        for page in list(self):
            if page in seen or (len(self) <= KEPT and held <= HELD):
                break
            held -= self.pop(page).size
