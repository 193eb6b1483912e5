"""The folders of processes: which are deleted, and that none is deleted that may still be needed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast import types
from holdfast.tools.shell import process_folders


def made(parent: str, *, old: bool = False) -> str:
    folder = Path(parent) / "p1"
    folder.mkdir(parents=True)
    (folder / "out.0").touch()
    if old:
        os.utime(folder, (1, 1))
    return str(folder)


def row(state: types.ProcessState, command: str = "make") -> types.Process:
    return types.Process(
        id="p1", conversation_id="c", command=command, folder="/", started_at=1.0, place="{}", state=state
    )  # fmt: skip


@pytest.mark.parametrize(
    ("store", "old", "known", "goes"),
    [
        ("ours.db", False, [row("exited")], False),
        ("ours.db", True, [row("exited")], True),
        ("ours.db", True, [row("running")], False),
        ("ours.db", False, [row("gone", "")], True),
        ("ours.db", False, [row("running", "")], False),
        ("ours.db", False, [], True),
        ("theirs.db", False, [], False),
        ("theirs.db", True, [], True),
        ("theirs.db", False, [row("gone", "")], False),
    ],
    ids=[
        "ended", "ended long ago", "long at work", "redacted", "redacted and at work",
        "deleted", "of another store", "of another store, and old", "same id in another store",
    ],
)  # fmt: skip
def test_folder_is_deleted_when_it_is_no_longer_needed(
    tmp_path: Path, store: str, old: bool, known: list[types.Process], goes: bool
) -> None:
    own = process_folders.store_folder(str(tmp_path), "ours.db")
    folder = made(process_folders.store_folder(str(tmp_path), store), old=old)
    assert process_folders.delete_expired(own, process_folders.list_all(own), known) == goes
    assert os.path.exists(folder) is not goes


def test_folder_that_came_after_the_listing_is_not_touched(tmp_path: Path) -> None:
    """The records are read after the folders: a folder without one was deleted with its conversation."""
    own = process_folders.store_folder(str(tmp_path), "ours.db")
    before = process_folders.list_all(own)
    folder = made(own, old=True)
    assert process_folders.delete_expired(own, before, []) == 0
    assert os.path.exists(folder)


def test_in_memory_databases_share_no_folder(tmp_path: Path) -> None:
    one, other = (process_folders.store_folder(str(tmp_path), ":memory:") for _ in range(2))
    folder = made(one)
    assert process_folders.delete_expired(other, process_folders.list_all(other), []) == 0
    assert os.path.exists(folder)


def test_a_link_among_the_folders_is_not_followed(tmp_path: Path) -> None:
    own, precious = process_folders.store_folder(str(tmp_path), "ours.db"), tmp_path / "precious"
    os.makedirs(own)
    precious.mkdir()
    os.utime(precious, (1, 1))
    (Path(own) / "p1").symlink_to(precious)
    assert process_folders.delete_expired(own, process_folders.list_all(own), []) == 0
    assert precious.exists()


def test_a_database_has_one_folder_however_it_is_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    names = [str(tmp_path / "real" / "s.db"), "real/s.db", "link/s.db"]
    assert len({process_folders.store_folder("h", name) for name in names}) == 1
    assert process_folders.store_folder("h", "real/other.db") != process_folders.store_folder("h", "real/s.db")
