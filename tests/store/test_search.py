"""The index file: damaged, missing, locked or foreign, it never stops a write and heals itself."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from holdfast import SessionDB, errors
from holdfast.store.driver import SearchIndex
from holdfast.store.search import indexer, query_parser

SIDE = ("", "-wal", "-shm", ".queue")


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A store with one message, indexed and closed."""
    target = str(tmp_path / "store.db")
    with SessionDB(target) as db:
        chat = db.create_session("c", source="test").id
        db.append_message(chat, role="user", content="the heron stands still")
        assert db.search("heron")
    return target


def _still_works(path: str) -> None:
    with SessionDB(path) as db:
        db.append_message("c", role="user", content="a second heron")
        assert sorted(hit.seq for hit in db.search("heron")) == [1, 2]
        assert db.admin.fsck().ok


def test_a_damaged_message_is_told_as_such_and_costs_no_index(path: str, caplog: pytest.LogCaptureFixture) -> None:
    with SessionDB(path) as db, caplog.at_level(logging.WARNING):
        execute = db.driver._writer.execute  # type: ignore[attr-defined]
        execute("DROP TRIGGER message_is_only_redacted")
        execute("UPDATE messages SET body = '{broken' WHERE seq = 1")
        with pytest.raises(errors.StoreCorrupt, match="holdfast doctor"):
            db.search("heron")
        assert "made again" not in caplog.text


