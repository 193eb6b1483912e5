"""A store that was open at a fork is refused in the child, and no acknowledged message is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import SessionDB

REFUSED = "StoreForked"

WORKERS = """
import multiprocessing, sys
from holdfast import SessionDB, errors

def work(path, name, acknowledged):
    try:
        with SessionDB(path) as db:
            for number in range(20):
                db.append_message("talk", role="user", content="x", uid=f"{name}-{number}")
                acknowledged.put(f"{name}-{number}")
    except errors.HoldfastError as error:
        acknowledged.put(type(error).__name__)

if __name__ == "__main__":
    path, method, moment = sys.argv[1:]
    context = multiprocessing.get_context(method)
    acknowledged = context.SimpleQueue()
    workers = [context.Process(target=work, args=(path, name, acknowledged)) for name in "abc"]
    master = SessionDB(path)
    master.create_session("talk", source="test")
    if moment == "closed":
        master.close()
    for worker in workers:
        worker.start()
    master.close()  # the last connection of this process: it removes the log if SQLite finds no other process
    for worker in workers:
        worker.join()
    while not acknowledged.empty():
        print(acknowledged.get())
"""


@pytest.mark.parametrize(
    ("method", "moment", "refused"), [("fork", "open", True), ("fork", "closed", False), ("spawn", "open", False)]
)
def test_worker_processes_lose_no_message(path: Path, method: str, moment: str, refused: bool) -> None:
    reported = _run(WORKERS, path, method, moment)
    assert (
        reported == [REFUSED] * 3
        if refused
        else sorted(reported) == sorted(f"{w}-{n}" for w in "abc" for n in range(20))
    )
    with SessionDB(path) as db:
        assert {message.uid for message in db.transcript("talk")} == set(reported) - {REFUSED}
        assert db.admin.fsck().ok


THREADS = """
import asyncio, os, signal, sys, threading
from holdfast import AsyncSessionDB, SessionDB, errors

path, ended, acknowledged = sys.argv[1], threading.Event(), []
db = SessionDB(path, durability="process-crash")
both = AsyncSessionDB(db)
db.create_session("talk", source="test")

def append():
    while not ended.is_set():
        receipt = db.append_message("talk", role="user", content="x")
        acknowledged.append(receipt.seq)

def read():
    while not ended.is_set():
        db.conversation("talk")
        db.search("nothing")
        SessionDB(path).close()

CALLS = (
    lambda: db.append_message("talk", role="user", content="lost"),
    lambda: db.context("talk"),
    lambda: db.search("x"),
    lambda: db.admin.backup(path + ".copy"),
    lambda: asyncio.run(both.append_message("talk", role="user", content="lost")),
    lambda: SessionDB(path),
    lambda: SessionDB(path + ".other"),
    lambda: SessionDB(":memory:"),
)

def check():
    for number, call in enumerate(CALLS):
        try:
            call()
        except errors.StoreForked:
            continue
        raise SystemExit(10 + number)

threads = [threading.Thread(target=target) for target in (append, append, read, read)]
for thread in threads:
    thread.start()
failed = 0
for _ in range(3):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        check()
        db.close()
        asyncio.run(both.close())
        sys.exit()  # with all that the end of an interpreter frees
    failed = failed or os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
ended.set()
for thread in threads:
    thread.join()
lost = set(acknowledged) - {message.seq for message in db.transcript("talk")}
print(failed, sorted(lost), db.admin.fsck().ok)
db.close()
"""


def test_child_forked_between_busy_threads_is_refused_and_ends(path: Path) -> None:
    assert _run(THREADS, path) == ["0 [] True"]
    assert not path.with_name(f"{path.name}.other").exists()


POSTGRES = """
import gc, os, sys
from holdfast import SessionDB, errors
db = SessionDB(sys.argv[2])
db.create_session("talk", source="test")
db.append_message("talk", role="user", content="a")
pid = db.driver.read(lambda tx: tx.connection.pgconn.backend_pid)
child = os.fork()
if child == 0:
    append = lambda: db.append_message("talk", role="user", content="x")
    for call in (append, lambda: db.context("talk"), db.admin.fsck, db.admin.info):
        try:
            call()
        except errors.StoreForked:
            print("forked", flush=True)
    db.close()
    del db
    gc.collect()
    sys.exit()
os.waitpid(child, 0)
db.append_message("talk", role="user", content="b")
assert pid == db.driver.read(lambda tx: tx.connection.pgconn.backend_pid)
print([m.content for m in db.context("talk")], db.admin.fsck().ok)
"""


def test_postgres_store_is_refused_in_a_child_and_the_parent_keeps_its_connection(path: Path, address: str) -> None:
    assert _run(POSTGRES, path, address) == ["forked"] * 4 + ["['a', 'b'] True"]


def _run(script: str, path: Path, *args: str) -> list[str]:
    # From a file: the children of spawn import it again.
    file = path.with_name("script.py")
    file.write_text(script)
    command = [sys.executable, "-W", "ignore", str(file), str(path), *args]
    # Coverage measurement locks a mutex in every thread, and a child that is forked meanwhile would wait for it.
    env = {key: value for key, value in os.environ.items() if not key.startswith("COV")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()
