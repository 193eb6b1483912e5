"""After a scrub, no six bytes of deleted or redacted content are in any file of the store."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import SessionDB, errors, types
from holdfast.store.driver import Tx
from tests.support import backends, conversations

PIECE = 6


def secret(size: int, seed: int = 1) -> str:
    """Text that nothing else resembles: any piece of it tells, wherever a page cut it."""
    chance = random.Random(seed)
    return "".join(chr(chance.choice((0x16A0, 0x10000, 0x0E00)) + chance.randrange(75)) for _ in range(size))


def pieces(data: bytes) -> Iterator[bytes]:
    return (data[at : at + PIECE] for at in range(len(data) - PIECE + 1))


def holding(folder: Path, text: str) -> set[str]:
    """The files any piece of the text is found in."""
    wanted, paths = {*pieces(text.encode())}, (path for path in folder.rglob("*") if path.is_file())
    return {path.name for path in paths if not wanted.isdisjoint(pieces(path.read_bytes()))}


@pytest.fixture
def db(tmp_path: Path) -> Iterator[SessionDB]:
    with SessionDB(tmp_path / "store.db", durability="process-crash") as opened:
        yield opened
        assert opened.admin.fsck().ok


def fill(db: SessionDB, text: str, size: int) -> None:
    """The text in messages among others, in a title's neighbourhood, a summary, a ledger and a search index."""
    for name in ("kept", "talk"):
        db.create_session(name, source="test")
    for number in range(60):
        db.append_message("kept", role="user", content=f"something else {number} " * 30)
        if number % 20 == 7:
            db.append_message("talk", role="user", content=text)
        db.append_message("talk", role="assistant", content=f"an answer of some length {number} " * (number % 9))
    lease = db.acquire_lease("talk", "compact")
    db.commit_compaction(lease, summary=text[:size], cut_seq=20, ledger={"asks": text[-20:]})
    db.search("something else")


@pytest.mark.parametrize("how", ["redact", "delete"])
@pytest.mark.parametrize("size", [10, 1_000, 30_000])
def test_removed_text_is_in_no_file(db: SessionDB, tmp_path: Path, size: int, how: str) -> None:
    text = secret(size)
    fill(db, text, size)
    assert "store.db-wal" in holding(tmp_path, text)
    if how == "delete":
        db.delete_conversation("talk")
    for message in db.transcript("talk") if how == "redact" else []:
        if message.content == text:
            db.redact("talk", message.seq)
    db.admin.scrub()
    assert holding(tmp_path, text) == set()
    assert len(db.transcript("kept")) == 60
    assert db.search("something else")


def test_reader_blocks_a_scrub_and_no_writer(path: Path, tmp_path: Path) -> None:
    text = secret(1_000)
    with SessionDB(path, write_timeout=0.05) as db, SessionDB(path) as other, SessionDB(path) as reader:
        fill(db, text, 10)
        db.delete_conversation("talk")

        def read(tx: Tx) -> None:
            tx.all("fsck_conversations")
            with pytest.raises(errors.StoreBusy):
                db.admin.scrub()
            other.append_message("kept", role="user", content="still writable")

        reader.driver.read(read)
        assert db.admin.unscrubbed_since() is not None
        other.admin.scrub()
        assert db.admin.unscrubbed_since() is None
        assert holding(tmp_path, text) == set()
        other.append_message("kept", role="user", content="and on")
        assert len(db.transcript("kept")) == 62


# Histories in which rows move in such a way that copies stay behind, which deletion knows nothing of; another
# SQLite may need others.
@pytest.mark.parametrize("seed", [0, 3])
def test_copies_on_split_pages_are_removed(tmp_path: Path, seed: int) -> None:
    """Two processes write many conversations by turns, so that rows move; both go on writing afterwards."""
    chance, text = random.Random(seed), secret((60, 300)[seed % 2], seed)
    with SessionDB(tmp_path / "store.db", durability="process-crash") as db, SessionDB(tmp_path / "store.db") as other:
        for number in range(12):
            db.create_session(f"c{number}", source="test")
        for _ in range(300):
            name = f"c{chance.randrange(12)}"
            content = text if name == "c1" and chance.random() < 0.5 else "word " * chance.randint(1, 300)
            chance.choice((db, other)).append_message(name, role="user", content=content)
        other.transcript("c1")  # its cached pages must not be written back
        db.delete_conversation("c1")
        backends.raw(db, "PRAGMA wal_checkpoint(TRUNCATE)")
        assert holding(tmp_path, text) == {"store.db"}
        db.admin.scrub()
        assert holding(tmp_path, text) == set()
        for _ in range(60):
            chance.choice((db, other)).append_message(f"c{chance.randrange(2, 12)}", role="user", content="x " * 200)
        assert holding(tmp_path, text) == set()
        assert other.admin.fsck().ok


