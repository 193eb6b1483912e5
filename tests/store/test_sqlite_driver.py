"""The SQLite driver: the files it opens or refuses, files that move while it has them open, and bounded waits."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from holdfast import SessionDB, errors, fault_points
from holdfast.store.sqlite import transaction, wal_sync
from tests.support import backends, conversations


@pytest.fixture
def db(path: Path) -> Iterator[SessionDB]:
    with SessionDB(path, durability="process-crash", write_timeout=5) as opened:
        conversations.begin(opened, "talk", "a")
        yield opened


def as_found(path: Path) -> list[str]:
    """The texts a fresh process finds in the file that is at the path now."""
    script = (
        "import sys; from holdfast import SessionDB\n"
        "for m in SessionDB(sys.argv[1]).transcript('talk'): print(m.content)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    return done.stdout.split()


# --- opened files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "accepted"), [("3.9", False), ("3.51.2", False), ("3.51.3", True), ("3.100.0", True)]
)
def test_faulty_sqlite_is_refused(path: Path, version: str, accepted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: version)
    if accepted:
        SessionDB(path).close()
    else:
        with pytest.raises(errors.StoreUnusable, match=r"3\.51\.3"):
            SessionDB(path)
    assert path.exists() == accepted


def test_file_that_is_no_database_is_refused_and_left_as_it_is(path: Path) -> None:
    content = b"not a database, but quite long enough to be one" * 40
    path.write_bytes(content)
    with pytest.raises(errors.StoreCorrupt):
        SessionDB(path)
    assert path.read_bytes() == content


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_closed_store_has_no_file_open(path: Path) -> None:
    db = SessionDB(path)
    conversations.begin(db, "talk", "a")
    db.close()
    descriptors = [each for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    assert [each for each in descriptors if str(path) in os.readlink(each)] == []


def test_history_is_not_rewritten_by_replacing_rows(db: SessionDB) -> None:
    with pytest.raises(apsw.ConstraintError):
        backends.raw(
            db,
            "INSERT OR REPLACE INTO messages (id, session, uid, role, at, body, digest)"
            " SELECT id, session, uid, role, at, '{}', digest FROM messages",
        )
    assert conversations.seen(db, "talk") == ["a"]


def test_link_and_file_are_one_store(path: Path, tmp_path: Path, db: SessionDB) -> None:
    link = tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir(mode=0o700)
    link.symlink_to(path)
    with SessionDB(link, durability="process-crash") as linked:
        conversations.say(linked, "talk", "b")
        assert linked.driver.path == str(path)
    assert conversations.seen(db, "talk") == ["a", "b"]
    assert [file.name for file in link.parent.iterdir()] == ["link.db"]


# --- files that go away ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "proc"), [("unlinked", True), ("renamed", True), ("replaced", True), ("replaced", False)]
)
def test_write_into_a_moved_wal_is_repeated(path: Path, how: str, proc: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without /proc, the file is recognised by its inode."""
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
        assert conversations.say(db, "talk", "b", "c")[1].seq == 3
        assert as_found(path) == ["a", "b", "c"]


def test_write_to_a_moved_file_is_not_acknowledged_until_it_is_back(db: SessionDB, path: Path) -> None:
    away = path.with_name("away.db")
    os.rename(path, away)
    for _ in range(2):
        with pytest.raises(errors.StoreMoved):
            db.append_message("talk", role="user", content="b", uid="b")
        with pytest.raises(errors.StoreMoved):
            db.context("talk")
    assert not path.exists()
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


@pytest.mark.parametrize("first", ["read", "write"])
def test_replaced_store_is_noticed_and_used(db: SessionDB, path: Path, first: str) -> None:
    db.context("talk")
    replace(path, with_its_log=True)
    if first == "read":
        assert len(db.context("talk")) == 200
    assert db.append_message("talk", role="user", content="b").seq == 201
    assert as_found(path)[-1] == "b"
    assert db.admin.fsck().ok


def test_write_is_refused_while_a_replaced_store_has_the_log_of_the_other(db: SessionDB, path: Path) -> None:
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


# --- transactions and locks ------------------------------------------------------------------------------


def test_wait_for_another_thread_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_failed_step_leaves_nothing_and_the_next_one_succeeds(db: SessionDB) -> None:
    def lose_transaction(tx: transaction.SqliteTransaction) -> None:
        with tx.savepoint():
            tx.connection.execute("ROLLBACK")  # as a full disk may do
            raise errors.StoreFull()

    def fail(tx: transaction.SqliteTransaction) -> None:
        tx.run("meta_set", key="noted", value="x")
        raise ZeroDivisionError

    for step, kind in ((lose_transaction, errors.StoreFull), (fail, ZeroDivisionError)):
        with pytest.raises(kind):
            db.driver.write("append", step)
    assert db.admin.get_meta("noted") is None
    assert conversations.say(db, "talk", "b")[0].seq == 2