@pytest.mark.parametrize("garbage", [b"", b"not a database" * 300, os.urandom(8192)])
def test_a_damaged_index_is_made_again(path: str, garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    Path(path + ".search").write_bytes(garbage)
    with caplog.at_level(logging.WARNING):
        _still_works(path)


@pytest.mark.parametrize("offset", range(0, 40_000, 1_999))
def test_a_page_of_the_index_overwritten_is_no_hindrance(path: str, offset: int) -> None:
    side = Path(path + ".search")
    content = bytearray(side.read_bytes())
    place = offset % len(content)
    content[place : place + 200] = b"\xa5" * len(content[place : place + 200])
    side.write_bytes(content)
    with SessionDB(path) as db:
        db.append_message("c", role="user", content="a second heron")
        db.admin.rebuild_search_index()
        assert sorted(hit.seq for hit in db.search("heron")) == [1, 2]


def test_a_missing_index_is_made_again(path: str) -> None:
    for suffix in SIDE:
        Path(path + ".search" + suffix).unlink(missing_ok=True)
    _still_works(path)


def test_an_index_removed_while_open_is_made_again(path: str) -> None:
    with SessionDB(path) as db:
        assert db.search("heron")
        for suffix in SIDE:
            Path(path + ".search" + suffix).unlink(missing_ok=True)
        db.append_message("c", role="user", content="a second heron")
        assert sorted(hit.seq for hit in db.search("heron")) == [1, 2]


def test_an_index_of_another_store_is_not_believed(path: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other.db")
    with SessionDB(other) as db:
        db.create_session("z", source="test")
        db.append_message("z", role="user", content="the bittern booms")
        assert db.search("bittern")
    os.replace(other + ".search", path + ".search")
    _still_works(path)
    with SessionDB(path) as db:
        assert db.search("bittern") == []


def test_an_index_whose_words_were_cut_otherwise_is_made_again(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with SessionDB(path) as db:
        assert db.admin.update_search_index() == 0
        monkeypatch.setattr(query_parser, "INDEX_VERSION", query_parser.INDEX_VERSION + 1)
        assert db.admin.update_search_index() == 1
        assert db.admin.update_search_index() == 0


DIES = """
import os, sys
from holdfast import SessionDB
from holdfast import fault_points
fault_points.hook = lambda point: point == "delete.committed" and os._exit(9)
SessionDB(sys.argv[1]).delete_conversation("doomed")
"""


def test_words_of_a_deletion_whose_index_was_not_told_are_gone_after_a_scrub(path: str) -> None:
    def told() -> bool:
        files = (Path(path + ".search" + suffix) for suffix in SIDE)
        return any(b"xylograph" in file.read_bytes() for file in files if file.exists())

    with SessionDB(path) as db:
        db.create_session("doomed", source="test")
        db.append_message("doomed", role="user", content="xylographer")
        assert db.search("xylographer")
    died = subprocess.run([sys.executable, "-c", DIES, path], check=False)
    assert (died.returncode, told()) == (9, True)
    with SessionDB(path) as db:
        db.admin.scrub()
        assert db.admin.search_status()["exists"]
    assert not told()
    with SessionDB(path) as db:
        assert [hit.seq for hit in db.search("heron")] == [1]


LOCKER = """
import apsw, sys
connection = apsw.Connection(sys.argv[1])
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_locked_index_stops_neither_a_write_nor_a_search(path: str) -> None:
    command = [sys.executable, "-c", LOCKER, path + ".search"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as locker:
        assert locker.stdout is not None
        assert locker.stdout.readline() == "locked\n"
        with SessionDB(path) as db:
            db.append_message("c", role="user", content="a second heron")
            assert [hit.seq for hit in db.search("heron")] == [1]
        locker.communicate("")
    with SessionDB(path) as db:
        assert sorted(hit.seq for hit in db.search("heron")) == [1, 2]


def test_a_store_nobody_searched_has_no_index(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "store.db") as db:
        db.create_session("c", source="test")
        db.append_message("c", role="user", content="text")
        db.redact("c", 1)
        db.delete_conversation("c")
    assert not list(tmp_path.glob("*.search*"))


def test_facts_tell_how_far_the_index_is_and_what_is_wrong_with_it(path: str, tmp_path: Path) -> None:
    with SessionDB(path) as db:
        assert db.admin.search_status() == {"exists": True, "behind": 0, "errors": []}
        db.append_message("c", role="user", content="more")
        assert db.admin.search_status()["behind"] == 1
    Path(path + ".search").write_bytes(b"garbage" * 1000)
    with SessionDB(path) as db:
        assert db.admin.search_status()["errors"]
    with SessionDB(tmp_path / "fresh.db") as db:
        assert db.admin.search_status()["exists"] is False


def test_a_locked_index_is_told_later_of_what_was_removed(path: str) -> None:
    command = [sys.executable, "-c", LOCKER, path + ".search"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as locker:
        assert locker.stdout is not None
        assert locker.stdout.readline() == "locked\n"
        with SessionDB(path, write_timeout=0.05) as db:
            db.redact("c", 1)
            assert db.admin.search_status()["exists"]
        locker.communicate("")
    with SessionDB(path) as db:
        db.append_message("c", role="user", content="a second bird")
        assert [hit.seq for hit in db.search("bird", own=True)] == [2]
        tagged = db.searcher._open().read(lambda tx: tx.all("index_redacted", tag=indexer.REDACTED_TAG))
        assert tagged == [(1, 1)]


DESCRIPTORS = """
import os, resource, sys
from pathlib import Path
from holdfast import SessionDB, errors
with SessionDB(sys.argv[1]) as db:
    if sys.argv[2] == "closed":
        db.search("heron")
        db.searcher._release()
    made = Path(sys.argv[1] + ".search").exists() and os.stat(sys.argv[1] + ".search").st_ino
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    for spare in range(8):
        taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(40)]
        for _ in range(spare):
            os.close(taken.pop())
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1 + spare, hard))
        try:
            db.search("heron")
        except errors.StoreError as error:
            assert "too many open files" in str(error), error
            print("refused")
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        for fd in taken:
            os.close(fd)
    assert len(db.search("heron")) == 1
    assert not made or os.stat(sys.argv[1] + ".search").st_ino == made, "the index was made again"
"""


@pytest.mark.parametrize("index", ["none", "closed"])
def test_search_without_descriptors_is_refused_by_name_and_keeps_its_index(path: str, index: str) -> None:
    done = subprocess.run([sys.executable, "-c", DESCRIPTORS, path, index], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "refused" in done.stdout


def test_search_after_close_opens_no_index(path: str) -> None:
    db = SessionDB(path)
    db.close()
    with pytest.raises(errors.StoreClosed):
        db.search("heron")
    assert not [each for each in apsw.connections() if each.filename.startswith(os.path.realpath(path))]


def test_search_continues_when_another_thread_discards_the_index(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with SessionDB(path) as db:
        opened, discarded = db.searcher._open, list[bool]()

        def open_then_discard() -> SearchIndex:
            index = opened()
            if not discarded:
                discarded.append(True)
                db.searcher.discard()
            return index

        monkeypatch.setattr(db.searcher, "_open", open_then_discard)
        assert [hit.seq for hit in db.search("heron")] == [1]
