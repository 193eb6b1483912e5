"""After a scrub, no six bytes of what was deleted or redacted are in any file of the store."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import SessionDB, errors

PIECE = 6


def secret(size: int, seed: int = 1) -> str:
    """Text that nothing else resembles: any piece of it tells, wherever a page cut it."""
    chance = random.Random(seed)
    return "".join(chr(chance.choice((0x16A0, 0x10000, 0x0E00)) + chance.randrange(75)) for _ in range(size))


def pieces(text: str) -> set[bytes]:
    data = text.encode()
    return {data[at : at + PIECE] for at in range(len(data) - PIECE + 1)}


def files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def holding(folder: Path, text: str) -> set[str]:
    """The files any piece of the text is found in."""
    wanted, found = pieces(text), set()
    for path in files(folder):
        data = path.read_bytes()
        if any(data[at : at + PIECE] in wanted for at in range(len(data) - PIECE + 1)):
            found.add(path.name)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def db(folder: Path) -> Iterator[SessionDB]:
    with SessionDB(folder / "store.db", durability="process-crash") as opened:
        yield opened
        assert opened.fsck().ok


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


SIZES = [10, 1_000, 30_000]


@pytest.mark.parametrize("size", SIZES)
def test_redacted_text_is_in_no_file(db: SessionDB, folder: Path, size: int) -> None:
    text = secret(size)
    fill(db, text, size)
    assert holding(folder, text)
    for message in db.transcript("talk"):
        if message.content == text:
            db.redact("talk", message.seq)
    db.scrub()
    assert holding(folder, text) == set()
    assert len(db.transcript("kept")) == 60


@pytest.mark.parametrize("size", SIZES)
def test_deleted_conversation_is_in_no_file(db: SessionDB, folder: Path, size: int) -> None:
    text = secret(size)
    fill(db, text, size)
    db.delete_conversation("talk")
    db.scrub()
    assert holding(folder, text) == set()


def test_deleted_title_and_attachment_are_in_no_file(db: SessionDB, folder: Path) -> None:
    title, picture = secret(40), secret(5_000, seed=2)
    db.create_session("talk", source="test", title=title)
    blob = db.put_blob(picture.encode())
    db.append_message("talk", role="user", content=[{"type": "image", "blob": blob.digest, "alt": title}])
    assert blob.digest[2:] in holding(folder, picture)
    db.delete_conversation("talk")
    db.scrub()
    assert holding(folder, title) | holding(folder, picture) == set()


def test_words_of_a_redaction_whose_index_was_not_told_are_gone_too(db: SessionDB, folder: Path) -> None:
    db.create_session("talk", source="test")
    db.append_message("talk", role="user", content="the codeword is zanzibarquux today")
    assert db.search("zanzibarquux")
    db.searcher.forget = lambda *_: None  # the process died between the two files
    db.redact("talk", 1)
    db.scrub()
    assert [path.name for path in files(folder) if b"zanzibarquux" in path.read_bytes()] == []
    assert db.search("zanzibarquux") == []


def test_other_processes_go_on_after_a_scrub(db: SessionDB, folder: Path) -> None:
    with SessionDB(folder / "store.db") as other:
        fill(other, secret(100), 100)
        other.delete_conversation("talk")
        db.scrub()
        other.append_message("kept", role="user", content="and on")
        assert len(db.transcript("kept")) == len(other.transcript("kept")) == 61
        other.scrub()


def test_reader_in_the_way_is_an_error_that_says_so(folder: Path) -> None:
    text = secret(1_000)
    with SessionDB(folder / "store.db", write_timeout=0.05) as db, SessionDB(folder / "store.db") as other:
        fill(db, text, 10)
        db.delete_conversation("talk")

        def read(tx: object) -> None:
            tx.all("fsck_conversations")
            with pytest.raises(errors.StoreBusy):
                db.scrub()

        other.driver.read(read)
        db.append_message("kept", role="user", content="still writable")
        db.scrub()
        assert holding(folder, text) == set()


def test_deletion_alone_overwrites_what_it_deletes(db: SessionDB, folder: Path) -> None:
    text = secret(2_000)
    db.create_session("talk", source="test")
    db.append_message("talk", role="user", content=text)
    db.driver._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert holding(folder, text) == {"store.db"}
    db.delete_conversation("talk")
    db.driver._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert holding(folder, text) == set()


def test_scrub_leaves_the_schema_known_as_it_is(db: SessionDB, folder: Path) -> None:
    db.scrub()
    cookie = db.driver._writer.pragma("schema_version")
    assert db.meta("schema_cookie") == str(cookie)
    assert sorted(os.listdir(folder)) == ["store.db", "store.db-shm", "store.db-wal", "store.db.queue"]
