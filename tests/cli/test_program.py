"""The program: exit codes, one sentence for each error, and data separate from notes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
import pytest

import holdfast as package
from holdfast import SessionDB
from holdfast.cli import program
from tests.support import cli_commands, cli_in_process, cli_process
from tests.support.cli_process import Holdfast

READING = [["sessions", "list"], ["sessions", "show", "last"], ["sessions", "tree"]]


def test_version_is_printed(holdfast: Holdfast, tmp_path: Path) -> None:
    version = (0, f"holdfast {package.__version__}\n", "")
    assert holdfast("--version") == holdfast("-V") == version
    assert cli_process.run(tmp_path, "--version", command=[f"{sys.prefix}/bin/holdfast"]) == version


@click.command()
def faulty() -> None:
    """Fail."""
    raise AssertionError("one and one is three")


def test_internal_error_is_one_sentence_and_logged_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(program.COMMANDS, "faulty", (f"{__name__}:faulty", "Fails."))
    done = cli_in_process.run(tmp_path, "faulty")
    assert done.code == 1
    assert done.sentence.startswith("holdfast: internal error (AssertionError).")
    assert "doctor" not in done.err
    assert "one and one is three" in caplog.text


@pytest.mark.parametrize("words", ["", "--help", "-h", "sessions", "sessions --help"])
def test_help_names_every_command(holdfast: Holdfast, words: str) -> None:
    done = holdfast(*words.split())
    assert (done.code, done.err) == (0, "")
    prefix = ("sessions",) if "sessions" in words else ()
    named = {path[len(prefix)] for path in cli_commands.commands() if path[: len(prefix)] == prefix}
    assert [name for name in named if f"\n  {name} " not in done.out] == []
    assert prefix or "holdfast chat --help" in done.out


@pytest.mark.parametrize(
    "words",
    [
        *("bogus", "--bogus", "sessions bogus", "sessions show", "sessions list extra", "sessions list --limit many"),
        *("sessions list --limit 0", "demo --processes 1", "doctor --nonsense", "\x1b[31mred"),
    ],
)
def test_usage_error_is_one_sentence_with_exit_2(holdfast: Holdfast, words: str) -> None:
    done = holdfast(*words.split())
    assert done.code == 2
    assert "--help" in done.sentence
    assert "\x1b" not in done.err


def test_misplaced_or_empty_option_is_explained(holdfast: Holdfast) -> None:
    done = holdfast("--db", "x", "sessions", "list")
    assert done.code == 2
    assert "`holdfast sessions ... --db ...`" in done.sentence
    assert holdfast("sessions", "list", "--db", "").code == 2


# --- the store -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_reading_command_refuses_what_is_not_a_store(holdfast: Holdfast, tmp_path: Path, command: list[str]) -> None:
    missing = tmp_path / "sub" / "none\x1b[31m.db"
    done = holdfast(*command, "--db", missing)
    assert done.code == 1
    assert "sub/none\\x1b[31m.db." in done.sentence
    assert "--db" in done.sentence
    assert list(tmp_path.iterdir()) == []
    assert "is a directory" in holdfast(*command, "--db", tmp_path).sentence
    notes, empty = tmp_path / "notes.txt", tmp_path / "empty.db"
    notes.write_text("not a database\n" * 1000)
    notes.chmod(0o644)
    empty.touch()
    assert "not a database" in holdfast(*command, "--db", notes).sentence
    assert (notes.read_text(), notes.stat().st_mode & 0o777) == ("not a database\n" * 1000, 0o644)
    assert "There is no database" in holdfast(*command, "--db", empty).sentence
    assert empty.stat().st_size == 0


def test_unsafe_or_newer_store_is_refused(holdfast: Holdfast, trip: Path) -> None:
    with SessionDB(trip) as db:
        db.driver._writer.pragma("user_version", 99)  # type: ignore[attr-defined]
    assert "schema 99" in holdfast("sessions", "list", "--db", trip).sentence
    trip.parent.chmod(0o777)
    assert f"chmod go-w {trip.parent}" in holdfast("sessions", "list", "--db", trip).sentence


def test_environment_names_the_store(holdfast: Holdfast, trip: Path, home: Path) -> None:
    assert "Trip to Lisbon" in holdfast("sessions", "list", HOLDFAST_DB=str(trip)).out
    trip.rename(home / "holdfast.db")
    assert "Trip to Lisbon" in holdfast("sessions", "list").out


# --- the streams ---------------------------------------------------------------------------------------

LONG = ["list", "list --json", "search long", "show other", "show other --json", "tree", "export --all"]


@pytest.fixture(scope="module")
def long_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose listings are larger than the buffer of a pipe."""
    path = tmp_path_factory.mktemp("long") / "long.db"
    with SessionDB(path) as db:
        db.create_session("other", source="test")
        db.append_messages("other", [{"role": "user", "content": "long " * 1000} for _ in range(50)])
        for number in range(800):
            db.create_session(f"{'x' * 150}{number:04}", source="test", title=f"{'long ' * 18}{number:04}")
    return path


@pytest.mark.parametrize("words", [*LONG, "export --all -o /dev/stdout", "export --all --format html", "show --help"])
def test_closed_pipe_ends_any_listing_silently(long_store: Path, tmp_path: Path, words: str) -> None:
    arguments = words.split() if "--help" in words else [*words.split(), "--db", str(long_store)]
    arguments += ["--limit", "1000"] if arguments[0] in ("list", "search", "tree") else []
    script = ["bash", "-c", 'set -o pipefail; "$@" | head -n 1', "-", *cli_process.PROGRAM, "sessions"]
    done = cli_process.run(tmp_path, *arguments, command=script)
    assert (done.code, done.err, done.out.count("\n")) == (0, "", 1)


@pytest.mark.parametrize(("words", "code"), [("show unknown", 1), ("list --limit 1", 0)])
def test_closed_standard_error_changes_no_exit_code(trip: Path, tmp_path: Path, words: str, code: int) -> None:
    read, write = os.pipe()
    os.close(read)
    done = cli_process.run(tmp_path, "sessions", *words.split(), "--db", trip, stderr=write)
    os.close(write)
    assert done.code == code


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_output_that_cannot_be_written_is_an_error(trip: Path, tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = cli_process.run(tmp_path, "sessions", "list", "--db", trip, stdout=full)
    assert done.code == 1
    assert done.sentence.startswith("holdfast: cannot write the output")
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *cli_process.PROGRAM]
    assert cli_process.run(tmp_path, "sessions", "list", "--db", trip, command=closed) == (0, "", "")


def test_encoding_decides_between_glyphs_and_ascii(trip: Path, tmp_path: Path, holdfast: Holdfast) -> None:
    assert holdfast("sessions", "title", "other", "漢字 naïve", "--db", trip).code == 0
    plain = cli_process.run(tmp_path, "sessions", "tree", "--db", trip, env={"PYTHONIOENCODING": "", "LC_ALL": "C"})
    assert "漢字 naïve" in plain.out
    assert "└─" in plain.out
    ascii_only = cli_process.run(tmp_path, "sessions", "tree", "--db", trip, env={"PYTHONIOENCODING": "ascii"})
    assert ascii_only.out.isascii()
    assert "`- * " in ascii_only.out
    assert "\\u6f22\\u5b57" in ascii_only.out
