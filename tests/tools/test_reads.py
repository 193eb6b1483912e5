"""What was read already is not said again, unless it might not be in view, has changed, or is asked for once more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.tools.files import read, workspace
from tests.tools import doing

REFERENCE = "has not changed since the call "


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes.txt"
    path.write_text("one\ntwo\nthree\n", encoding="utf-8")
    return path


def test_an_unchanged_file_is_answered_by_reference_and_told_again_on_request(notes: Path) -> None:
    do = doing.Doing(notes.parent)
    whole = "1\tone\n2\ttwo\n3\tthree"
    assert do.text("read_file", path="notes.txt") == whole
    told = do.text("read_file", path="notes.txt")
    assert REFERENCE + "call-1" in told
    assert "recall" in told
    assert do.text("read_file", path="notes.txt") == whole
    assert REFERENCE + "call-3" in do.text("read_file", path="./notes.txt")


def test_other_lines_and_other_files_are_told(notes: Path) -> None:
    do = doing.Doing(notes.parent)
    (notes.parent / "copy.txt").write_bytes(notes.read_bytes())
    do("read_file", path="notes.txt")
    assert do.text("read_file", path="notes.txt", from_line=2).startswith("2\ttwo")
    assert do.text("read_file", path="notes.txt", lines=1).startswith("1\tone")
    assert do.text("read_file", path="copy.txt").startswith("1\tone")


def test_a_changed_file_is_told_even_if_its_length_and_time_are_the_same(notes: Path) -> None:
    do = doing.Doing(notes.parent)
    do("read_file", path="notes.txt")
    found = notes.stat()
    notes.write_text("ONE\ntwo\nthree\n", encoding="utf-8")
    os.utime(notes, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert do.text("read_file", path="notes.txt").startswith("1\tONE")


def test_all_is_forgotten_when_the_view_changes(notes: Path) -> None:
    epoch = [1]
    do = doing.Doing(notes.parent, epoch=lambda: epoch[0])
    do("read_file", path="notes.txt")
    epoch[0] = 2
    assert do.text("read_file", path="notes.txt").startswith("1\tone")
    assert REFERENCE in do.text("read_file", path="notes.txt")


def test_a_file_these_tools_changed_is_told(notes: Path) -> None:
    do = doing.Doing(notes.parent)
    do("read_file", path="notes.txt")
    do("edit_file", path="notes.txt", old_text="one", new_text="1")
    assert do.text("read_file", path="notes.txt").startswith("1\t1\n")
    do("write_file", path="notes.txt", content="all new")
    assert do.text("read_file", path="notes.txt") == "1\tall new"


def test_what_needed_a_permission_is_never_answered_by_reference(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("KEY=abc", encoding="utf-8")
    do = doing.Doing(tmp_path)
    for _ in range(3):
        assert do.text("read_file", path=".env") == "1\tKEY=abc"
    assert len(do.acts) == 3


def test_a_read_that_failed_is_not_remembered(tmp_path: Path) -> None:
    do = doing.Doing(tmp_path)
    (tmp_path / "a").write_bytes(b"\0")
    for _ in range(3):
        assert "not a text file" in do.text("read_file", path="a")


def test_not_more_than_so_many_are_remembered() -> None:
    known, seen = read.ReadCache(), workspace.FileVersion((1, 1), 1, (1, 1), 0o644, (0, 0))
    for number in range(read.MAX_CACHED_READS + 1):
        known.add(("talk", str(number), 1, 1), seen, "c")
    assert known.pop(("talk", "0", 1, 1), seen) is None
    assert known.pop(("talk", "1", 1, 1), seen) == "c"
    assert known.pop(("other", "2", 1, 1), seen) is None
