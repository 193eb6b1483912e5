"""read_file shows numbered lines of files of any length, and whole images."""

from __future__ import annotations

import base64
import io
import os
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import content_parts, errors
from holdfast.tools.files import images, read
from tests.support.file_tools import FileTools
from tests.support.image_files import chunk, png


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"one\ntwo\n", "1\tone\n2\ttwo"),
        (b"ok \xff\xfe\n", "1\tok \ufffd\ufffd"),
        (b"\xef\xbb\xbfone\r\ntwo\r\n", "1\tone\n2\ttwo\n[Lines end with CRLF; edit_file keeps that.]"),
    ],
    ids=["plain", "invalid bytes", "CRLF and byte order mark"],
)
def test_lines_are_numbered(tmp_path: Path, data: bytes, shown: str) -> None:
    (tmp_path / "a.txt").write_bytes(data)
    tools = FileTools(tmp_path)
    assert tools.text("read_file", path="a.txt") == tools.text("read_file", path=str(tmp_path / "a.txt")) == shown


@given(
    st.lists(st.text(st.sampled_from("ab é\r\t"), max_size=8), max_size=12),
    st.booleans(),
    st.integers(1, 15),
    st.integers(1, 15),
)
def test_any_range_of_any_text_is_read_across_blocks(given: list[str], ended: bool, first: int, count: int) -> None:
    text = "\n".join(given) + ("\n" if ended and given else "")
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []
    file = io.BytesIO(text.encode())
    if first > max(1, len(lines)):
        with pytest.raises(errors.ToolFailed, match=rf"The file has {len(lines)} lines\."):
            read.read_lines(file, first, count)
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(read, "BLOCK_BYTES", 7)
        found = read.read_lines(file, first, count)
    assert list(found.lines) == lines[first - 1 : first - 1 + count]
    assert found.total == len(lines)


