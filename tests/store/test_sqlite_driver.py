"""The SQLite driver: what it opens, what it refuses untouched, and that an acknowledged write is where it should be."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from holdfast import SessionDB, errors, fault_points
from holdfast.store.driver import SCHEMA_PLAN
from holdfast.store.sqlite import connection as sqlite_connection
from holdfast.store.sqlite import driver as sqlite_driver
from holdfast.store.sqlite import transaction, wal_sync
from tests.support import conversations


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def db(path: Path) -> Iterator[SessionDB]:
    with SessionDB(path, durability="process-crash", write_timeout=5) as opened:
        conversations.begin(opened, "talk", "a")
        yield opened


def raw(path: Path, sql: str) -> list[tuple[object, ...]]:
    """Another program at work on the file, while no SessionDB has it open."""
    connection = apsw.Connection(str(path))
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def as_found(path: Path) -> list[str]:
    """The texts a fresh process finds in the file that is at the path now."""
    script = (
        "import sys; from holdfast import SessionDB\n"
        "for m in SessionDB(sys.argv[1]).transcript('talk'): print(m.content)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    return done.stdout.split()


# --- what is opened --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["3.7.0", "3.40.1", "3.51.2", "3.9"])
def test_sqlite_that_can_corrupt_a_wal_is_refused(path: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: version)
    with pytest.raises(errors.StoreUnusable, match=r"3\.51\.3"):
        SessionDB(path)
    assert not path.exists()


@pytest.mark.parametrize("version", ["3.51.3", "3.52.0", "3.100.0", "4.0.0"])
def test_sqlite_that_cannot_is_accepted(version: str) -> None:
    sqlite_connection.check_version(version)


@pytest.mark.parametrize("journal", ["delete", "wal"])
@pytest.mark.parametrize("application", [0, 42])
def test_database_of_another_program_is_refused_and_left_as_it_is(path: Path, journal: str, application: int) -> None:
    raw(path, f"PRAGMA journal_mode = {journal}")
    raw(path, f"PRAGMA application_id = {application}; CREATE TABLE theirs (x)")
    path.chmod(0o644)
    before = path.read_bytes()
    with pytest.raises(errors.StoreUnusable, match="another program"):
        SessionDB(path)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (before, 0o644)


@pytest.mark.parametrize("content", [b"not a database, but quite long enough to be one" * 40, os.urandom(8192)])
def test_file_that_is_no_database_is_refused_and_left_as_it_is(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(errors.StoreCorrupt):
        SessionDB(path)
    assert path.read_bytes() == content


def test_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    with SessionDB(path) as db:
        conversations.begin(db, "talk", "a")
    assert as_found(path) == ["a"]


def test_newer_schema_is_refused_naming_both_versions(path: Path) -> None:
    SessionDB(path).close()
    known = SCHEMA_PLAN.format
    raw(path, f"PRAGMA user_version = {known + 1}")
    with pytest.raises(errors.SchemaTooNew) as refusal:
        SessionDB(path)
    assert (refusal.value.found, refusal.value.known) == (known + 1, known)
    assert raw(path, "PRAGMA user_version") == [(known + 1,)]


def test_refused_file_leaves_no_descriptor_open(path: Path) -> None:
    raw(path, "CREATE TABLE theirs (x)")

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0

    before = descriptors()
    for _ in range(5):
        with pytest.raises(errors.StoreUnusable):
            SessionDB(path)
    assert descriptors() <= before + 1


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="only Linux tells which files are open")
def test_closed_store_has_no_file_open_and_takes_up_no_room(path: Path) -> None:
    """Though somebody still has the object: the log that was deleted would be on the disk for as long."""
    db = SessionDB(path)
    conversations.begin(db, "talk", "a")
    db.close()
    # Not the one of the listing itself, which is gone by then.
    opened = [f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")]
    assert [each for each in opened if os.path.lexists(each) and str(path) in os.readlink(each)] == []


def test_many_may_open_a_store_that_is_just_being_made(tmp_path: Path) -> None:
    for number in range(12):
        path = tmp_path / f"{number}.db"
        opened = conversations.at_once(*[lambda path=path: SessionDB(path, durability="process-crash")] * 4)
        assert [type(each).__name__ for each in opened] == ["SessionDB"] * 4
        for each in opened:
            each.close()


def test_guards_are_on_in_every_connection(db: SessionDB) -> None:
    db.context("talk")
    connections = [db.driver._writer, *(tx.connection for _, tx in db.driver._idle)]
    assert len(connections) == 2
    for connection in connections:
        assert (connection.pragma("foreign_keys"), connection.pragma("recursive_triggers")) == (1, 1)
        assert connection.pragma("journal_mode") == "wal"


def test_history_is_not_rewritten_by_replacing_rows(db: SessionDB) -> None:
    with pytest.raises(apsw.ConstraintError):
        db.driver._writer.execute(
            "INSERT OR REPLACE INTO messages (id, session, uid, role, at, body, digest)"
            " SELECT id, session, uid, role, at, '{}', digest FROM messages"
        )
    assert conversations.seen(db, "talk") == ["a"]


def test_link_and_file_are_one_store(path: Path, tmp_path: Path, db: SessionDB) -> None:
    link = tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir(mode=0o700)
    link.symlink_to(path)
    with SessionDB(link, durability="process-crash") as linked:
        conversations.say(linked, "talk", "b")
        assert linked.driver.path == str(path)
        assert linked.driver._current_files() != ()
    assert conversations.seen(db, "talk") == ["a", "b"]
    assert [file.name for file in link.parent.iterdir()] == ["link.db"]


READ_ONLY = """
import os, sys
from holdfast import SessionDB, errors
SessionDB(":memory:").close()  # all is loaded before others may not read it any more
if os.geteuid() == 0:  # modes mean nothing to root, so the attempt is made as nobody
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
try:
    db = SessionDB(sys.argv[1])
    print(len(db.list_sessions()))
    db.create_session("c", source="test")
