"""After a scrub, no six bytes of what was deleted or redacted are in any file of the store."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import SessionDB, errors, types
from holdfast.store.driver import Tx
from tests.support import cli_process

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


SIZES = [10, 1_000, 30_000]
# Histories in which rows move in such a way that copies stay behind, which deletion knows nothing of; another
# SQLite may need others.
SEEDS = (0, 3)


@pytest.mark.parametrize("size", SIZES)
def test_redacted_text_is_in_no_file(db: SessionDB, folder: Path, size: int) -> None:
    text = secret(size)
    fill(db, text, size)
    assert holding(folder, text)
    for message in db.transcript("talk"):
        if message.content == text:
            db.redact("talk", message.seq)
    db.admin.scrub()
    assert holding(folder, text) == set()
    assert len(db.transcript("kept")) == 60


@pytest.mark.parametrize("size", SIZES)
def test_deleted_conversation_is_in_no_file(db: SessionDB, folder: Path, size: int) -> None:
    text = secret(size)
    fill(db, text, size)
    db.delete_conversation("talk")
    db.admin.scrub()
    assert holding(folder, text) == set()


def test_deleted_title_and_attachment_are_in_no_file(db: SessionDB, folder: Path) -> None:
    title, picture = secret(40), secret(5_000, seed=2)
    db.create_session("talk", source="test", title=title)
    blob = db.blobs.put(picture.encode())
    db.append_message("talk", role="user", content=[{"type": "image", "blob": blob.digest, "alt": title}])
    assert blob.digest[2:] in holding(folder, picture)
    db.delete_conversation("talk")
    db.admin.scrub()
    assert holding(folder, title) | holding(folder, picture) == set()


def test_words_of_a_redaction_whose_index_was_not_told_are_gone_too(db: SessionDB, folder: Path) -> None:
    db.create_session("talk", source="test")
    db.append_message("talk", role="user", content="the codeword is zanzibarquux today")
    assert db.search("zanzibarquux")
    db.searcher.remove = lambda *_: None  # the process died between the two files
    db.redact("talk", 1)
    db.admin.scrub()
    assert [path.name for path in files(folder) if b"zanzibarquux" in path.read_bytes()] == []
    assert db.search("zanzibarquux") == []


def test_other_processes_go_on_after_a_scrub(db: SessionDB, folder: Path) -> None:
    with SessionDB(folder / "store.db") as other:
        fill(other, secret(100), 100)
        other.delete_conversation("talk")
        db.admin.scrub()
        other.append_message("kept", role="user", content="and on")
        assert len(db.transcript("kept")) == len(other.transcript("kept")) == 61
        other.admin.scrub()


def test_reader_in_the_way_is_an_error_that_says_so(folder: Path) -> None:
    text = secret(1_000)
    with SessionDB(folder / "store.db", write_timeout=0.05) as db, SessionDB(folder / "store.db") as other:
        fill(db, text, 10)
        db.delete_conversation("talk")

        def read(tx: Tx) -> None:
            tx.all("fsck_conversations")
            with pytest.raises(errors.StoreBusy):
                db.admin.scrub()

        other.driver.read(read)
        db.append_message("kept", role="user", content="still writable")
        db.admin.scrub()
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


@pytest.mark.parametrize("seed", SEEDS)
def test_copies_that_sqlite_left_on_split_pages_are_gone(folder: Path, seed: int) -> None:
    """Two processes write many conversations by turns, so that rows move; both go on writing afterwards."""
    chance, text = random.Random(seed), secret((60, 300)[seed % 2], seed)
    with SessionDB(folder / "store.db", durability="process-crash") as db, SessionDB(folder / "store.db") as other:
        for number in range(12):
            db.create_session(f"c{number}", source="test")
        for _ in range(300):
            name = f"c{chance.randrange(12)}"
            content = text if name == "c1" and chance.random() < 0.5 else "word " * chance.randint(1, 300)
            chance.choice((db, other)).append_message(name, role="user", content=content)
        other.transcript("c1")  # what it remembers must not come back by what it writes
        db.delete_conversation("c1")
        db.driver._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        assert holding(folder, text) == {"store.db"}
        db.admin.scrub()
        assert holding(folder, text) == set()
        for _ in range(60):
            chance.choice((db, other)).append_message(f"c{chance.randrange(2, 12)}", role="user", content="x " * 200)
        assert holding(folder, text) == set()
        assert other.admin.fsck().ok


def test_text_that_is_only_in_the_log_is_gone(db: SessionDB, folder: Path) -> None:
    text = secret(500)
    db.create_session("talk", source="test")
    db.append_message("talk", role="user", content=text)
    assert holding(folder, text) == {"store.db-wal"}
    db.redact("talk", 1)
    assert "store.db-wal" in holding(folder, text)
    db.admin.scrub()
    assert holding(folder, text) == set()


def test_copy_that_a_dead_process_left_half_made_is_gone(db: SessionDB, folder: Path) -> None:
    text = secret(500)
    db.create_session("talk", source="test")
    db.append_message("talk", role="user", content=text)
    code = (
        "import os, sys; from holdfast import SessionDB, fault_points\n"
        "fault_points.hook = lambda point: point == 'backup.copied' and os._exit(9)\n"
        "SessionDB(sys.argv[1]).admin.backup(sys.argv[1] + '-copy')"
    )
    assert subprocess.run([sys.executable, "-c", code, str(folder / "store.db")], check=False).returncode == 9
    assert any(name.endswith(".draft") for name in holding(folder, text))
    db.delete_conversation("talk")
    db.admin.scrub()
    assert holding(folder, text) == set()


@pytest.mark.parametrize("how", ["delete", "redact"])
def test_what_the_program_removes_is_in_no_file(folder: Path, how: str) -> None:
    text = secret(700)
    with SessionDB(folder / "store.db") as db:
        fill(db, text, 100)
        seqs = [str(message.seq) for message in db.transcript("talk") if message.content == text]
        arguments = ["talk"] if how == "delete" else ["talk", *seqs]
        done = cli_process.run(folder, "sessions", how, *arguments, "--yes", "--db", folder / "store.db")
        assert (done.code, done.err) == (0, "")
        assert holding(folder, text) == set()
        assert len(db.transcript("kept")) == 60


def test_search_index_is_kept_and_still_finds_the_rest(db: SessionDB, folder: Path) -> None:
    db.create_session("talk", source="test")
    for number in range(30):
        db.append_message("talk", role="user", content=f"the codeword is zanzibarquux{number} and parrots")
    assert db.search("parrots")
    db.redact("talk", 7)
    before = os.stat(folder / "store.db.search").st_ino
    db.admin.scrub()
    assert os.stat(folder / "store.db.search").st_ino == before
    assert {hit.seq for hit in db.search("parrots", limit=50)} == set(range(1, 31)) - {7}
    assert db.admin.search_status() == {"exists": True, "behind": 0, "errors": []}
    assert [path.name for path in files(folder) if b"zanzibarquux6" in path.read_bytes()] == []
    assert db.search("zanzibarquux6") == []


def test_writers_wait_for_a_scrub_and_not_for_a_reader_it_waits_for(folder: Path) -> None:
    """A reader in the way lets nobody but the scrub wait: others write all the time."""
    with SessionDB(folder / "store.db", write_timeout=60) as db, SessionDB(folder / "store.db") as other:
        fill(db, secret(100), 10)
        db.delete_conversation("talk")
        scrubbing = threading.Thread(target=db.admin.scrub)

        def read(tx: Tx) -> None:
            tx.all("fsck_conversations")
            scrubbing.start()
            for number in range(50):
                other.append_message("kept", role="user", content=f"meanwhile {number}")
            assert scrubbing.is_alive()

        with SessionDB(folder / "store.db") as reader:
            reader.driver.read(read)
        scrubbing.join()
        assert db.admin.unscrubbed_since() is None


@pytest.mark.parametrize("operation", ["scrub", "shrink"])
def test_rewrite_without_enough_free_space_is_refused_before_anything_is_written(
    db: SessionDB, folder: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    fill(db, secret(30_000), 100)
    disk = shutil.disk_usage(folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk._replace(free=100_000))
    before = (folder / "store.db-wal").read_bytes()
    with pytest.raises(errors.StoreFull, match=r"needs .* MB of free space; 0.1 MB are available"):
        getattr(db.driver, operation)()
    assert (folder / "store.db-wal").read_bytes() == before
    monkeypatch.undo()
    getattr(db.driver, operation)()


def test_shrink_gives_room_back_and_changes_nothing_else(db: SessionDB, folder: Path) -> None:
    fill(db, secret(30_000), 100)
    db.delete_conversation("talk")
    before, said = db.admin.info()["pages"], [message.content for message in db.transcript("kept")]
    db.admin.shrink()
    assert db.admin.info()["pages"] < before
    assert [message.content for message in db.transcript("kept")] == said
    assert db.admin.info()["free_pages"] == 0
    assert db.admin.get_meta("schema_cookie") == str(db.driver._writer.pragma("schema_version"))


def test_scrub_leaves_the_schema_known_as_it_is(db: SessionDB, folder: Path) -> None:
    db.admin.scrub()
    cookie = db.driver._writer.pragma("schema_version")
    assert db.admin.get_meta("schema_cookie") == str(cookie)
    assert sorted(os.listdir(folder)) == ["store.db", "store.db-shm", "store.db-wal", "store.db.queue"]


def test_what_was_spent_goes_with_its_conversation(db: SessionDB, folder: Path) -> None:
    first, second = secret(5_000, seed=1), secret(5_000, seed=2)
    for name in ("kept", "talk"):
        db.create_session(name, source="test")
        db.append_message(name, role="user", content="something else")
        db.update_budget(name, 0, {"name": name})
    for version, text in enumerate((first, second), 1):
        assert db.update_budget("talk", version, {"tried": text})
    assert holding(folder, second)
    db.delete_conversation("talk")
    db.admin.scrub()
    assert (holding(folder, first), holding(folder, second)) == (set(), set())
    assert db.budget("kept") == (1, {"name": "kept"})


def test_what_was_forgotten_and_what_acts_said_is_in_no_file(db: SessionDB, folder: Path) -> None:
    """Neither what a redaction took, nor what went with its conversation, nor what a person had forgotten."""
    texts = [secret(400, seed=number) for number in range(8)]
    for name in ("redacted", "gone"):
        db.create_session(name, source="test")
        command, did, told, came = texts[:4] if name == "redacted" else texts[4:]
        call = {"id": name, "name": "start_process", "arguments": {"command": command}}
        db.append_message(name, role="assistant", tool_calls=[call])
        db.permissions.begin_audit(name, name, "start_process", did, True, "me")
        db.processes.record_start(
            types.Process(id=name, conversation_id=name, command=command, folder="/", started_at=1.0, place="{}")
        )
        db.processes.record_end(name, "exited", 0, told)
        db.mail.settle_inbox_entry(db.mail.add_inbox_entry(name, name, came).id, "completed", 1)
    first, second = (secret(400, seed=number) for number in (8, 9))
    known = db.memory.add("o", first)
    db.memory.update("o", known.id, second)
    assert all(holding(folder, text) for text in (*texts, first, second))
    db.redact("redacted", 1)
    db.delete_conversation("gone")
    db.memory.delete("o", known.id)
    db.admin.scrub()
    assert [holding(folder, text) for text in (*texts, first, second)] == [set()] * 10


def test_a_title_made_from_a_redacted_message_is_in_no_file(db: SessionDB, folder: Path) -> None:
    text = secret(90)
    db.create_session("talk", source="test", title=text)
    db.append_message("talk", role="user", content=f"{text} and more")
    db.branch("talk", branch_id="branch")
    db.admin.backup(folder / "elsewhere" / "copy.db")
    db.redact("talk", 1)
    db.admin.scrub()
    assert (db.conversation("talk").title, db.conversation("branch").title) == (None, None)
    assert holding(folder, text) == {"copy.db"}