def test_huge_file_is_read_by_range_in_little_memory(tmp_path: Path) -> None:
    with open(tmp_path / "huge.log", "wb") as file:
        file.write(b"".join(b"line %d\n" % number for number in range(1, 2001)))
        file.truncate(5 * 1024**3)
    tools = FileTools(tmp_path)
    tracemalloc.start()
    try:
        first = tools.text("read_file", path="huge.log", lines=2)
        far = tools.text("read_file", path="huge.log", from_line=1500, lines=1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert first == "1\tline 1\n2\tline 2\n[Lines 1-2. More lines follow; the file has 5,368,709,120 bytes.]"
    assert far.startswith("1500\tline 1500\n")
    assert peak < 20_000_000
    assert "Use search_files instead" in tools.refusal("read_file", path="huge.log", from_line=5000)


def test_long_line_is_cut_and_the_next_one_found(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_bytes(b"x" * 30_000_000 + b"\nnext\n")
    tools = FileTools(tmp_path)
    text = tools.text("read_file", path="a.js")
    assert len(text) < read.MAX_LINE_LENGTH + 100
    assert text.startswith("1\txxx")
    assert "[… the line has 30,000,000 bytes …]" in text
    assert text.endswith("\n2\tnext")
    assert tools.text("read_file", path="a.js", from_line=2) == "2\tnext"


def test_many_or_wide_lines_come_in_parts_and_none_is_missing(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("\n".join(map(str, range(1, 1001))), encoding="utf-8")
    (tmp_path / "wide").write_text("\n".join(f"{number} " + "w" * 1_500 for number in range(1, 101)), encoding="utf-8")
    tools = FileTools(tmp_path)
    assert tools.text("read_file", path="long").endswith("[Lines 1-400 of 1000.]")
    assert tools.text("read_file", path="long", from_line=999) == "999\t999\n1000\t1000"
    seen, first = list[int](), 1
    while first <= 100:
        text = tools.text("read_file", path="wide", from_line=first)
        assert len(text) <= 30_000
        numbers = [int(line.split("\t")[0]) for line in text.splitlines() if "\t" in line]
        seen += numbers
        first = numbers[-1] + 1
    assert seen == list(range(1, 101))


def test_cancelled_read_stops_early(tmp_path: Path) -> None:
    with open(tmp_path / "huge", "wb") as file:
        file.write(b"x")
        file.truncate(1024**3)
    with open(tmp_path / "huge", "rb") as file:
        read.read_lines(file, 1, 10, lambda: True)
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) < 1_000_000


JPEG = (
    b"\xff\xd8\xff\xe0\x00\x04JF" + b"\xff\xc0\x00\x0b\x08" + struct.pack(">HH", 3, 4) + b"\x01\x01\x11\x00"
    b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00" + b"data" + b"\xff\xd9"
)
GIF = b"GIF89a" + struct.pack("<HH", 5, 6) + b"\0\0\0" + b",\0\0\0\0\5\0\6\0\0\2\2D\1\0" + b";"
VP8L = b"VP8L" + struct.pack("<I", 8) + b"\x2f" + struct.pack("<I", 6 | 8 << 14) + b"\0\0\0"
WEBP = b"RIFF" + struct.pack("<I", 4 + len(VP8L)) + b"WEBP" + VP8L

KINDS = {"image/png": (png(), 2, 1), "image/jpeg": (JPEG, 4, 3), "image/gif": (GIF, 5, 6), "image/webp": (WEBP, 7, 9)}


@pytest.mark.parametrize("kind", KINDS)
def test_image_is_shown_to_the_model(tmp_path: Path, kind: str) -> None:
    data, width, height = KINDS[kind]
    (tmp_path / "shot").write_bytes(data)
    result = FileTools(tmp_path)("read_file", path="shot")
    note, image = content_parts.parse(result.content)
    assert note == content_parts.Text(f"[shot: {kind}, {width} x {height}, {len(data)} bytes]")
    assert image == content_parts.Image(media_type=kind, data=base64.b64encode(data).decode())


@pytest.mark.parametrize("kind", KINDS)
def test_broken_image_is_never_shown(tmp_path: Path, kind: str) -> None:
    data, _, _ = KINDS[kind]
    assert images.read(data)
    for cut in range(len(data) - 1):
        assert images.read(data[:cut]) is None, cut
    (tmp_path / "shot").write_bytes(data[: len(data) // 2])
    result = FileTools(tmp_path)("read_file", path="shot")
    flipped = bytearray(png())
    flipped[20] ^= 1
    assert images.read(bytes(flipped)) is None
    assert images.read(png()[:33] + chunk(b"IEND", b"")) is None, "without pixels"
    assert "image" not in {part.get("type") for part in result.content if isinstance(part, dict)}


@pytest.mark.parametrize(
    ("data", "at", "section"),
    [(JPEG, 2, b"\xff"), (JPEG, 2, b"\xff\x01"), (JPEG, 2, b"\xff\xe0\0\2"), (png(), 33, chunk(b"tEXt", b""))],
)
def test_image_with_too_many_sections_is_refused(data: bytes, at: int, section: bytes) -> None:
    assert images.read(data[:at] + section * 1_000 + data[at:])
    assert images.read(data[:at] + section * 100_000 + data[at:]) is None


@given(st.sampled_from(sorted(KINDS)), st.binary(max_size=60))
def test_any_bytes_after_a_header_are_refused(kind: str, data: bytes) -> None:
    found = images.read(KINDS[kind][0][:12] + data)
    assert found is None or found.media_type == kind


def test_large_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wide.png").write_bytes(png(images.MAX_SIDE + 1))
    (tmp_path / "long.png").write_bytes(png() + b"\0" * images.MAX_BYTES)
    tools = FileTools(tmp_path)
    for name, reason in (("wide.png", "8001 x 1"), ("long.png", "limit is 3,500,000")):
        assert reason in tools.refusal("read_file", path=name)