except errors.StoreUnusable as error:
    print("refused" if sys.argv[1] in str(error) else error)
"""


@pytest.mark.parametrize("there_already", [False, True], ids=["new", "existing"])
def test_directory_that_cannot_be_written_is_only_read(there_already: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "closed"
        path = folder / "store.db"
        if there_already:
            SessionDB(path).close()
            os.unlink(f"{path}.queue")
        folder.mkdir(exist_ok=True)
        for each in (Path(name), folder, *folder.iterdir()):
            os.chown(each, *((65534, 65534) if os.geteuid() == 0 else (-1, -1)))
        folder.chmod(0o500)
        done = subprocess.run([sys.executable, "-c", READ_ONLY, str(path)], capture_output=True, text=True, check=False)
        folder.chmod(0o700)
        assert done.stdout == "0\n" * there_already + "refused\n", done.stderr
        assert path.exists() == there_already


# --- files that go away ----------------------------------------------------------------------------------


def test_write_into_an_unlinked_wal_is_done_again(db: SessionDB, path: Path) -> None:
    os.unlink(f"{path}-wal")
    receipt = db.append_message("talk", role="user", content="b")
    assert receipt.seq == 2
    assert as_found(path) == ["a", "b"]
    assert conversations.say(db, "talk", "c")[0].seq == 3
    assert as_found(path) == ["a", "b", "c"]


@pytest.mark.parametrize("proc", [True, False])
@pytest.mark.parametrize("how", ["unlinked", "renamed", "replaced"])
def test_write_into_a_wal_that_is_not_at_its_path_is_done_again(
    path: Path, how: str, proc: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not proc:
        monkeypatch.setattr(wal_sync.Wal, "_read_link", lambda _: None)
    with SessionDB(path) as db:
        conversations.begin(db, "talk", "a")
        if how == "unlinked":
            os.unlink(f"{path}-wal")
        else:
            os.rename(f"{path}-wal", f"{path}-old")
        if how == "replaced":
            Path(f"{path}-wal").touch()
        assert conversations.say(db, "talk", "b")[0].seq == 2
        assert as_found(path) == ["a", "b"]


def test_append_and_read_do_not_stat_the_wal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a stat, the next write would change the time stamp, and its sync would write the inode too."""
    with SessionDB(path) as db:
        conversations.begin(db, "talk", "a")
        seen: list[str] = []
        with monkeypatch.context() as patched:
            stat = os.stat
            patched.setattr(os, "stat", lambda name, **how: (seen.append(str(name)), stat(name, **how))[1])
            conversations.say(db, "talk", "b")
            db.context("talk")
    assert set(seen) == {str(path), f"{path}-shm"}


