"""`sessions export` and `sessions import`: whole files, one sentence for an error, nothing lost between them."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import SessionDB
from tests.cli.conftest import BRANCH, TRIP
from tests.support import cli_process

Holdfast = Callable[..., cli_process.Run]


def test_what_is_exported_comes_in_elsewhere_and_is_exported_the_same(
    holdfast: Holdfast, trip: Path, tmp_path: Path
) -> None:
    text = holdfast("sessions", "export", "--all", "--db", trip)
    assert (text.code, text.err) == (0, "")
    file, other = tmp_path / "trip.jsonl", tmp_path / "other.db"
    done = holdfast("sessions", "export", "--all", "--db", trip, "-o", file)
    assert done == (0, "", f"3 conversations with 10 messages written to {file}.\n")
    assert file.read_text("utf-8") == text.out
    done = holdfast("sessions", "import", file, "--db", other)
    assert done == (0, "3 imported; 10 messages imported.\n", "")
    assert holdfast("sessions", "export", "--all", "--db", other).out == text.out
    assert (
        holdfast("sessions", "import", file, "--db", other).out == "0 imported, 3 already there; 0 messages imported.\n"
    )


def test_a_pipe_from_one_to_the_other_needs_no_file(holdfast: Holdfast, trip: Path, tmp_path: Path) -> None:
    lines = holdfast("sessions", "export", "Trip to Lisbon", "--db", trip).out
    done = subprocess.run(
        [*cli_process.PROGRAM, "sessions", "import", "-", "--db", tmp_path / "other.db"],
        input=lines.encode(),
        env=cli_process.environment(tmp_path),
        capture_output=True,
        timeout=cli_process.PATIENCE,
        check=True,
    )
    assert done.stdout == b"1 imported; 8 messages imported.\n"


def test_the_bytes_do_not_depend_on_the_terminal(holdfast: Holdfast, tmp_path: Path) -> None:
    path = tmp_path / "words.db"
    with SessionDB(path) as db:
        db.create_session("words", source="test")
        db.append_message("words", role="user", content="naïve 語 \x9b")
    run = [*cli_process.PROGRAM, "sessions", "export", "words", "--db", path]
    env = cli_process.environment(tmp_path, {"PYTHONIOENCODING": "ascii"})
    done = subprocess.run(run, env=env, capture_output=True, timeout=cli_process.PATIENCE, check=True)
    assert "naïve 語 \x9b".encode() in done.stdout


def test_a_terminal_is_shown_nothing_that_steers_it(tmp_path: Path) -> None:
    path = tmp_path / "words.db"
    with SessionDB(path) as db:
        db.create_session("words", source="test")
        db.append_message("words", role="user", content="\x1b[2J \x9b2J \u202e")
    for form in ("jsonl", "markdown", "html"):
        shown = cli_process.run_in_terminal(
            tmp_path, "sessions", "export", "words", "--format", form, "--db", path, columns=80
        )
        assert shown.code == 0
        assert not set(shown.out) & set("\x9b\u202e")
        assert "\x1b[2J" not in shown.out


def test_a_branch_says_what_came_along(holdfast: Holdfast, trip: Path, tmp_path: Path) -> None:
    done = holdfast("sessions", "export", BRANCH, "--db", trip, "-o", tmp_path / "x")
    assert done.err.splitlines()[0] == f"{TRIP} is included, because a branch needs it."


@pytest.mark.parametrize("form", ["markdown", "html"])
def test_pages_are_written_for_people(holdfast: Holdfast, trip: Path, form: str) -> None:
    done = holdfast("sessions", "export", "last", TRIP, "--format", form, "--db", trip)
    assert (done.code, done.err) == (0, "")
    assert "Trip to Lisbon" in done.out
    assert "They plan a trip." in done.out
    assert done.out.count("<!DOCTYPE html>") == (form == "html")


def test_a_file_is_for_its_owner_only_and_replaces_as_a_whole(holdfast: Holdfast, trip: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    file = folder / "x.jsonl"
    file.write_text("old")
    holdfast("sessions", "export", "last", "--db", trip, "-o", file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().startswith('{"holdfast":"export"')
    assert os.listdir(folder) == ["x.jsonl"]


def test_an_export_that_fails_leaves_the_old_file_and_nothing_else(
    holdfast: Holdfast, trip: Path, tmp_path: Path
) -> None:
    with SessionDB(trip) as db:
        execute = db.driver._writer.execute  # type: ignore[attr-defined]
        execute("DROP TRIGGER message_is_only_redacted")
        execute("""UPDATE messages SET body = '{"content":"forged"}' WHERE seq = 3""")
    folder = tmp_path / "out"
    folder.mkdir()
    file = folder / "x.jsonl"
    file.write_text("old")
    done = holdfast("sessions", "export", TRIP, "--db", trip, "-o", file)
    assert done.code == 1
    assert "Message 3 of conversation" in done.err.splitlines()[-1]
    assert (file.read_text(), os.listdir(folder)) == ("old", ["x.jsonl"])


def test_a_device_is_written_to_and_never_replaced(holdfast: Holdfast, trip: Path) -> None:
    assert holdfast("sessions", "export", "last", "--db", trip, "-o", "/dev/null").code == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_pipe_by_its_name_is_written_to_and_may_close(trip: Path, tmp_path: Path) -> None:
    run = [*cli_process.PROGRAM, "sessions", "export", "--all", "--db", trip, "-o", "/dev/stdout"]
    done = subprocess.run(run, env=cli_process.environment(tmp_path), capture_output=True, timeout=120, check=True)
    assert done.stdout.count(b"\n") > 20
    assert done.stderr == b"3 conversations with 10 messages written to /dev/stdout.\n"


def test_the_store_itself_is_never_written_over(holdfast: Holdfast, trip: Path) -> None:
    done = holdfast("sessions", "export", "last", "--db", trip, "-o", trip)
    assert "belongs to the store itself" in done.sentence
    assert holdfast("sessions", "list", "--db", trip).code == 0


def test_what_was_written_can_be_told_as_json(holdfast: Holdfast, trip: Path, tmp_path: Path) -> None:
    data = holdfast("sessions", "export", TRIP, "--db", trip, "-o", tmp_path / "x", "--json").data
    assert (data["file"], data["format"], data["conversations"]) == (str(tmp_path / "x"), "jsonl", 1)
    assert (data["messages"], data["blobs"], data["lost_blobs"]) == (8, [], [])
    assert holdfast("sessions", "export", TRIP, "--db", trip, "--json").code == 2


# --- attachments ---------------------------------------------------------------------------------------


@pytest.fixture
def album(tmp_path: Path) -> Path:
    """A store with a conversation that names two attachments, one of which is lost."""
    path = tmp_path / "album.db"
    with SessionDB(path) as db:
        kept, lost = (db.blobs.put(content, "image/png").digest for content in (b"kept" * 100, b"lost"))
        db.create_session("album", source="test")
        parts = [{"type": "image", "blob": digest} for digest in (kept, lost)]
        db.append_message("album", role="user", content=parts)
    (tmp_path / "album.db.blobs" / lost[:2] / lost[2:]).unlink()
    return path


def test_attachments_come_along_in_a_folder_beside_the_file(holdfast: Holdfast, album: Path, tmp_path: Path) -> None:
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


def test_a_pipe_says_that_it_carries_no_attachments(holdfast: Holdfast, album: Path, tmp_path: Path) -> None:
    done = holdfast("sessions", "export", "album", "--db", album)
    assert done.err == "2 attachments (404 B) not exported: use -o to export them.\n"
    run = [*cli_process.PROGRAM, "sessions", "import", "-", "--db", tmp_path / "other.db"]
    env = cli_process.environment(tmp_path)
    came = subprocess.run(run, input=done.out.encode(), env=env, capture_output=True, timeout=120, check=True)
    assert came.stdout == b"1 imported; 1 message imported.\n"
    *each, remedy = came.stderr.decode().splitlines()
    assert [line.endswith("is missing.") for line in each] == [True, True]
    assert remedy.startswith("A pipe has no attachments")


def test_a_shell_that_gives_a_pipe_for_a_file_is_no_trap(album: Path, tmp_path: Path) -> None:
    holdfast = " ".join(map(str, cli_process.PROGRAM))
    command = (
        f"{holdfast} sessions import <({holdfast} sessions export album --db {album}) --db {tmp_path / 'other.db'}"
    )
    env = cli_process.environment(tmp_path)
    done = subprocess.run(["bash", "-c", command], env=env, capture_output=True, timeout=120, check=True)
    assert done.stdout == b"1 imported; 1 message imported.\n"


def test_attachments_are_named_where_they_are_shown(holdfast: Holdfast, album: Path) -> None:
    for command in (["show", "album"], ["export", "album", "--format", "html"]):
        assert "image/png, 400 bytes" in holdfast("sessions", *command, "--db", album).out


def test_a_place_that_cannot_be_written_is_one_sentence(holdfast: Holdfast, trip: Path, tmp_path: Path) -> None:
    done = holdfast("sessions", "export", "last", "--db", trip, "-o", tmp_path / "nowhere" / "x")
    assert done.code == 1
    assert done.sentence.endswith("cannot be read or written: No such file or directory.")


@pytest.mark.parametrize("arguments", [[], ["last", "--all"]], ids=["nothing", "both"])
def test_names_or_all_of_them(holdfast: Holdfast, trip: Path, arguments: list[str]) -> None:
    done = holdfast("sessions", "export", *arguments, "--db", trip)
    assert done.code == 2
    assert "Name conversations, or use --all." in done.sentence


def test_an_unknown_name_is_one_sentence(holdfast: Holdfast, trip: Path) -> None:
    done = holdfast("sessions", "export", "nobody", "--db", trip)
    assert done.code == 1
    assert "There is no session 'nobody'" in done.sentence


# --- import --------------------------------------------------------------------------------------------


@pytest.fixture
def lines(holdfast: Holdfast, trip: Path, tmp_path: Path) -> Path:
    holdfast("sessions", "export", "--all", "--db", trip, "-o", tmp_path / "trip.jsonl")
    return tmp_path / "trip.jsonl"


def test_what_was_refused_is_told_with_its_line_and_exits_with_1(
    holdfast: Holdfast, lines: Path, tmp_path: Path
) -> None:
    told = lines.read_text("utf-8").splitlines(keepends=True)
    place = next(number for number, line in enumerate(told) if "message 3" in line)
    told[place] = told[place].replace("message 3", "forged")
    lines.write_text("".join(told), "utf-8")
    done = holdfast("sessions", "import", lines, "--db", tmp_path / "other.db")
    assert done.code == 1
    assert done.out == "1 imported, 2 refused; 1 message imported.\n"
    assert "were changed, lost or added" in done.err
    data = holdfast("sessions", "import", lines, "--json", "--db", tmp_path / "other.db").data
    assert [outcome["outcome"] for outcome in data["outcomes"]] == ["refused", "refused", "already_there"]
    assert data["outcomes"][0]["line"] > place
    assert not data["ok"]


def test_other_content_titles_and_routes_are_told(holdfast: Holdfast, lines: Path, tmp_path: Path) -> None:
    with SessionDB(tmp_path / "other.db") as db:
        db.create_session("other", source="test")
        db.create_session("mine", source="test", title="Trip to Lisbon")
    done = holdfast("sessions", "import", lines, "--db", tmp_path / "other.db")
    assert done.code == 1
    assert "Conversation 'other' exists with other content" in done.err
    assert f"{TRIP} has the new title 'Trip to Lisbon #2', because its own is taken." in done.err


def test_what_was_deleted_comes_back_only_when_asked(holdfast: Holdfast, trip: Path, lines: Path) -> None:
    with SessionDB(trip) as db:
        db.delete_conversation("other")
    done = holdfast("sessions", "import", lines, "--db", trip)
    assert (done.code, "was deleted" in done.err) == (1, True)
    assert done.err.endswith("1 was deleted or pruned here. Use --revive to import under new ids (ID~2).\n")
    done = holdfast("sessions", "import", lines, "--revive", "--db", trip)
    assert done.code == 0
    assert done.err == "other was deleted here; it was imported as other~2.\n"


def test_what_was_pruned_comes_back_as_the_help_says(holdfast: Holdfast, album: Path, tmp_path: Path) -> None:
    archive = tmp_path / "old.jsonl"
    pruned = holdfast("sessions", "prune", "--max-size", "0kb", "--archive", archive, "--yes", "--db", album)
    assert (pruned.code, "is missing or damaged, and is not in the archive." in pruned.err) == (0, True)
    refused = holdfast("sessions", "import", archive, "--db", album)
    assert (refused.code, refused.out) == (1, "0 imported, 1 refused; 0 messages imported.\n")
    assert "--revive" in refused.err
    done = holdfast("sessions", "import", archive, "--revive", "--db", album)
    assert (done.code, done.out) == (0, "1 imported; 1 message and 1 attachment imported.\n")
    for command in ("import", "prune"):
        said = " ".join(holdfast("sessions", command, "--help").out.split())
        assert "--revive" in said


@pytest.mark.parametrize("content", [b"", b"hello\n", b"\xff\xfe", b"\0" * 100])
def test_a_file_that_is_no_export_is_one_sentence(holdfast: Holdfast, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x"
    file.write_bytes(content)
    done = holdfast("sessions", "import", file, "--db", tmp_path / "other.db")
    assert done.code == 1
    assert done.sentence == "holdfast: Line 1: this is not an export of Holdfast."


def test_a_file_that_is_not_there_is_one_sentence_and_makes_no_store(holdfast: Holdfast, tmp_path: Path) -> None:
    done = holdfast("sessions", "import", tmp_path / "nowhere", "--db", tmp_path / "other.db")
    assert done.code == 1
    assert done.sentence.endswith("cannot be read: No such file or directory.")
    assert not (tmp_path / "other.db").exists()
