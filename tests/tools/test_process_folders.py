"""A folder of a process is deleted when it is no longer needed, and not before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast import types
from holdfast.tools.shell import process_folders


def create(parent: str, *, old: bool = False) -> str:
    folder = Path(parent) / "p1"
    folder.mkdir(parents=True)
    (folder / "out.0").touch()
    if old:
        os.utime(folder, (1, 1))
    return str(folder)


def record(state: types.ProcessState, command: str = "make") -> types.Process:
    return types.Process(
        id="p1", conversation_id="c", command=command, folder="/", started_at=1.0, place="{}", state=state
    )


@pytest.mark.parametrize(
    ("store", "old", "records", "is_deleted"),
    [
        pytest.param("ours.db", False, [record("exited")], False, id="ended"),
        pytest.param("ours.db", True, [record("exited")], True, id="ended long ago"),
        pytest.param("ours.db", False, [record("gone", "")], True, id="redacted"),
        pytest.param("ours.db", False, [record("running", "")], False, id="redacted and running"),
        pytest.param("ours.db", False, [], True, id="record deleted"),
        pytest.param("theirs.db", False, [], False, id="of another store"),
        pytest.param("theirs.db", False, [record("gone", "")], False, id="same id in another store"),
    ],
)
def test_folder_is_deleted_when_it_is_no_longer_needed(
    tmp_path: Path, store: str, old: bool, records: list[types.Process], is_deleted: bool
) -> None:
    own = process_folders.store_folder(str(tmp_path), "ours.db")
    folder = create(process_folders.store_folder(str(tmp_path), store), old=old)
    assert process_folders.delete_expired(own, process_folders.list_all(own), records) == is_deleted
    assert os.path.exists(folder) is not is_deleted


def test_folder_created_after_the_listing_is_kept_and_a_link_not_followed(tmp_path: Path) -> None:
    own, precious = process_folders.store_folder(str(tmp_path), "ours.db"), tmp_path / "precious"
    before = process_folders.list_all(own)
    folder = create(own, old=True)
    precious.mkdir()
    os.utime(precious, (1, 1))
    (Path(own) / "p2").symlink_to(precious)
    assert process_folders.delete_expired(own, before, []) == 0
    assert process_folders.delete_expired(own, process_folders.list_all(own), []) == 1
    assert (os.path.exists(folder), precious.exists()) == (False, True)


def test_database_has_one_folder_and_memory_databases_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    names = [str(tmp_path / "real" / "s.db"), "real/s.db", "link/s.db"]
    assert len({process_folders.store_folder("h", name) for name in names}) == 1
    for name, other in (("real/s.db", "real/other.db"), (":memory:", ":memory:")):
        assert process_folders.store_folder("h", name) != process_folders.store_folder("h", other)
