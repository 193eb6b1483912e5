"""Backups are checked copies with a name; a restore is a step forward to an old content, never back in time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from holdfast import SessionDB, errors, fault_points, types
from holdfast.store import store_meta
from tests.support import conversations

Open = Callable[..., SessionDB]


@pytest.fixture
def clock() -> conversations.Clock:
    return conversations.Clock()


@pytest.fixture
def open_db(tmp_path: Path, clock: conversations.Clock) -> Iterator[Open]:
    opened: list[SessionDB] = []

    def make(name: str = "store.db") -> SessionDB:
        target = name if name == ":memory:" else tmp_path / name
        opened.append(SessionDB(target, clock=clock, durability="process-crash"))
        return opened[-1]

    yield make
    for db in opened:
        assert db.admin.fsck().ok
        db.close()


@pytest.fixture(params=["store.db", ":memory:"], ids=["file", "memory"])
def db(request: pytest.FixtureRequest, open_db: Open) -> SessionDB:
    return open_db(request.param)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return tmp_path / "backups" / "copy.db"


def fill(db: SessionDB) -> types.Blob:
    conversations.begin(db, "talk", *"abcdef", title="plan")
    conversations.compact(db, "talk", 3, "a summary", pinned=[1])
    db.hide("talk", 5)
    db.branch("talk", branch_id="branch")
    conversations.begin(db, "ended", "x")
    db.end_conversation("ended", "done")
    conversations.begin(db, "gone", "y")
    db.delete_conversation("gone")
    db.bind_route("chat", "talk", version=0)
    blob = db.blobs.put(b"picture")
    db.append_message("talk", role="user", content=[{"type": "image", "blob": blob.digest}])
    return blob


def content(db: SessionDB) -> object:
    """All there is but what a restore changes on purpose: the counters."""
    return [
        (
            session,
            conversations.contents(db.context(session.id)),
            db.transcript(session.id),
            [r.key for r in db.routes()],
        )
        for session in db.list_sessions(every=True, limit=1000)
    ]


# --- making one ----------------------------------------------------------------------------------------------


def test_backup_is_one_sound_file_of_its_owner(db: SessionDB, copy: Path) -> None:
    fill(db)
    report = db.admin.backup(copy)
    assert (report.path, report.conversations, report.messages, report.blobs) == (str(copy), 3, 8, 1)
    assert report.bytes == copy.stat().st_size
    assert copy.stat().st_mode & 0o777 == 0o600
    assert copy.parent.stat().st_mode & 0o777 == 0o700
    assert sorted(os.listdir(copy.parent)) == ["copy.db", "copy.db.blobs"]
    connection = apsw.Connection(str(copy), apsw.SQLITE_OPEN_READONLY)
    assert connection.pragma("journal_mode") == "delete"
    assert connection.pragma("integrity_check") == "ok"


def test_backup_opens_as_a_store(open_db: Open, copy: Path) -> None:
    db = open_db()
    fill(db)
    db.admin.backup(copy)
    assert content(open_db(str(copy))) == content(db)


def test_backup_is_one_snapshot_while_others_write(open_db: Open, copy: Path) -> None:
    db = open_db()
    fill(db)
    for number in range(2_000):
        db.append_message("ended", role="user", content=f"{number} " * 100)
    other, stop = open_db(), threading.Event()

    def write() -> None:
        while not stop.is_set():
            other.append_message("talk", role="user", content="more")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(5):
            assert db.admin.backup(copy.parent / f"{number}.db").messages > 2_000
    finally:
        stop.set()
        writer.join()


def test_earlier_backup_is_replaced_and_keeps_no_blobs_of_its_own(db: SessionDB, copy: Path) -> None:
    blob = fill(db)
    db.admin.backup(copy)
    db.delete_conversation("branch")
    db.delete_conversation("talk")
    db.admin.scrub()
    report = db.admin.backup(copy)
    assert (report.conversations, report.blobs) == (1, 0)
    assert not any(path.is_file() for path in Path(f"{copy}.blobs").rglob("*")), blob


@pytest.mark.parametrize("what", ["text", "a database", "a store", "a used backup", "a folder", "an empty file"])
def test_what_is_no_backup_is_not_overwritten(open_db: Open, copy: Path, what: str) -> None:
    db = open_db()
    fill(db)
    copy.parent.mkdir(mode=0o700)
    if what == "text":
        copy.write_text("precious")
    elif what == "an empty file":
        copy.touch()
    elif what == "a folder":
        copy.mkdir()
    elif what == "a database":
        apsw.Connection(str(copy)).execute("CREATE TABLE meta (key, value); INSERT INTO meta VALUES (1, 2)")
    else:
        if what == "a used backup":
            db.admin.backup(copy)
        SessionDB(copy).close()
    before = copy.read_bytes() if copy.is_file() else None
    with pytest.raises(errors.CopyRefused):
        db.admin.backup(copy)
    assert (copy.read_bytes() if copy.is_file() else None) == before
    assert [path.name for path in copy.parent.iterdir() if "draft" in path.name] == []


def test_anything_but_a_database_in_use_is_overwritten_when_that_is_asked_for(open_db: Open, copy: Path) -> None:
    db = open_db()
    fill(db)
    copy.parent.mkdir(mode=0o700)
    copy.write_text("not so precious")
    assert db.admin.backup(copy, overwrite=True).conversations == 3
    used = open_db(str(copy.parent / "used.db"))
    with pytest.raises(errors.CopyRefused):
        db.admin.backup(copy.parent / "used.db", overwrite=True)
    assert used.admin.fsck().ok


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", ".queue", ".search", ".blobs/x"])
def test_store_is_never_its_own_backup(open_db: Open, tmp_path: Path, suffix: str) -> None:
    db = open_db()
    fill(db)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "store.db")
    for target in (f"{tmp_path}/store.db{suffix}", f"{link}{suffix}" if not suffix else f"{tmp_path}/store.db"):
        with pytest.raises(errors.CopyRefused):
            db.admin.backup(target, overwrite=True)
    assert db.admin.backup(f"{tmp_path}/store.db.bak").conversations == 3


@pytest.mark.parametrize("path", [None, 5, "", b"x", "a\0b", ["x"]])
def test_backup_and_restore_need_a_path(db: SessionDB, path: object) -> None:
    for call in (db.admin.backup, db.admin.restore, db.admin.backup_if_due):
        with pytest.raises(errors.InvalidArgument):
            call(path)


def test_folder_others_may_write_to_is_refused(db: SessionDB, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    with pytest.raises(errors.StoreUnusable):
        db.admin.backup(tmp_path / "shared" / "copy.db")
    assert os.listdir(tmp_path / "shared") == []


def test_damaged_store_gets_no_backup_and_the_earlier_one_stays(tmp_path: Path, copy: Path) -> None:
    with SessionDB(tmp_path / "store.db") as db:
        fill(db)
        db.admin.backup(copy)
        before = copy.read_bytes()
        db.driver._writer.execute(
            "DROP TRIGGER message_is_only_redacted; UPDATE messages SET body = '{}' WHERE seq = 1"
        )
        with pytest.raises(errors.CopyDamaged) as refusal:
            db.admin.backup(copy)
    assert "P1" in refusal.value.problems[-1] or "P1" in str(refusal.value.problems)
    assert copy.read_bytes() == before
    assert sorted(os.listdir(copy.parent)) == ["copy.db", "copy.db.blobs"]


def test_lost_attachment_is_named_and_hinders_no_backup(tmp_path: Path, copy: Path) -> None:
    with SessionDB(tmp_path / "store.db") as db:
        blob = fill(db)
        os.unlink(db.blobs.files.path(blob.digest))
        assert db.admin.backup(copy).lost_blobs == (blob.digest,)


def test_progress_is_told(db: SessionDB, copy: Path) -> None:
    fill(db)
    told: list[tuple[int, int]] = []
    db.admin.backup(copy, progress=lambda done, total: told.append((done, total)))
    db.admin.restore(copy, progress=lambda done, total: told.append((done, total)))
    assert all(0 < done <= total for done, total in told)
    assert len(told) >= 2


# --- going back to one ---------------------------------------------------------------------------------------


def test_restore_brings_everything_back(db: SessionDB, copy: Path) -> None:
    blob = fill(db)
    before = content(db)
    db.admin.backup(copy)
    conversations.say(db, "talk", "after the backup")
    conversations.begin(db, "later", "z")
    db.delete_conversation("ended")
    db.redact("talk", 1)
    report = db.admin.restore(copy)
    assert content(db) == before
    assert (report.conversations, report.generation, report.brought_back) == (3, 2, ("ended",))
    assert db.get_session("later") is None
    with db.blobs.open(blob.digest) as file:
        assert file.read() == b"picture"
    assert conversations.say(db, "talk", "and on")[0].seq == 8


def test_restored_store_is_no_backup_itself(open_db: Open, copy: Path) -> None:
    """With the mark of one, the next backup to its path would replace it."""
    db, other = open_db(), open_db("other.db")
    fill(db)
    db.admin.backup(copy)
    assert db.admin.backup_made_at(copy) == conversations.Clock()()
    other.admin.restore(copy)
    assert other.admin.get_meta(store_meta.BACKUP) is None
    with pytest.raises(errors.InvalidArgument):
        other.admin.set_meta(store_meta.BACKUP, "1.0")


def test_attachment_that_is_gone_comes_back(db: SessionDB, copy: Path) -> None:
    blob = fill(db)
    db.admin.backup(copy)
    for name in ("branch", "talk"):
        db.delete_conversation(name)
    db.admin.scrub()
    assert db.admin.restore(copy).lost_blobs == ()
    with db.blobs.open(blob.digest) as file:
        assert file.read() == b"picture"


def test_restore_into_a_new_store(open_db: Open, copy: Path) -> None:
    db = open_db()
    fill(db)
    db.admin.backup(copy)
    for name in ("other.db", ":memory:"):
        other = open_db(name)
        other.admin.restore(copy)
        assert content(other) == content(db)


def test_stale_leases_and_snapshots_are_refused(db: SessionDB, copy: Path) -> None:
    fill(db)
    held = [db.acquire_lease("talk", purpose, "me") for purpose in ("turn", "compact")]
    db.admin.backup(copy)
    held += [db.acquire_lease("talk", "turn", "me"), db.acquire_lease("branch", "turn", "me")]
    works = [db.snapshot("talk")]
    db.admin.restore(copy)
    works.append(held[1].snapshot)
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
    for work in works:
        with pytest.raises(errors.Superseded):
            db.commit_compaction(work, summary="stale", cut_seq=4)
    with pytest.raises(errors.RouteMoved):
        db.bind_route("chat", None, version=1)
    assert content(db) == before


def test_counters_never_come_again_whichever_backup_follows_which(db: SessionDB, copy: Path) -> None:
    conversations.begin(db, "talk", "a")
    without = copy.parent / "without.db"
    db.admin.backup(copy)
    seen: set[tuple[int, int]] = set()

    def work() -> None:
        for _ in range(3):
            db.hide("talk", 1)
            lease = db.acquire_lease("talk", "turn", "me")
            assert (lease.snapshot.epoch, lease.token) not in seen
            assert all(lease.snapshot.epoch > epoch and lease.token > token for epoch, token in seen)
            seen.add((lease.snapshot.epoch, lease.token))

    work()
    db.delete_conversation("talk")
    db.admin.backup(without)
    for path in (copy, without, copy, copy):
        db.admin.restore(path)
        if path == copy:
            work()


def test_budget_comes_back_and_nobody_spends_by_a_version_from_before(db: SessionDB, copy: Path) -> None:
    conversations.begin(db, "talk", "a")
    conversations.begin(db, "other", "a")
    for number in range(2):
        db.update_budget("talk", number, {"attempts": number})
    db.admin.backup(copy)
    for number in range(2, 5):
        db.update_budget("talk", number, {"attempts": number})
    db.update_budget("other", 0, {"attempts": 1})
    db.admin.restore(copy)
    version, spent = db.budget("talk")
    assert (spent, db.budget("other")) == ({"attempts": 1}, (0, {}))
    assert not any(db.update_budget("talk", number, {}) for number in range(10))
    db.admin.restore(copy)
    assert not db.update_budget("talk", version, {})
    version, spent = db.budget("talk")
    assert spent == {"attempts": 1}
    assert db.update_budget("talk", version, {"attempts": 2})
    assert db.budget("talk") == (version + 1, {"attempts": 2})


def test_two_stores_from_one_backup_count_apart(open_db: Open, copy: Path) -> None:
    db = open_db()
    conversations.begin(db, "talk", "a")
    db.admin.backup(copy)
    epochs = set()
    for number in range(3):
        other = open_db(f"{number}.db")
        other.admin.restore(copy)
        epochs.add(other.conversation("talk").epoch)
    assert len(epochs) == 3


def test_deleted_ids_that_the_backup_does_not_have_stay_deleted(db: SessionDB, copy: Path) -> None:
    fill(db)
    db.admin.backup(copy)
    conversations.begin(db, "later", "z")
    db.delete_conversation("later")
    db.admin.restore(copy)
    for name in ("later", "gone"):
        with pytest.raises(errors.ConversationDeleted):
            db.create_session(name, source="test")


def test_other_processes_see_the_restored_content_in_the_files_they_have(open_db: Open, copy: Path) -> None:
    db, other = open_db(), open_db()
    fill(db)
    db.admin.backup(copy)
    conversations.say(other, "talk", "later")
    inodes = [os.stat(f"{db.driver.path}{suffix}").st_ino for suffix in ("", "-wal")]
    db.admin.restore(copy)
    assert content(other) == content(db)
    conversations.say(other, "talk", "next")
    assert db.transcript("talk")[-1].content == "next"
    assert [os.stat(f"{db.driver.path}{suffix}").st_ino for suffix in ("", "-wal")] == inodes


def test_snapshot_that_is_being_read_stays_whole(open_db: Open, copy: Path) -> None:
    db, other = open_db(), open_db()
    fill(db)
    db.admin.backup(copy)
    conversations.begin(db, "later", "z")

    def read(tx: object) -> None:
        before = tx.all("fsck_conversations")
        db.admin.restore(copy)
        assert tx.all("fsck_conversations") == before

    other.driver.read(read)
    assert other.get_session("later") is None


def test_search_follows_the_restored_content(open_db: Open, copy: Path) -> None:
    db, other = open_db(), open_db()
    conversations.begin(db, "talk", "an elephant")
    db.admin.backup(copy)
    db.delete_conversation("talk")
    conversations.begin(db, "new", "a giraffe")
    assert db.search("giraffe")
    assert other.search("giraffe")
    db.admin.restore(copy)
    for each in (db, other):
        assert [hit.session_id for hit in each.search("elephant")] == ["talk"]
        assert each.search("giraffe") == []


@pytest.mark.parametrize(
    "how", ["a flipped byte", "half of it", "text", "another program's", "nothing", "a changed row"]
)
def test_damaged_backup_changes_nothing(open_db: Open, copy: Path, how: str) -> None:
    db = open_db()
    fill(db)
    db.admin.backup(copy)
    conversations.say(db, "talk", "after")
    data = copy.read_bytes()
    if how == "a flipped byte":
        at = data.index(b'{"content":"b"}') + 12
        copy.write_bytes(data[:at] + b"?" + data[at + 1 :])
    elif how == "half of it":
        copy.write_bytes(data[: len(data) // 8192 * 4096])
    elif how == "text":
        copy.write_text("not a database " * 100)
    elif how == "nothing":
        copy.unlink()
    elif how == "a changed row":
        apsw.Connection(str(copy)).execute(
            "DROP TRIGGER session_is_not_deleted; DELETE FROM sessions WHERE ordinal = 1"
        )
    else:
        copy.unlink()
        apsw.Connection(str(copy)).execute("CREATE TABLE t (x)")
    for call in (
        (db.admin.restore, db.admin.check_backup)
        if how not in ("a flipped byte", "a changed row")
        else (db.admin.restore,)
    ):
        with conversations.nothing_changes(db), pytest.raises((errors.CopyDamaged, errors.CopyRefused)) as refusal:
            call(copy)
        # It is the backup that is damaged, and the store that must not be suspected.
        assert str(copy) in str(refusal.value)
        assert "doctor" not in str(refusal.value)
        assert "draft" not in str(refusal.value)
    assert not [name for name in os.listdir(Path(db.driver.path).parent) if "draft" in name]


def test_restore_is_refused_from_the_store_itself(open_db: Open) -> None:
    db = open_db()
    fill(db)
    with pytest.raises(errors.CopyRefused):
        db.admin.restore(db.driver.path)


def test_nothing_is_written_between_the_last_look_and_the_replacement(open_db: Open, copy: Path) -> None:
    """A message acknowledged while the content is replaced would be lost without anybody knowing."""
    db, other = open_db(), open_db()
    fill(db)
    db.admin.backup(copy)
    outcomes: list[object] = []

    def write() -> None:
        outcomes.append(other.append_message("talk", role="user", content="during", uid="during"))

    writer = threading.Thread(target=write)
    fault_points.hook = lambda point: writer.start() if point == "restore.finished" else None
    try:
        db.admin.restore(copy)
    finally:
        fault_points.hook = None
        writer.join()
    assert [message.uid for message in db.transcript("talk")][-1] == "during"
    assert len(outcomes) == 1


def test_backup_of_an_older_schema_is_brought_up(open_db: Open, copy: Path) -> None:
    db = open_db()
    fill(db)
    db.admin.backup(copy)
    old = apsw.Connection(str(copy))
    old.execute("DROP TABLE blobs; UPDATE meta SET value = '1' WHERE key = 'schema_revision'")
    old.close()
    db.admin.restore(copy)
    db.blobs.put(b"picture")


def test_backup_of_a_newer_schema_is_refused(open_db: Open, copy: Path) -> None:
    db = open_db()
    fill(db)
    db.admin.backup(copy)
    newer = apsw.Connection(str(copy))
    newer.pragma("user_version", 99)
    newer.close()
    with conversations.nothing_changes(db), pytest.raises(errors.SchemaTooNew):
        db.admin.restore(copy)
