"""The folders of processes: which go, and that none goes that somebody may still need."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast import types
from holdfast.tools.shell import process_folders

OURS, THEIRS = process_folders.signature("ours.db"), process_folders.signature("theirs.db")


def made(home: Path, book: str = "", *, old: bool = False) -> str:
    folder = home / "p1"
    folder.mkdir()
    (folder / "out.0").touch()
    process_folders.sign(str(folder), book)
    if old:
        os.utime(folder, (1, 1))
    return str(folder)


def row(state: types.ProcessState, command: str = "make") -> types.Process:
    return types.Process(
        id="p1", conversation_id="c", command=command, folder="/", started_at=1.0, place="{}", state=state
    )  # fmt: skip


@pytest.mark.parametrize(
    ("book", "old", "known", "goes"),
    [
        (OURS, False, [row("exited")], False),
        (OURS, True, [row("exited")], True),
        (OURS, True, [row("running")], False),
        (OURS, False, [row("gone", "")], True),
        (OURS, False, [row("running", "")], False),
        (OURS, False, [], True),
        (THEIRS, False, [], False),
        (THEIRS, True, [], True),
        ("", False, [], False),
        ("", True, [], True),
    ],
    ids=[
        "ended", "ended long ago", "long at work", "redacted", "redacted and at work",
        "deleted", "of another book", "of another book, and old", "unsigned", "unsigned and old",
    ],
)  # fmt: skip
def test_folder_goes_when_nobody_may_need_it(
    tmp_path: Path, book: str, old: bool, known: list[types.Process], goes: bool
) -> None:
    folder = made(tmp_path, book, old=old)
    assert process_folders.tidied(process_folders.seen(str(tmp_path)), OURS, known) == goes
    assert os.path.exists(folder) is not goes


def test_folder_that_came_after_the_look_is_not_touched(tmp_path: Path) -> None:
    """The book is read after the folders: whatever is not in it by then was deleted from it."""
    before = process_folders.seen(str(tmp_path))
    folder = made(tmp_path, OURS, old=True)
    assert process_folders.tidied(before, OURS, []) == 0
    assert os.path.exists(folder)


def test_nothing_is_signed_for_a_book_that_nobody_else_sees(tmp_path: Path) -> None:
    folder = made(tmp_path, process_folders.signature(":memory:"))
    assert os.listdir(folder) == ["out.0"]
    assert process_folders.tidied(process_folders.seen(str(tmp_path)), "", []) == 0


def test_a_link_among_the_folders_is_not_followed(tmp_path: Path) -> None:
    home, precious = tmp_path / "home", tmp_path / "precious"
    home.mkdir()
    precious.mkdir()
    os.utime(precious, (1, 1))
    (home / "p1").symlink_to(precious)
    assert process_folders.tidied(process_folders.seen(str(home)), OURS, []) == 0
    assert precious.exists()


def test_a_database_has_one_signature_however_it_is_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    names = [str(tmp_path / "real" / "s.db"), "real/s.db", "link/s.db"]
    assert len({process_folders.signature(name) for name in names}) == 1
    assert process_folders.signature("real/other.db") != process_folders.signature("real/s.db")
