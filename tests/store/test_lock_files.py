"""SQLite's POSIX locks stay held, and a replaced -shm file is noticed.

Closing any descriptor of a file cancels every POSIX lock that the process holds on it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import SessionDB, errors
from holdfast.salvage import salvage
from tests.support import cli_in_process, conversations, file_tools

needs_proc = pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="needs /proc/locks")
Call = Callable[[SessionDB, Path], object]


def _copied(db: SessionDB, path: Path) -> None:
    with SessionDB(path.with_name("target.db")) as target:
        db.admin.copy_to(target.admin)


def _read_by_tools(_: SessionDB, path: Path) -> None:
    do = file_tools.FileTools(path.parent, off_limits=[path])
    do("read_file", path=path.name)
    do("search_files", text="SQLite")


CALLS: dict[str, Call] = {
    "backup": lambda db, path: db.admin.backup(path.with_name("copy.db")),
    "backup over the store": lambda db, path: db.admin.backup(path, overwrite=True),
    "check_backup": lambda db, path: db.admin.check_backup(path.with_name("copy.db")),
    "restore": lambda db, path: db.admin.restore(path.with_name("copy.db")),
    "export": lambda db, path: db.admin.export_to(path.with_name("export.jsonl")),
    "import": lambda db, path: db.admin.import_from(path.with_name("export.jsonl")),
    "import of the store": lambda db, path: db.admin.import_from(path),
    "blob of the store": lambda db, path: db.blobs.put(path, "text/plain"),
    "blob of its -shm": lambda db, path: db.blobs.put(f"{path}-shm", "text/plain"),
    "rebuild_search": lambda db, _: db.admin.rebuild_search_index(),
    "copy": _copied,
    "salvage": lambda _, path: salvage.salvage(path, path.with_name("new.db")),
    "tools": _read_by_tools,
    "another handle": lambda _, path: SessionDB(path).close(),
    "doctor": lambda _, path: cli_in_process.run(path.parent, "doctor", "--fix", "--db", str(path)),
}


@needs_proc
def test_no_call_cancels_the_locks_of_an_open_store(path: Path) -> None:
    """Each call while a handle and a search index are open, and a thread reads."""
    path.with_name("home").mkdir()
    with SessionDB(path) as db, SessionDB(path) as reader:
        db.create_session("talk", source="test")
        db.append_message("talk", role="user", content="the heron stands")
        db.search("heron")
        with _reading(reader):
            held = _locks(path)
            assert {inode for inode, *_ in held} == {os.stat(path).st_ino, os.stat(f"{path}-shm").st_ino}
            for name, call in CALLS.items():
                # Calls that would open files of the store are refused.
                with contextlib.suppress(errors.CopyRefused, errors.StoreUnusable, errors.StoreBusy):
                    call(db, path)
                assert held <= _locks(path), name
        assert db.admin.fsck().ok


def _locks(path: Path) -> set[tuple[int, str, str, str]]:
    """Inode, kind and range of every POSIX lock this process has on the store."""
    inodes = {os.stat(f"{path}{suffix}").st_ino for suffix in ("", "-wal", "-shm")}
    found = set()
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()
        if words[1:2] == ["POSIX"] and words[4] == str(os.getpid()):
            inode = int(words[5].rpartition(":")[2])
            if inode in inodes:
                found.add((inode, words[3], words[6], words[7]))
    return found


@contextlib.contextmanager
def _reading(db: SessionDB) -> Iterator[None]:
    """Another thread is in the middle of a read until the block ends."""
    begun, end = threading.Event(), threading.Event()

    def step(tx: object) -> None:
        tx.one("store_counts")  # type: ignore[attr-defined]
        begun.set()
        end.wait()

    thread = threading.Thread(target=db.driver.read, args=(step,))
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        end.set()
        thread.join()


OTHER = """
import sys
from holdfast import SessionDB
db = SessionDB(sys.argv[1])
for number in range(20):
    db.append_message("talk", role="user", content="theirs", uid=f"theirs-{number}")
print("done", flush=True)
sys.stdin.readline()
if sys.argv[2] == "close":
    db.close()
"""


@pytest.mark.parametrize(
    ("ours", "theirs"), [("appends", "goes on"), ("reads", "close"), ("closes", "goes on"), ("opens again", "leave")]
)
def test_removed_shm_file_loses_nothing_that_another_process_wrote(path: Path, ours: str, theirs: str) -> None:
    db, second = SessionDB(path), SessionDB(path)
    conversations.begin(db, "talk", "ours")
    second.context("talk")
    os.unlink(f"{path}-shm")
    with subprocess.Popen(
        [sys.executable, "-c", OTHER, str(path), theirs], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "done\n"
        if theirs != "goes on":
            other.communicate("\n")
        expected = 21
        if ours == "appends":
            expected = conversations.say(db, "talk", "ours")[0].seq
        elif ours == "reads":
            assert len(db.transcript("talk")) == len(second.transcript("talk")) == 21
        elif ours == "opens again":
            with SessionDB(path) as again:
                expected = conversations.say(again, "talk", "ours")[0].seq
        db.close()
        second.close()
        if theirs == "goes on":
            other.communicate("\n")
    with SessionDB(path) as found:
        assert len(found.transcript("talk")) == expected == 21 + (ours in ("appends", "opens again"))
        assert found.admin.fsck().ok


WRITING = """
import sys
from holdfast import SessionDB
from holdfast import fault_points
db = SessionDB(sys.argv[1])
def reach(point):
    fault_points.hook = None
    print("begun", flush=True)
    sys.stdin.readline()
fault_points.hook = reach
db.append_message("talk", role="user", content="theirs")
"""


def test_new_shm_file_is_not_made_while_another_process_writes_with_the_one_before(path: Path) -> None:
    """It is made from the log: SQLite would not know what that process adds to the log, or begins anew in it."""
    with SessionDB(path) as db:
        db.create_session("talk", source="test")
    with subprocess.Popen(
        [sys.executable, "-c", WRITING, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout.readline() == "begun\n"
        os.unlink(f"{path}-shm")
        with pytest.raises(errors.StoreBusy):
            SessionDB(path, write_timeout=0.2)
        assert not os.path.exists(f"{path}-shm")
        writer.communicate("\n")
    with SessionDB(path) as db:
        assert [message.content for message in db.transcript("talk")] == ["theirs"]


def test_reopened_store_waits_for_readers_of_the_replaced_shm_file(path: Path) -> None:
    """SQLite maps one -shm file per process and database: a new connection would share the old one."""
    with SessionDB(path, write_timeout=0.2) as db, SessionDB(path) as reader:
        db.create_session("talk", source="test")
        with _reading(reader):
            os.unlink(f"{path}-shm")
            with pytest.raises(errors.StoreMoved, match="-shm"):
                db.append_message("talk", role="user", content="a")
        assert db.append_message("talk", role="user", content="a").seq == 1
        assert len(reader.transcript("talk")) == 1
