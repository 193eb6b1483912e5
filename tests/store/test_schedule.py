"""Scheduled backups: made once when due, kept per store, and not delayed by a dead claim."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import SessionDB, errors
from holdfast.store import store_meta
from holdfast.store.backup import schedule as backup_schedule
from tests.support import conversations

Open = Callable[..., SessionDB]


PICTURE = b"picture"


def fill(db: SessionDB) -> SessionDB:
    conversations.begin(db, "talk", *"abc")
    conversations.attach(db, "talk", db.blobs.put(PICTURE).digest)
    return db


@pytest.fixture
def db(open_db: Open) -> SessionDB:
    return fill(open_db())


def note(db: SessionDB, key: str, value: str) -> None:
    db.driver.write("meta", lambda tx: tx.run("meta_set", key=key, value=value))


def scheduled(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.db")) if folder.exists() else []


def test_backup_is_made_when_due_or_in_a_new_folder(db: SessionDB, clock: conversations.Clock, tmp_path: Path) -> None:
    folder = tmp_path / "real"
    folder.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(folder)
    assert db.admin.backup_if_due(folder, every_hours=24, keep=3) is not None
    for hours, due in ((23, False), (1, True), (1, False), (100, True), (24, True)):
        clock.advance(hours * 3600)
        assert (db.admin.backup_if_due(tmp_path / "link", every_hours=24, keep=3) is not None) == due
    assert len(scheduled(folder)) == 3
    assert db.admin.backup_if_due(tmp_path / "moved", 24) is not None
    for path in folder.glob("*.db"):
        path.unlink()
    assert db.admin.backup_if_due(folder, 24) is not None
    with pytest.raises(errors.CopyRefused):
        db.admin.backup_if_due(f"{db.driver.path}.blobs")


def test_newest_backups_and_other_files_are_kept(db: SessionDB, clock: conversations.Clock, tmp_path: Path) -> None:
    folder, digest = tmp_path / "backups", db.blobs.put(PICTURE).digest
    db.admin.backup(folder / "by-hand.db")
    (folder / "store-notes.db").write_text("precious")
    for _ in range(4):
        report = db.admin.backup_if_due(folder, every_hours=24, keep=2)
        clock.advance(86_400)
    assert len(scheduled(folder)) == 4
    assert Path(report.path).name in scheduled(folder)
    kept = [path for path in folder.rglob(digest[2:]) if "by-hand" not in str(path)]
    assert len(kept) == 2
    assert kept[0].samefile(kept[1])  # an attachment that did not change is stored once
    assert not kept[0].samefile(db.blobs.files.path(digest))


def test_concurrent_processes_make_one_backup(db: SessionDB, open_db: Open, tmp_path: Path) -> None:
    other = open_db()
    made = conversations.at_once(
        *(lambda each=each: each.admin.backup_if_due(tmp_path / "b", 24) for each in (db, other, db, other))
    )
    assert sum(report is not None for report in made) == 1


def test_failed_attempt_is_made_again(db: SessionDB, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for _ in range(2):
        with pytest.raises(errors.StoreUnusable):
            db.admin.backup_if_due(tmp_path / "file" / "b")
    assert db.admin.get_meta(store_meta.BACKUP_FAILED) is not None
    assert db.admin.backup_if_due(tmp_path / "b") is not None
    assert db.admin.get_meta(store_meta.BACKUP_FAILED) is None


def test_backup_without_interval_ignores_the_claim_of_another_process(db: SessionDB, tmp_path: Path) -> None:
    folder = tmp_path / "b"
    note(db, store_meta.BACKUP_CLAIMED, repr(conversations.Clock()()))
    assert db.admin.backup_if_due(folder, 24) is None
    made = [db.admin.backup_if_due(folder, 0) for _ in range(3)]
    assert [report is not None for report in made] == [True, True, True]
    assert len(scheduled(folder)) == 3, "within one second none replaces another"


def test_backups_are_made_after_the_clock_was_wrong(db: SessionDB, clock: conversations.Clock, tmp_path: Path) -> None:
    folder = tmp_path / "b"
    for _ in range(2):
        assert db.admin.backup_if_due(folder, 24, keep=2) is not None
        clock.advance(86_400)
    clock.advance(-365 * 86_400)
    for _ in range(3):
        report = db.admin.backup_if_due(folder, 24, keep=2)
        assert os.path.exists(report.path)
        assert len(scheduled(folder)) == 2
        clock.advance(86_400)


def test_store_restored_from_another_stays_itself(open_db: Open, clock: conversations.Clock, tmp_path: Path) -> None:
    one, folder = fill(open_db("a/holdfast.db")), tmp_path / "backups"
    known, fresh = open_db("b/holdfast.db"), open_db("c/holdfast.db")
    first = one.admin.backup_if_due(folder, 24, keep=1)
    assert known.admin.backup_if_due(folder, 24, keep=1) is not None
    identity = known.admin.get_meta(store_meta.STORE_ID)
    for other in (known, fresh):
        other.admin.restore(first.path)
        assert other.admin.get_meta(store_meta.BACKUP_CLAIMED) is None
        clock.advance(86_400)
        assert other.admin.backup_if_due(folder, 24, keep=1) is not None
        assert os.path.exists(first.path)
    assert known.admin.get_meta(store_meta.STORE_ID) == identity
    assert len({db.admin.get_meta(store_meta.STORE_ID) for db in (one, known, fresh)}) == 3


@pytest.mark.parametrize(
    ("done", "failed", "says"),
    [
        (None, None, "yet"),
        ("1000.0", None, None),
        (repr(999.0 - 48 * 3600), None, "overdue"),
        ("1001.0", None, "overdue"),
        ("1000.0", "1000.0", "failed"),
    ],
)
def test_overdue_and_failed_backups_are_reported(done: str | None, failed: str | None, says: str | None) -> None:
    warning = backup_schedule.overdue_warning(done, failed, 24, now=1000.0)
    assert warning is None if says is None else says in str(warning)


def test_claim_is_acquired_once_and_released_by_its_holder_only(db: SessionDB, clock: conversations.Clock) -> None:
    now = clock()
    claim = backup_schedule.BackupClaim(now, 3600.0, None)
    # The second call sees the rows and the retry state that a retry sees after a commit.
    assert db.driver.write("claim", lambda tx: (claim.acquire(tx), claim.acquire(tx))) == (True, True)
    assert not db.driver.write("claim", claim.acquire)
    note(db, store_meta.BACKUP_CLAIMED, repr(now - 5))
    db.driver.write("claim", lambda tx: claim.release(tx, failed=True))
    assert db.admin.get_meta(store_meta.BACKUP_CLAIMED) == repr(now - 5)