def test_write_into_an_unlinked_file_is_not_acknowledged(db: SessionDB, path: Path) -> None:
    os.unlink(path)
    for _ in range(2):
        with pytest.raises(errors.StoreMoved):
            conversations.say(db, "talk", "b")
        with pytest.raises(errors.StoreMoved):
            db.context("talk")
    assert not path.exists()


def test_file_that_comes_back_is_used_again_and_nothing_is_doubled(db: SessionDB, path: Path) -> None:
    away = path.with_name("away.db")
    os.rename(path, away)
    with pytest.raises(errors.StoreMoved):
        db.append_message("talk", role="user", content="b", uid="b")
    os.rename(away, path)
    db.append_message("talk", role="user", content="b", uid="b")
    assert as_found(path) == ["a", "b"]


def replace(path: Path, *, with_its_log: bool) -> None:
    """Another store comes to stand where this one is."""
    other = path.with_name("other.db")
    with SessionDB(other) as another:
        conversations.begin(another, "talk", *(f"other {number} {'x' * 300}" for number in range(200)))
    os.replace(other, path)
    if with_its_log:
        os.unlink(f"{path}-wal")


def test_write_after_the_store_was_replaced_is_in_the_new_one(db: SessionDB, path: Path) -> None:
    replace(path, with_its_log=True)
    assert db.append_message("talk", role="user", content="b").seq == 201
    assert as_found(path)[-1] == "b"
    assert db.admin.fsck().ok


def test_reader_notices_that_the_store_was_replaced(db: SessionDB, path: Path) -> None:
    replace(path, with_its_log=True)
    assert len(db.context("talk")) == 200


def test_reader_that_is_returned_while_the_store_is_replaced_is_not_used_again(db: SessionDB, path: Path) -> None:
    driver = db.driver
    assert isinstance(driver, sqlite_driver.SqliteDriver)
    reader = driver._take_reader()
    replace(path, with_its_log=True)
    assert len(db.context("talk")) == 200
    driver._idle.append(reader)  # by a thread that compared the generations just before
    assert len(db.context("talk")) == 200


def test_nothing_is_acknowledged_in_a_file_that_got_the_log_of_another(db: SessionDB, path: Path) -> None:
    replace(path, with_its_log=False)
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(errors.StoreMoved, match="-wal"):
            conversations.say(db, "talk", "b")
        with pytest.raises(errors.StoreMoved):
            db.context("talk")
    assert path.read_bytes() == before
    os.unlink(f"{path}-wal")
    assert conversations.say(db, "talk", "b")[0].seq == 201
    assert db.admin.fsck().ok


def test_file_replaced_by_garbage_is_said_to_be_damaged(db: SessionDB, path: Path) -> None:
    other = path.with_name("other.db")
    other.write_bytes(b"garbage" * 2000)
    os.replace(other, path)
    os.unlink(f"{path}-wal")
    for _ in range(2):
        with pytest.raises(errors.StoreCorrupt):
            conversations.say(db, "talk", "b")
    assert path.read_bytes() == b"garbage" * 2000


# --- transactions and locks ------------------------------------------------------------------------------


def test_foreign_writer_is_waited_for_no_longer_than_asked(path: Path) -> None:
    with SessionDB(path, durability="process-crash", write_timeout=0.1) as db:
        conversations.begin(db, "talk", "a")
        foreign = apsw.Connection(str(path))
        foreign.execute("BEGIN IMMEDIATE")
        with pytest.raises(errors.StoreBusy):
            conversations.say(db, "talk", "b")
        foreign.execute("ROLLBACK")
        foreign.close()
        assert conversations.say(db, "talk", "b")[0].seq == 2


def test_thread_that_waits_for_another_thread_is_bounded_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def hold(point: str) -> None:
        if point == "title.begun":
            inside.set()
            assert go_on.wait(60)

    with SessionDB(path, durability="process-crash", write_timeout=0.1) as db:
        conversations.begin(db, "talk", "a")
        monkeypatch.setattr(fault_points, "hook", hold)
        holder = threading.Thread(target=lambda: db.set_session_title("talk", "t"))
        holder.start()
        assert inside.wait(60)
        with pytest.raises(errors.StoreBusy):
            conversations.say(db, "talk", "b")
        assert conversations.seen(db, "talk") == ["a"]
        go_on.set()
        holder.join()
        assert conversations.say(db, "talk", "b")[0].seq == 2


