"""Read rows from a damaged SQLite file page by page: bytes in, rows out.

SQLite finds a row by following pages from the root of its table, so one damaged page hides all pages below it. This
module reads every page by itself. The table of a page is known where the path from the root is intact; elsewhere it is
guessed from the types of the values. Nothing is trusted: callers verify the rows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

Value = int | float | str | bytes | None
MAX_PAYLOAD = 256 * 1024 * 1024
# The most pages beyond the end of the file that are reported as missing.
MAX_MISSING_PAGES = 1_000_000
LEAF, INDEX_LEAF, INTERIOR, INDEX_INTERIOR = 13, 10, 5, 2
_MAGIC = (0x377F0682, 0x377F0683)


class RecoveredRow(NamedTuple):
    """A row as stored. `table` is None where the path from the root of a table is damaged."""

    table: str | None
    rowid: int | None
    values: tuple[Value, ...]


class WalPages(NamedTuple):
    """The pages of a WAL: the committed and valid ones, those after a damaged frame, and how many are not valid."""

    page_size: int
    sound: dict[int, bytes]
    doubtful: list[bytes]
    ignored: int


# --- the WAL -------------------------------------------------------------------------------------------


def read_wal(data: bytes) -> WalPages:
    """Read the frames up to the last commit before the first bad checksum, and the later frames of the same WAL."""
    if len(data) < 32:
        return WalPages(0, {}, [], 0)
    magic, _, size, _, salt1, salt2, sum1, sum2 = struct.unpack(">8I", data[:32])
    order = ">" if magic & 1 else "<"
    # A reset WAL keeps old frames after a new header, so frames are ignored when the header is damaged.
    if magic not in _MAGIC or not _is_page_size(size) or _checksum(data[:24], order, (0, 0)) != (sum1, sum2):
        return WalPages(0, {}, [], (len(data) - 32) // 4120)
    sound: dict[int, bytes] = {}
    pending: dict[int, bytes] = {}
    doubtful: list[tuple[bool, bytes]] = []
    running, broken = (sum1, sum2), False
    for at in range(32, len(data) - 24 - size + 1, 24 + size):
        number, commit, *salts, one, two = struct.unpack(">6I", data[at : at + 24])
        page = data[at + 24 : at + 24 + size]
        if tuple(salts) != (salt1, salt2):
            broken = True  # The end of this WAL, or a damaged frame: later frames decide.
            continue
        running = _checksum(page, order, _checksum(data[at : at + 8], order, running)) if not broken else running
        broken = broken or running != (one, two)
        if broken:
            doubtful.append((commit > 0, page))
            continue
        pending[number] = page
        if commit:
            sound.update(pending)
            pending = {}
    last = max((at for at, (commit, _) in enumerate(doubtful) if commit), default=-1)
    return WalPages(size, sound, [page for _, page in doubtful[: last + 1]], len(doubtful))


def _is_page_size(size: int) -> bool:
    return 512 <= size <= 65536 and size & (size - 1) == 0


def _checksum(data: bytes, order: str, start: tuple[int, int]) -> tuple[int, int]:
    one, two = start
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        one = (one + even + two) & 0xFFFFFFFF
        two = (two + odd + one) & 0xFFFFFFFF
    return one, two


# --- the file ------------------------------------------------------------------------------------------


class DamagedFile:
    """The pages of a database file, overlaid with those of its WAL."""

    def __init__(self, data: bytes, wal: WalPages) -> None:
        size = struct.unpack(">H", data[16:18])[0] if len(data) >= 100 else 0
        size = 65536 if size == 1 else size
        self.header_is_sound = data[:16] == b"SQLite format 3\0" and _is_page_size(size)
        self.size = wal.page_size or (size if self.header_is_sound else 4096)
        self._data = data
        self._over = wal.sound
        self._doubtful = wal.doubtful
        first = self.page(1)
        self.usable = self.size - (first[20] if len(first) > 20 and first[20] < 64 else 0)
        self.count = max([-(-len(data) // self.size), *self._over])
        self.damaged = not self.header_is_sound or len(data) % self.size != 0
        self.unread = 0
        self.missing_pages: set[int] = set()
        self._owners = self._find_owners()
        self._free = self._read_freelist()
        declared = int.from_bytes(first[28:32], "big") if self.header_is_sound and len(first) >= 100 else 0
        self.missing_pages.update(range(self.count + 1, min(declared, self.count + MAX_MISSING_PAGES) + 1))

    def page(self, number: int) -> bytes:
        found = self._over.get(number)
        return found if found is not None else self._data[(number - 1) * self.size : number * self.size]

    def read_rows(self, progress: Callable[[int, int], None] | None = None) -> Iterator[RecoveredRow]:
        """Read every row. Pages that no table leads to are free unless the file is damaged."""
        for number in range(1, self.count + 1):
            owner = self._owners.get(number)
            if owner is not None or (self.damaged and number not in self._free):
                for rowid, values in self.read_cells(self.page(number), 100 if number == 1 else 0):
                    yield RecoveredRow(owner, rowid, values)
            if progress and number % 500 == 0:
                progress(number, self.count)

    def read_doubtful_rows(self) -> Iterator[RecoveredRow]:
        """Read the rows after a damaged frame of the WAL, which may be newer or may never have been acknowledged."""
        for page in self._doubtful:
            for rowid, values in self.read_cells(page, 0):
                yield RecoveredRow(None, rowid, values)

    # --- the table of each page --------------------------------------------------------------------------

    def _find_owners(self) -> dict[int, str]:
        owners: dict[int, str] = {}
        self._follow(1, "sqlite_schema", owners)
        roots = []
        for number in list(owners):
            for _, values in self.read_cells(self.page(number), 100 if number == 1 else 0):
                match values:
                    case ("table" | "index", str(), str(table), int(root), *_):
                        roots.append((root, table if values[0] == "table" else f"index of {table}"))
                    case ("table" | "index" | "trigger" | "view", *_):
                        pass
                    case _:
                        self.damaged = True
        if not roots:
            self.damaged = True
        for root, name in roots:
            self._follow(root, name, owners)
        return owners

    def _follow(self, root: int, name: str, owners: dict[int, str]) -> None:
        waiting = [root]
        while waiting:
            number = waiting.pop()
            page = self.page(number) if 1 <= number <= self.count else b""
            start = 100 if number == 1 else 0
            if number in owners or len(page) != self.size or page[start] not in (2, 5, 10, 13):
                self.damaged = True
                self.missing_pages.add(number)
                continue
            owners[number] = name
            waiting += self._read_children(page, start)

    def _read_children(self, page: bytes, start: int) -> list[int]:
        if page[start] not in (INTERIOR, INDEX_INTERIOR):
            return []
        places = [start + 8, *self._read_pointers(page, start)]
        return [struct.unpack(">I", page[at : at + 4])[0] for at in places]

    def _read_freelist(self) -> set[int]:
        free: set[int] = set()
        first = self.page(1)
        trunk = struct.unpack(">I", first[32:36])[0] if len(first) >= 36 and self.header_is_sound else 0
        while 1 < trunk <= self.count and trunk not in free:
            free.add(trunk)
            page = self.page(trunk)
            if len(page) < self.size:
                break
            trunk, length = struct.unpack(">II", page[:8])
            leaves = page[8 : 8 + 4 * min(length, self.size // 4 - 2)]
            free.update(struct.unpack(f">{len(leaves) // 4}I", leaves))
        return free

    # --- cells -------------------------------------------------------------------------------------------

    def _read_pointers(self, page: bytes, start: int) -> list[int]:
        count = struct.unpack(">H", page[start + 3 : start + 5])[0]
        head = start + (12 if page[start] in (INTERIOR, INDEX_INTERIOR) else 8)
        fits = min(count, (self.size - head) // 2)
        found = struct.unpack(f">{fits}H", page[head : head + 2 * fits])
        if fits != count or any(not head + 2 * fits <= at <= self.size - 4 for at in found):
            self.damaged = True
        return [at for at in found if head <= at <= self.size - 4]

    def read_cells(self, page: bytes, start: int) -> Iterator[tuple[int | None, tuple[Value, ...]]]:
        """Read the cells of a page, and skip cells that cannot be decoded."""
        if len(page) != self.size or page[start] not in (LEAF, INDEX_LEAF, INDEX_INTERIOR):
            return
        for at in self._read_pointers(page, start):
            try:
                yield self._read_cell(page, at, page[start])
            except (ValueError, IndexError, struct.error, UnicodeDecodeError):
                self.damaged = True
                self.unread += 1

    def _read_cell(self, page: bytes, at: int, kind: int) -> tuple[int | None, tuple[Value, ...]]:
        if kind == INDEX_INTERIOR:
            at += 4
        length, at = read_varint(page, at)
        rowid = None
        if kind == LEAF:
            rowid, at = read_varint(page, at)
            rowid = rowid - (1 << 64) if rowid >= 1 << 63 else rowid
        return rowid, decode_record(self._read_payload(page, at, length, kind))

    def _read_payload(self, page: bytes, at: int, length: int, kind: int) -> bytes:
        if not 0 < length <= MAX_PAYLOAD:
            raise ValueError
        usable = self.usable
        most = usable - 35 if kind == LEAF else (usable - 12) * 64 // 255 - 23
        if length <= most:
            return page[at : at + length]
        least = (usable - 12) * 32 // 255 - 23
        here = least + (length - least) % (usable - 4)
        here = here if here <= most else least
        (following,) = struct.unpack(">I", page[at + here : at + here + 4])
        parts, missing = [page[at : at + here]], length - here
        while missing > 0:
            more = self.page(following) if 1 < following <= self.count else b""
            if len(more) != self.size:
                raise ValueError
            parts.append(more[4 : min(usable, 4 + missing)])
            missing -= usable - 4
            (following,) = struct.unpack(">I", more[:4])
        return b"".join(parts)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for count in range(8):
        byte = data[at + count]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + count + 1
    return value << 8 | data[at + 8], at + 9


_INTEGERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}


def decode_record(payload: bytes) -> tuple[Value, ...]:
    """Decode the values of a row. Raises ValueError."""
    header, at = read_varint(payload, 0)
    if header > len(payload):
        raise ValueError
    kinds: list[int] = []
    while at < header:
        kind, at = read_varint(payload, at)
        kinds.append(kind)
    values: list[Value] = []
    at = header
    for kind in kinds:
        value, at = _decode_value(payload, at, kind)
        values.append(value)
    if at != len(payload) or not values:
        raise ValueError
    return tuple(values)


def _decode_value(payload: bytes, at: int, kind: int) -> tuple[Value, int]:
    if kind in (0, 8, 9):
        return {0: None, 8: 0, 9: 1}[kind], at
    size = _INTEGERS.get(kind) or (8 if kind == 7 else (kind - 12) // 2)
    data = payload[at : at + size]
    if kind in (10, 11) or len(data) != size:
        raise ValueError
    if kind in _INTEGERS:
        return int.from_bytes(data, "big", signed=True), at + size
    if kind == 7:
        return struct.unpack(">d", data)[0], at + size
    return data if kind % 2 == 0 else data.decode(), at + size
