"""`sessions export` and `sessions import`: complete files, one sentence for an error, nothing lost."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from holdfast import SessionDB
from tests.cli.conftest import BRANCH, TRIP
from tests.support import backends, cli_process, pty_terminal
from tests.support.cli_process import Holdfast


def test_import_of_an_export_has_the_same_export(holdfast: Holdfast, sessions: Holdfast, tmp_path: Path) -> None:
    text = sessions("export", "--all")
    assert (text.code, text.err) == (0, "")
    file, other = tmp_path / "trip.jsonl", tmp_path / "other.db"
    done = sessions("export", "--all", "-o", file)
    assert done == (0, "", f"3 conversations with 10 messages written to {file}.\n")
    assert file.read_text("utf-8") == text.out
    done = holdfast("sessions", "import", file, "--db", other)
    assert done == (0, "3 imported; 10 messages imported.\n", "")
    assert holdfast("sessions", "export", "--all", "--db", other).out == text.out
    again = holdfast("sessions", "import", file, "--db", other)
    assert again.out == "0 imported, 3 already there; 0 messages imported.\n"
    piped = holdfast("sessions", "import", "-", "--db", tmp_path / "third.db", piped=text.out.encode())
    assert piped.out == "3 imported; 10 messages imported.\n"


def test_bytes_do_not_depend_on_the_encoding_and_terminals_are_safe(tmp_path: Path) -> None:
    path = tmp_path / "words.db"
    with SessionDB(path) as db:
        db.create_session("words", source="test")
        db.append_message("words", role="user", content="naïve 語 \x1b[2J \x9b2J \u202e")
    export = ["sessions", "export", "words", "--db", str(path)]
    assert "naïve 語" in cli_process.run(tmp_path, *export, env={"PYTHONIOENCODING": "ascii"}).out
    for form in ("jsonl", "markdown", "html"):
        shown = pty_terminal.run(tmp_path, *export, "--format", form, columns=80)
        assert shown.code == 0
        assert not set(shown.out) & set("\x9b\u202e")
        assert "\x1b[2J" not in shown.out


def test_file_is_private_and_replaced_only_as_a_whole(sessions: Holdfast, trip: Path, tmp_path: Path) -> None:
    file = tmp_path / "out" / "x.jsonl"
    file.parent.mkdir()
    file.write_text("old")
    branch = sessions("export", BRANCH, "-o", file)
    assert branch.err.splitlines()[0] == f"{TRIP} is included, because a branch needs it."
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    whole = file.read_text()
    assert whole.startswith('{"holdfast":"export"')
    with SessionDB(trip) as db:
        backends.raw(db, "DROP TRIGGER message_is_only_redacted")
        backends.raw(db, """UPDATE messages SET body = '{"content":"forged"}' WHERE seq = 3""")
    done = sessions("export", TRIP, "-o", file)
    assert done.code == 1
    assert "Message 3 of conversation" in done.err.splitlines()[-1]
    assert (file.read_text(), os.listdir(file.parent)) == (whole, ["x.jsonl"])


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ("", 2, "Name conversations, or use --all."),
        ("last --all", 2, "Name conversations, or use --all."),
        ("last --json", 2, "--json"),
        ("unknown", 1, "There is no session 'unknown'"),
        ("last -o trip.db", 1, "belongs to the store itself"),
        ("last -o nowhere/x", 1, "cannot be read or written: No such file or directory."),
    ],
)
def test_impossible_export_is_one_sentence(sessions: Holdfast, arguments: str, code: int, sentence: str) -> None:
    assert sentence in sessions("export", *arguments.split()).failure(code)
    assert sessions("list").code == 0


@pytest.fixture
def album(tmp_path: Path) -> Path:
    """A store with a conversation that has two attachments, one of them lost."""
    path = tmp_path / "album.db"
    with SessionDB(path) as db:
        kept, lost = (db.blobs.put(content, "image/png").digest for content in (b"kept" * 100, b"lost"))
        db.create_session("album", source="test")
        parts = [{"type": "image", "blob": digest} for digest in (kept, lost)]
        db.append_message("album", role="user", content=parts)
    (tmp_path / "album.db.blobs" / lost[:2] / lost[2:]).unlink()
    return path


def test_attachments_are_exported_to_a_folder_next_to_the_file(holdfast: Holdfast, album: Path, tmp_path: Path) -> None:
    file = tmp_path / "album.jsonl"
    done = holdfast("sessions", "export", "album", "--db", album, "-o", file)
    missing, written = done.err.splitlines()
    assert missing.endswith("is missing or damaged, and was not exported.")
    assert written == f"1 conversation with 1 message and 1 attachment written to {file}."
    done = holdfast("sessions", "import", file, "--db", tmp_path / "other.db")
    assert (done.code, done.out) == (0, "1 imported; 1 message and 1 attachment imported.\n")
    assert f"Copy {file}.blobs from the export next to the file" in done.err
    data = holdfast("sessions", "import", file, "--db", tmp_path / "third.db", "--json").data
    assert (data["ok"], data["blobs"], len(data["lost_blobs"])) == (True, 1, 1)
    for command in (["show", "album"], ["export", "album", "--format", "html"]):
        assert "image/png, 400 bytes" in holdfast("sessions", *command, "--db", album).out


def test_pipe_reports_that_it_has_no_attachments(holdfast: Holdfast, album: Path, tmp_path: Path) -> None:
    done = holdfast("sessions", "export", "album", "--db", album)
    assert done.err == "2 attachments (404 B) not exported: use -o to export them.\n"
    imported = holdfast("sessions", "import", "-", "--db", tmp_path / "other.db", piped=done.out.encode())
    assert imported.out == "1 imported; 1 message imported.\n"
    *each, remedy = imported.err.splitlines()
    assert [line.endswith("is missing.") for line in each] == [True, True]
    assert remedy.startswith("A pipe has no attachments")


@pytest.fixture
def export(sessions: Holdfast, tmp_path: Path) -> Path:
    sessions("export", "--all", "-o", tmp_path / "trip.jsonl")
    return tmp_path / "trip.jsonl"


def test_deleted_conversation_is_imported_only_with_revive(sessions: Holdfast, trip: Path, export: Path) -> None:
    with SessionDB(trip) as db:
        db.delete_conversation("other")
    done = sessions("import", export)
    assert (done.code, "was deleted" in done.err) == (1, True)
    assert done.err.endswith("1 was deleted or pruned here. Use --revive to import under new ids (ID~2).\n")
    done = sessions("import", export, "--revive")
    assert (done.code, done.err) == (0, "other was deleted here; it was imported as other~2.\n")