def test_failure_that_undid_the_whole_transaction_is_not_covered_up(db: SessionDB) -> None:
    def step(tx: transaction.SqliteTransaction) -> None:
        with tx.savepoint():
            tx.connection.execute("ROLLBACK")  # as a full disk may do
            raise errors.StoreFull()

    with pytest.raises(errors.StoreFull):
        db.driver.write("append", step)
    assert conversations.say(db, "talk", "b")[0].seq == 2


def test_step_that_fails_anyhow_leaves_nothing_and_the_next_goes_on(
    db: SessionDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(point: str) -> None:
        if point == "append.message_insert":
            raise ZeroDivisionError

    monkeypatch.setattr(fault_points, "hook", fail)
    with pytest.raises(ZeroDivisionError):
        conversations.say(db, "talk", "b")
    monkeypatch.setattr(fault_points, "hook", None)
    assert conversations.say(db, "talk", "c")[0].seq == 2


def test_many_threads_read_and_write_one_store(db: SessionDB) -> None:
    def work(name: int) -> None:
        for number in range(20):
            conversations.say(db, "talk", f"{name}.{number}")
            seen = db.context("talk")
            assert [message.seq for message in seen] == list(range(1, seen.last_seq + 1))

    conversations.at_once(*(lambda name=name: work(name) for name in range(10)))
    assert db.conversation("talk").last_seq == 201
    assert len(db.driver._idle) <= sqlite_driver.MAX_IDLE_READERS
    assert db.admin.fsck().ok


# --- forks -----------------------------------------------------------------------------------------------

FORKED = """
import os, sys
from holdfast import SessionDB, errors
db = SessionDB(sys.argv[1])
db.create_session("talk", source="test")
db.append_message("talk", role="user", content="a")
db.context("talk")
child = os.fork()
if child == 0:
    append = lambda: db.append_message("talk", role="user", content="x")
    calls = [append, lambda: db.context("talk"), db.admin.fsck, db.admin.info]
    for call in calls:
        try:
            call()
        except errors.StoreForked:
            print("forked", flush=True)
    sys.exit()
os.waitpid(child, 0)
db.append_message("talk", role="user", content="c")
print([m.content for m in db.context("talk")], db.admin.fsck().ok)
"""


def test_connection_in_a_forked_child_is_an_error_and_the_parent_goes_on(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORKED, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["forked"] * 4 + ["['a', 'c'] True"]
    assert as_found(path) == ["a", "c"]


KILLED = """
import os, signal, sys
from holdfast import SessionDB
from holdfast import fault_points
db = SessionDB(sys.argv[1])

def die(point):
    if point == "append.begun":
        if os.fork() == 0:
            print("alive", flush=True)
            sys.stdin.read()
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

fault_points.hook = die
db.append_message("talk", role="user", content="lost")
"""


def test_child_of_a_killed_writer_holds_nobody_up(db: SessionDB, path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout.readline() == "alive\n"
        assert writer.wait() < 0
        assert conversations.say(db, "talk", "b")[0].seq == 2
    assert conversations.seen(db, "talk") == ["a", "b"]


def test_a_child_forked_after_a_wait_was_given_up_holds_nobody_up(tmp_path: Path) -> None:
    path = str(tmp_path / "store.db")
    with SessionDB(path, write_timeout=0.3) as db:
        db.create_session("c", source="test")
        other = os.open(path + ".queue", os.O_RDWR)
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(errors.StoreBusy):
            db.append_message("c", role="user", content="x")
        done, wake = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(wake)
            os.read(done, 1)
            os._exit(0)
        fcntl.flock(other, fcntl.LOCK_UN)
        os.close(other)
        try:
            with SessionDB(path, write_timeout=60) as patient:
                assert patient.append_message("c", role="user", content="y").seq == 1
        finally:
            os.close(wake)
            os.close(done)
            os.waitpid(child, 0)