def test_unfinished_backup_of_a_dead_process_is_removed(db: SessionDB, tmp_path: Path) -> None:
    text = secret(500)
    db.create_session("talk", source="test")
    db.append_message("talk", role="user", content=text)
    code = (
        "import os, sys; from holdfast import SessionDB, fault_points\n"
        "fault_points.hook = lambda point: point == 'backup.copied' and os._exit(9)\n"
        "SessionDB(sys.argv[1]).admin.backup(sys.argv[1] + '-copy')"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "store.db")], check=False).returncode == 9
    assert any(name.endswith(".draft") for name in holding(tmp_path, text))
    db.delete_conversation("talk")
    db.admin.scrub()
    assert holding(tmp_path, text) == set()


@pytest.mark.parametrize("operation", ["scrub", "shrink"])
def test_rewrite_without_enough_free_space_is_refused_before_anything_is_written(
    db: SessionDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    fill(db, secret(30_000), 100)
    disk = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk._replace(free=100_000))
    before = (tmp_path / "store.db-wal").read_bytes()
    with pytest.raises(errors.StoreFull, match=r"needs .* MB of free space; 0.1 MB are available"):
        getattr(db.driver, operation)()
    assert (tmp_path / "store.db-wal").read_bytes() == before
    monkeypatch.undo()
    getattr(db.driver, operation)()


def test_shrink_frees_pages_and_changes_nothing_else(db: SessionDB) -> None:
    fill(db, secret(30_000), 100)
    db.delete_conversation("talk")
    before, said = db.admin.info()["pages"], conversations.contents(db.transcript("kept"))
    db.admin.shrink()
    assert db.admin.info()["pages"] < before
    assert conversations.contents(db.transcript("kept")) == said
    assert db.admin.info()["free_pages"] == 0
    assert db.driver.schema_faults() == []


def test_removed_records_are_in_no_file(db: SessionDB, tmp_path: Path) -> None:
    """Calls, processes, inbox entries, budgets, attachments, titles and memories."""
    texts = [secret(200, seed=number) for number in range(14)]
    for name in ("redacted", "gone"):
        command, did, ended, came, spent = texts[:5] if name == "redacted" else texts[5:10]
        db.create_session(name, source="test", title=command[:40])
        call = {"id": name, "name": "start_process", "arguments": {"command": command}}
        db.append_message(name, role="assistant", tool_calls=[call])
        db.permissions.begin_audit(name, name, "start_process", did, True, "me")
        db.processes.record_start(
            types.Process(id=name, conversation_id=name, command=command, folder="/", started_at=1.0, place="{}")
        )
        db.processes.record_end(name, "exited", 0, ended)
        db.mail.settle_inbox_entry(db.mail.add_inbox_entry(name, name, came).id, "completed", 1)
        if name == "gone":
            db.update_budget(name, 0, {"tried": spent})
            picture = db.blobs.put(texts[10].encode())
            db.append_message(name, role="user", content=[{"type": "image", "blob": picture.digest, "alt": texts[11]}])
    known = db.memory.add("o", texts[12])
    db.memory.update("o", known.id, texts[13])
    stored = [text for text in texts if text != texts[4]]
    assert all(holding(tmp_path, text) for text in stored)
    db.redact("redacted", 1)
    db.delete_conversation("gone")
    db.memory.delete("o", known.id)
    db.admin.scrub()
    assert holding(tmp_path, "".join(stored)) == set()
    assert db.conversation("redacted").title is None
