"""Only unallocated space is cleared: cells and the content of damaged pages stay."""

from __future__ import annotations

import struct
from pathlib import Path

import apsw
import pytest

from holdfast import errors
from holdfast.store.sqlite import unallocated_space

SIZE = 512


class Bytes:
    """A file in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        self.synced = False

    def xFileSize(self) -> int:  # noqa: N802
        return len(self.data)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        return bytes(self.data[offset : offset + amount])

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self.data[offset : offset + len(data)] = data

    def xSync(self, flags: int) -> None:  # noqa: N802
        self.synced = True


def page(kind: int, cells: list[int], start: int, junk: tuple[int, bytes] | None = None) -> bytes:
    made = bytearray(SIZE)
    made[0] = kind
    made[3:7] = struct.pack(">HH", len(cells), start)
    begin = 12 if kind in (2, 5) else 8
    made[begin : begin + 2 * len(cells)] = struct.pack(f">{len(cells)}H", *cells)
    if junk:
        made[junk[0] : junk[0] + len(junk[1])] = junk[1]
    return bytes(made)


@pytest.mark.parametrize(
    ("what", "found"),
    [
        (page(13, [400, 450], 400), None),
        (page(13, [400, 450], 400, (300, b"left")), (12, 400)),
        (page(5, [400, 450], 400, (16, b"left")), (16, 400)),
        (page(10, [], SIZE, (8, b"left")), (8, SIZE)),
        (page(13, [400, 450], 400, (400, b"a cell")), None),
        (page(0, [400], 400, (300, b"the rest of a long text")), None),
    ],
)
def test_unallocated_space_lies_between_cell_pointers_and_cells(what: bytes, found: tuple[int, int] | None) -> None:
    assert unallocated_space.find(what, 2) == found


@pytest.mark.parametrize(
    "what",
    [
        page(13, [300, 450], 400, (310, b"a row that is still there")),
        page(13, [400] * 250, 400),
        page(13, [], SIZE + 1),
    ],
)
def test_page_that_does_not_add_up_is_not_touched(what: bytes) -> None:
    with pytest.raises(errors.StoreCorrupt):
        unallocated_space.find(what, 2)


def test_clearing_changes_no_row(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    with apsw.Connection(str(path)) as db:
        db.execute("PRAGMA page_size = 512; CREATE TABLE t (id INTEGER PRIMARY KEY, body)")
        for number in range(500):
            db.execute("INSERT INTO t VALUES (?, ?)", (number * 7919 % 500, "x" * (number % 200)))
        rows = db.execute("SELECT * FROM t").fetchall()
    db.close()
    file = Bytes(path.read_bytes())
    assert unallocated_space.clear(file) > 0
    assert unallocated_space.clear(file) == 0
    assert file.synced
    path.write_bytes(file.data)
    again = apsw.Connection(str(path))
    assert again.execute("SELECT * FROM t").fetchall() == rows
    assert again.pragma("integrity_check") == "ok"
    again.close()
