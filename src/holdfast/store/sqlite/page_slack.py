"""The slack of a database file: bytes of a page that lie between its list of cells and its cells.

When SQLite spreads rows anew over neighbouring pages, it leaves behind, in the slack, what moved away; it
clears what is deleted, and knows nothing of these copies. It never reads them either, so they may be
cleared in the file while others read. Cells, and whatever a damaged page may still hold, are not touched.
"""

from __future__ import annotations

import struct
from typing import Protocol

from holdfast import errors

# Nodes of trees by their first byte; true for interior ones, whose header is longer.
_NODES = {2: True, 5: True, 10: False, 13: False}
# Any other page begins with the number of a page, whose first byte is none of these up to here.
MOST_PAGES = 2 << 24
# Pages read at a time, some 8 MB.
STRETCH = 2_000
SYNC_FULL = 3


class File(Protocol):
    """A database file as SQLite opens it: only so does closing it leave the locks of the process alone."""

    def xFileSize(self) -> int: ...  # noqa: N802
    def xRead(self, amount: int, offset: int) -> bytes: ...  # noqa: N802
    def xWrite(self, data: bytes, offset: int) -> None: ...  # noqa: N802
    def xSync(self, flags: int) -> object: ...  # noqa: N802


def find(page: bytes, number: int) -> tuple[int, int] | None:
    """Where slack begins and ends in a page, if there is any that is not clear."""
    at = 100 if number == 1 else 0
    if page[at] not in _NODES:
        return None
    cells, end = struct.unpack_from(">HH", page, at + 3)
    listed = at + (12 if _NODES[page[at]] else 8)
    begin, end = listed + 2 * cells, end or 65536
    if not begin <= end <= len(page) or (cells and min(struct.unpack_from(f">{cells}H", page, listed)) < end):
        raise errors.StoreCorrupt(f"Page {number} of the database is damaged; nothing was cleared in it.")
    return (begin, end) if page.count(0, begin, end) < end - begin else None


def page_size(file: File) -> int:
    """As the header of the file gives it: 65,536 does not fit there, and is written as 1."""
    size = int.from_bytes(file.xRead(2, 16), "big")
    return 65536 if size == 1 else size


def clear(file: File) -> int:
    """Clear all slack, for good; how many pages had some. Nobody may write, and the log must be empty."""
    size, whole, cleared = page_size(file), file.xFileSize(), 0
    if whole // size >= MOST_PAGES:
        raise errors.StoreUnusable("The store is too large to be scrubbed in place; `shrink` writes it anew.")
    for offset in range(0, whole, size * STRETCH):
        stretch = file.xRead(min(size * STRETCH, whole - offset), offset)
        for at in range(0, len(stretch), size):
            found = find(stretch[at : at + size], (offset + at) // size + 1)
            if found:
                file.xWrite(bytes(found[1] - found[0]), offset + at + found[0])
                cleared += 1
    file.xSync(SYNC_FULL)
    return cleared
