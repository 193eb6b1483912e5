"""`holdfast backup`, `holdfast restore` and `holdfast salvage`: they never destroy the only copy."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from holdfast import SessionDB
from holdfast.store import store_meta
from tests.cli.conftest import ALL, BRANCH, TRIP, conversation_ids
from tests.support import backends, cli_process
from tests.support.cli_process import Configure, Holdfast


@pytest.fixture
def copy(on_trip: Holdfast, tmp_path: Path) -> Path:
    """A backup of the store, from which a conversation was deleted since."""
    assert on_trip("backup", tmp_path / "copy.db").code == 0
    assert on_trip("sessions", "delete", "other", "--yes").code == 0
    return tmp_path / "copy.db"


def test_backup_replaces_another_file_only_on_request(on_trip: Holdfast, tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("precious")
    assert "not a backup" in on_trip("backup", tmp_path / "letter").failure(1)
    assert (tmp_path / "letter").read_text() == "precious"
    assert on_trip("backup", tmp_path / "letter", "--overwrite").code == 0
    assert "Name a TARGET" in on_trip("backup").failure(2)


def test_scheduled_backup_is_made_when_due(holdfast: Holdfast, trip: Path, home: Path, configure: Configure) -> None:
    configure('[backup]\nfolder = "copies"\nevery_hours = 24\nkeep = 2\n')
    store = {"HOLDFAST_DB": str(trip)}
    assert holdfast("backup", "--if-due", **store).code == 0
    (made,) = (home / "copies").glob("*.db")
    again = holdfast("backup", "--if-due", **store)
    assert (again.code, again.out) == (0, "")
    assert "No backup is due" in again.err
    with SessionDB(trip) as db:
        assert db.admin.check_backup(made).ok
        # Another process has begun a backup.
        db.driver.write("meta", lambda tx: tx.run("meta_set", key=store_meta.BACKUP_CLAIMED, value=repr(time.time())))
    assert holdfast("backup", "--if-due", "--json", **store).data == {"due": False}
    assert os.path.exists(holdfast("backup", "--json", **store).data["path"])
    assert holdfast("backup", "elsewhere.db", "--if-due", **store).code == 2


def test_restore_without_yes_shows_both_stores_and_changes_nothing(on_trip: Holdfast, trip: Path, copy: Path) -> None:
    done = on_trip("restore", copy)
    assert done.code == 1
    assert "3 conversations with 10 messages" in done.out
    assert "2 conversations with 9 messages, which will be replaced" in done.out
    assert "--yes" in done.err
    data = on_trip("restore", copy, "--json").data
    assert (data["restored"], data["backup"]["conversations"], data["store"]["conversations"]) == (False, 3, 2)
    assert conversation_ids(trip) == {TRIP, BRANCH}


def test_restore_keeps_a_copy_and_every_earlier_one(on_trip: Holdfast, trip: Path, tmp_path: Path, copy: Path) -> None:
    stamps = [time.strftime("%Y%m%d-%H%M%S", time.gmtime(time.time() + n)) for n in range(cli_process.PATIENCE)]
    earlier = [tmp_path / f"trip.db-before-restore-{stamp}.db" for stamp in stamps]
    for path in earlier:
        path.write_bytes(b"kept by an earlier restore")
    done = on_trip("restore", copy, "--yes")
    assert done.code == 0
    assert "and restored: other" in done.out
    assert conversation_ids(trip) == ALL
    (kept,) = set(tmp_path.glob("trip.db-before-restore-*.db")) - set(earlier)
    assert kept.name.endswith("-2.db")
    assert conversation_ids(kept) == {TRIP, BRANCH}
    assert {path.read_bytes() for path in earlier} == {b"kept by an earlier restore"}


def test_restore_over_a_damaged_store_needs_no_keep(on_trip: Holdfast, trip: Path, tmp_path: Path, copy: Path) -> None:
    with SessionDB(trip) as db:
        backends.raw(db, "DROP TRIGGER message_is_only_redacted; UPDATE messages SET body = '{}' WHERE seq = 1")
    done = on_trip("restore", copy, "--yes")
    assert (done.code, "--no-keep" in done.err) == (1, True)
    assert list(tmp_path.glob("trip.db-before-restore-*")) == []
    assert on_trip("restore", copy, "--yes", "--no-keep").code == 0
    assert conversation_ids(trip) == ALL


def test_restore_creates_a_store_only_with_yes(holdfast: Holdfast, copy: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.db"
    assert holdfast("restore", copy, "--db", new).code == 1
    assert not new.exists()
    data = holdfast("restore", copy, "--yes", "--json", "--db", new).data
    assert (data["restored"], data["kept"], data["generation"]) == (True, None, 2)
    assert conversation_ids(new) == ALL


def test_lost_messages_are_listed_and_the_source_is_unchanged(holdfast: Holdfast, trip: Path, tmp_path: Path) -> None:
    broken = trip.read_bytes().replace(b"message 3", b"MESSAGE 3")
    trip.write_bytes(broken)
    done = holdfast("salvage", trip, tmp_path / "new.db", "--json")
    assert done.code == 1
    assert any((lost["conversation_id"], lost["first_seq"]) == (TRIP, 3) for lost in done.data["lost"])
    assert done.data["messages"] == 9, "the placeholder is not a saved message"
    assert trip.read_bytes() == broken
    assert holdfast("doctor", "--db", tmp_path / "new.db").code == 0


@pytest.mark.parametrize("content", [b"Dear Ann,\n", b"", None], ids=["text", "empty", "missing"])
def test_file_without_a_store_is_not_saved(holdfast: Holdfast, tmp_path: Path, content: bytes | None) -> None:
    source, target = tmp_path / "letter", tmp_path / "new.db"
    if content is not None:
        source.write_bytes(content)
    done = holdfast("salvage", source, target)
    assert (done.code, "Nothing was lost." in done.out) == (1, False)
    assert ("the file holds no data of a store" in done.out) is (content is not None)
    assert content is not None or not target.exists()
