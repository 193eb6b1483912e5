"""Clear the unallocated space of B-tree pages: the bytes between the cell pointers and the cells.

When SQLite rebalances a tree, copies of moved rows stay in this space. `secure_delete` does not overwrite them. SQLite
never reads it, so it can be cleared in the file while other connections read. Cells and damaged pages are not touched.
"""

from __future__ import annotations

import struct
from typing import Protocol

from holdfast import errors

# B-tree pages by their first byte; true for interior pages, whose header is longer.
_NODES = {2: True, 5: True, 10: False, 13: False}
# Any other page starts with a page number, whose first byte is none of these below this limit.
MAX_PAGES = 2 << 24
PAGES_PER_READ = 2_000  # about 8 MB
SYNC_FULL = 3


class File(Protocol):
    """A database file opened through SQLite's VFS, so that closing it keeps the POSIX locks of the process."""

    def xFileSize(self) -> int: ...  # noqa: N802
    def xRead(self, amount: int, offset: int) -> bytes: ...  # noqa: N802
    def xWrite(self, data: bytes, offset: int) -> None: ...  # noqa: N802
    def xSync(self, flags: int) -> object: ...  # noqa: N802


def find(page: bytes, number: int) -> tuple[int, int] | None:
    """Return begin and end of the unallocated space of a page; None if it is clear."""
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
    """Read the page size from the file header, where 65,536 is stored as 1."""
    size = int.from_bytes(file.xRead(2, 16), "big")
    return 65536 if size == 1 else size


def clear(file: File) -> int:
    """Clear the file and sync it; return the number of changed pages. The WAL must be empty; no process may write."""
    size, whole, cleared = page_size(file), file.xFileSize(), 0
    if whole // size >= MAX_PAGES:
        raise errors.StoreUnusable("The store is too large to be scrubbed in place; `shrink` rewrites it.")
    for offset in range(0, whole, size * PAGES_PER_READ):
        chunk = file.xRead(min(size * PAGES_PER_READ, whole - offset), offset)
        for at in range(0, len(chunk), size):
            found = find(chunk[at : at + size], (offset + at) // size + 1)
            if found:
                file.xWrite(bytes(found[1] - found[0]), offset + at + found[0])
                cleared += 1
    file.xSync(SYNC_FULL)
    return cleared
