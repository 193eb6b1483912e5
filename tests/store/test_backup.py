"""Backups are checked copies; a restore brings old content back and voids every lease, snapshot and version."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from holdfast import SessionDB, errors, fault_points, types
from holdfast.store import store_meta
from holdfast.store.driver import Tx
from holdfast.store.sqlite import maintenance
from tests.support import backends, conversations

Open = Callable[..., SessionDB]


@pytest.fixture
def db(open_db: Open) -> SessionDB:
    return open_db()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return tmp_path / "backups" / "copy.db"


@pytest.fixture
def saved(db: SessionDB, copy: Path) -> Path:
    """A backup of the filled store."""
    fill(db)
    db.admin.backup(copy)
    return copy


def fill(db: SessionDB) -> types.Blob:
    conversations.begin(db, "talk", *"abcdef", title="plan", metadata={"ticket": 1})
    conversations.compact(db, "talk", 3, "a summary", pinned=[1])
    db.hide("talk", 5)
    db.branch("talk", branch_id="branch")
    conversations.begin(db, "ended", "x")
    db.end_conversation("ended", "done")
    conversations.begin(db, "gone", "y")
    db.delete_conversation("gone")
    db.bind_route("chat", "talk", version=0)
    blob = db.blobs.put(b"picture")
    conversations.attach(db, "talk", blob.digest)
    return blob


def content(db: SessionDB) -> object:
    """Everything that a restore brings back: all but the counters."""
    sessions = db.list_sessions(every=True, limit=1000)
    read = [(each, conversations.contents(db.context(each.id)), db.transcript(each.id)) for each in sessions]
    return read, [route.key for route in db.routes()]


# --- making a backup ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["store.db", ":memory:"])
def test_backup_is_one_sound_private_file_that_opens_as_a_store(open_db: Open, copy: Path, name: str) -> None:
    db, progress = open_db(name), list[tuple[int, int]]()
    fill(db)
    report = db.admin.backup(copy, progress=lambda done, total: progress.append((done, total)))
    assert (report.path, report.conversations, report.messages, report.blobs) == (str(copy), 3, 8, 1)
    assert report.bytes == copy.stat().st_size
    assert [path.stat().st_mode & 0o777 for path in (copy, copy.parent)] == [0o600, 0o700]
    assert sorted(os.listdir(copy.parent)) == ["copy.db", "copy.db.blobs"]
    assert progress
    assert all(0 < done <= total for done, total in progress)
    connection = apsw.Connection(str(copy), apsw.SQLITE_OPEN_READONLY)
    assert (connection.pragma("journal_mode"), connection.pragma("integrity_check")) == ("delete", "ok")
    connection.close()
    assert content(open_db(str(copy))) == content(db)


def test_backup_is_one_snapshot(db: SessionDB, open_db: Open, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "BACKUP_PAGES", 10)
    conversations.begin_each(db, ("first", "second"), *(f"{number} " * 100 for number in range(200)))
    other = open_db()

    def write(done: int, _: int) -> None:
        for name in ("first", "second"):
            other.append_message(name, role="user", content=f"more {done}")

    report = db.admin.backup(copy, progress=write)
    assert len(other.transcript("first")) > 203
    with SessionDB(copy) as saved:
        lengths = [len(saved.transcript(name)) for name in ("first", "second")]
        assert saved.admin.fsck().ok
        assert lengths == [200, 200]
        assert report.messages == 400


def test_earlier_backup_is_replaced_with_its_blobs(db: SessionDB, saved: Path) -> None:
    for name in ("branch", "talk"):
        db.delete_conversation(name)
    db.admin.scrub()
    report = db.admin.backup(saved)
    assert (report.conversations, report.blobs) == (1, 0)
    assert not any(path.is_file() for path in Path(f"{saved}.blobs").rglob("*"))


def execute(path: Path, sql: str) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(sql)
    connection.close()


OTHER_FILES: dict[str, Callable[[Path, SessionDB], object]] = {
    "text": lambda path, _: path.write_text("precious"),
    "folder": lambda path, _: path.mkdir(),
    "database": lambda path, _: execute(path, "CREATE TABLE meta (key, value); INSERT INTO meta VALUES (1, 2)"),
    "store": lambda path, _: SessionDB(path).close(),
    "used backup": lambda path, db: (db.admin.backup(path), SessionDB(path).close()),
}


@pytest.mark.parametrize("kind", OTHER_FILES)
def test_file_that_is_no_backup_is_not_overwritten(db: SessionDB, copy: Path, kind: str) -> None:
    copy.parent.mkdir(mode=0o700)
    OTHER_FILES[kind](copy, db)
    before = copy.read_bytes() if copy.is_file() else None
    with pytest.raises(errors.CopyRefused):
        db.admin.backup(copy)
    assert (copy.read_bytes() if copy.is_file() else None) == before
    assert [path.name for path in copy.parent.iterdir() if "draft" in path.name] == []


def test_overwrite_replaces_any_file_except_a_database_in_use(db: SessionDB, open_db: Open, copy: Path) -> None:
    copy.parent.mkdir(mode=0o700)
    copy.write_text("not so precious")
    assert db.admin.backup(copy, overwrite=True).conversations == 0
    open_db(str(copy.parent / "used.db"))
    with pytest.raises(errors.CopyRefused):
        db.admin.backup(copy.parent / "used.db", overwrite=True)


def test_store_is_neither_its_own_backup_nor_restored_from_itself(db: SessionDB, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "store.db")
    names = ["link", *(f"store.db{suffix}" for suffix in ("", "-wal", "-shm", ".queue", ".search", ".blobs/x"))]
    for name in names:
        with pytest.raises(errors.CopyRefused):
            db.admin.backup(tmp_path / name, overwrite=True)
    with pytest.raises(errors.CopyRefused):
        db.admin.restore(db.driver.path)
    assert db.admin.backup(f"{tmp_path}/store.db.bak").conversations == 0


def test_backup_into_a_folder_others_may_write_to_is_refused(db: SessionDB, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    with pytest.raises(errors.StoreUnusable):
        db.admin.backup(tmp_path / "shared" / "copy.db")
    assert os.listdir(tmp_path / "shared") == []


def test_damaged_store_gets_no_backup_and_the_earlier_one_stays(path: Path, copy: Path) -> None:
    with SessionDB(path) as db:
        blob = fill(db)
        os.unlink(db.blobs.files.path(blob.digest))
        assert db.admin.backup(copy).lost_blobs == (blob.digest,)  # a lost attachment prevents no backup
        before = copy.read_bytes()
        backends.damage(db, "a text was changed")
        with pytest.raises(errors.CopyDamaged) as refusal:
            db.admin.backup(copy)
    assert "P1" in str(refusal.value.problems)
    assert copy.read_bytes() == before
    assert sorted(os.listdir(copy.parent)) == ["copy.db"]


# --- restoring ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["store.db", ":memory:"])
def test_restore_brings_everything_back(open_db: Open, copy: Path, name: str) -> None:
    db, progress = open_db(name), list[int]()
    blob = fill(db)
    before = content(db)
    db.admin.backup(copy)
    conversations.begin(db, "later", "z")
    conversations.begin(db, "deleted later", "z")
    db.redact("talk", 1)
    for id_ in ("ended", "branch", "talk", "deleted later"):
        db.delete_conversation(id_)
    db.admin.scrub()
    report = db.admin.restore(copy, progress=lambda done, _: progress.append(done))
    assert content(db) == before
    assert (report.conversations, report.generation, report.lost_blobs) == (3, 2, ())
    assert set(report.brought_back) == {"ended", "branch", "talk"}
    assert db.conversation("talk").metadata == {"ticket": 1}
    assert db.get_session("later") is None
    assert conversations.read_blob(db, blob.digest) == b"picture"
    assert conversations.say(db, "talk", "and on")[0].seq == 8
    assert progress
    for id_ in ("deleted later", "gone"):
        with pytest.raises(errors.ConversationDeleted):
            db.create_session(id_, source="test")


def test_stores_restored_from_one_backup_are_separate_and_no_backups(db: SessionDB, open_db: Open, saved: Path) -> None:
    """With the mark of a backup, the next backup to its path would replace the store."""
    assert db.admin.backup_made_at(saved) == conversations.NOON
    others = [open_db(name) for name in ("a.db", "b.db", ":memory:")]
    for other in others:
        other.admin.restore(saved)
        assert content(other) == content(db)
        assert other.admin.get_meta(store_meta.BACKUP) is None
        with pytest.raises(errors.InvalidArgument):
            other.admin.set_meta(store_meta.BACKUP, "1.0")
    assert len({other.conversation("talk").epoch for other in others}) == 3


def test_restore_voids_leases_snapshots_and_route_versions(db: SessionDB, copy: Path) -> None:
    fill(db)
    held = [db.acquire_lease("talk", purpose, "me") for purpose in ("turn", "compact")]
    chat = db.mail.acquire_chat_lease("k")
    db.admin.backup(copy)
    held += [db.acquire_lease("talk", "turn", "me"), db.acquire_lease("branch", "turn", "me")]
    snapshots = [db.snapshot("talk"), held[1].snapshot]
    db.admin.restore(copy)
    assert db.leases() == []
    before = content(db)
    for lease in held:
        with pytest.raises(errors.LeaseLost):
            db.append_message(lease.conversation_id, role="user", content="stale", lease=lease)
        with pytest.raises(errors.LeaseLost):
            db.renew_lease(lease)
        assert not db.release_lease(lease)
    with pytest.raises(errors.LeaseLost):
        db.commit_compaction(held[1], summary="stale", cut_seq=4)
    for snapshot in snapshots:
        with pytest.raises(errors.Superseded):
            db.commit_compaction(snapshot, summary="stale", cut_seq=4)
    with pytest.raises(errors.RouteMoved):
        db.bind_route("chat", None, version=1)
    assert db.mail.chat_leases() == []
    with pytest.raises(errors.LeaseLost):
        db.mail.renew_chat_lease(chat)
    assert db.mail.acquire_chat_lease("k").token > 2 << 32
    assert content(db) == before


def test_counters_never_repeat_in_any_order_of_restores(db: SessionDB, copy: Path) -> None:
    conversations.begin(db, "talk", "a")
    without = copy.parent / "without.db"
    db.admin.backup(copy)
    seen: set[tuple[int, int]] = set()

    def work() -> None:
        for _ in range(3):
            db.hide("talk", 1)
            lease = db.acquire_lease("talk", "turn", "me")
            assert all(lease.snapshot.epoch > epoch and lease.token > token for epoch, token in seen)
            seen.add((lease.snapshot.epoch, lease.token))

    work()
    db.delete_conversation("talk")
    db.admin.backup(without)
    for path in (copy, without, copy, copy):
        db.admin.restore(path)
        if path == copy:
            work()


def test_other_processes_see_restored_content_in_their_open_files(db: SessionDB, open_db: Open, saved: Path) -> None:
    other = open_db()
    conversations.begin(other, "later", "a giraffe")
    assert db.search("giraffe")
    inodes = [os.stat(f"{db.driver.path}{suffix}").st_ino for suffix in ("", "-wal")]

    def read(tx: Tx) -> None:
        before = tx.all("fsck_conversations")
        db.admin.restore(saved)
        assert tx.all("fsck_conversations") == before  # the snapshot of a reader stays whole

    other.driver.read(read)
    assert content(other) == content(db)
    conversations.say(other, "talk", "an elephant")
    assert db.transcript("talk")[-1].content == "an elephant"
    assert [os.stat(f"{db.driver.path}{suffix}").st_ino for suffix in ("", "-wal")] == inodes
    for each in (db, other):
        assert "talk" in {hit.conversation_id for hit in each.search("elephant")}
        assert each.search("giraffe") == []


CHANGED_TEXT = (b'{"content":"b"}', b'{"content":"?"}')
DAMAGES: dict[str, tuple[Callable[[Path], object], bool]] = {
    "a flipped byte": (lambda path: path.write_bytes(path.read_bytes().replace(*CHANGED_TEXT)), False),
    "a deleted row": (
        lambda path: execute(path, "DROP TRIGGER session_is_not_deleted; DELETE FROM sessions WHERE ordinal = 1"),
        False,
    ),
    "half of the file": (lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 8192 * 4096]), True),
    "no file": (lambda path: path.unlink(), True),
    "database of another program": (lambda path: (path.unlink(), execute(path, "CREATE TABLE t (x)")), True),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_backup_changes_nothing(db: SessionDB, saved: Path, damage: str) -> None:
    conversations.say(db, "talk", "after")
    harm, is_found_by_check = DAMAGES[damage]
    harm(saved)
    for call in (db.admin.restore, db.admin.check_backup)[: 1 + is_found_by_check]:
        with conversations.nothing_changes(db), pytest.raises((errors.CopyDamaged, errors.CopyRefused)) as refusal:
            call(saved)
        # The message blames the backup, not the store.
        assert str(saved) in str(refusal.value)
        assert "doctor" not in str(refusal.value)
        assert "draft" not in str(refusal.value)
    assert not [name for name in os.listdir(Path(db.driver.path).parent) if "draft" in name]


def test_message_written_during_a_restore_is_not_lost(db: SessionDB, open_db: Open, saved: Path) -> None:
    other = open_db()
    writer = threading.Thread(target=lambda: other.append_message("talk", role="user", content="during", uid="during"))
    fault_points.hook = lambda point: writer.start() if point == "restore.finished" else None
    try:
        db.admin.restore(saved)
    finally:
        fault_points.hook = None
        writer.join()
    assert db.transcript("talk")[-1].uid == "during"


def test_backup_of_an_older_schema_is_migrated_and_of_a_newer_one_refused(db: SessionDB, saved: Path) -> None:
    execute(saved, "DROP TABLE blobs; UPDATE meta SET value = '1' WHERE key = 'schema_revision'")
    db.admin.restore(saved)
    assert db.blobs.put(b"another picture").size == 15
    execute(saved, "PRAGMA user_version = 99")
    with conversations.nothing_changes(db), pytest.raises(errors.SchemaTooNew):
        db.admin.restore(saved)
