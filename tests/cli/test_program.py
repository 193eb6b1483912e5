"""The program: exit codes, one sentence for each error, data separate from notes, and light imports."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import click
import pytest

import holdfast as package
from holdfast import SessionDB
from holdfast.cli import program
from tests.support import cli_in_process, cli_process, documents
from tests.support.cli_process import Holdfast


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
    named = {path[len(prefix)] for path in documents.commands() if path[: len(prefix)] == prefix}
    assert [name for name in named if f"\n  {name} " not in done.out] == []
    assert prefix or "holdfast chat --help" in done.out


USAGE_ERRORS = [
    *("bogus", "--bogus", "\x1b[31mred", "doctor --nonsense", "demo --processes 1", "sessions bogus", "sessions show"),
    *("sessions list extra", "sessions list --limit many", "sessions list --limit 0", "sessions list --db ''"),
    *("-p", "--prompt", "-p '  '", "-p x extra", "-p x -r", "-p x -c -r y", "-p x --db ''", "-p x --max-steps 0"),
    *("-p x --max-cost -1", "-p x --output-format xml", "--output-format json", "--model offline", "--yes", "-c"),
    *("gateway allow Telegram 42", "gateway allow telegram *", "gateway allow telegram", "gateway deny tele/gram 42"),
    *("gateway people --platform Telegram", "gateway pair", "gateway open", "gateway --port 70000"),
    *("gateway --grace -1", "gateway retry", "gateway retry 1 --all", "gateway retry x", "gateway link --off"),
]


@pytest.mark.parametrize("line", USAGE_ERRORS)
def test_usage_error_is_one_sentence_and_creates_no_file(holdfast: Holdfast, tmp_path: Path, line: str) -> None:
    done = holdfast(*shlex.split(line), piped=b" \n" if line == "-p" else None, **cli_process.OFFLINE)
    assert done.code == 2
    assert "--help" in done.sentence
    assert "\x1b" not in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", ["list", "show last", "tree"])
def test_reading_command_refuses_other_files(holdfast: Holdfast, tmp_path: Path, words: str) -> None:
    missing = tmp_path / "sub" / "none\x1b[31m.db"
    done = holdfast("sessions", *words.split(), "--db", missing)
    assert done.code == 1
    assert "sub/none\\x1b[31m.db." in done.sentence
    assert "--db" in done.sentence
    assert list(tmp_path.iterdir()) == []
    assert "is a directory" in holdfast("sessions", *words.split(), "--db", tmp_path).sentence
    notes, empty = tmp_path / "notes.txt", tmp_path / "empty.db"
    notes.write_text("not a database\n" * 1000)
    notes.chmod(0o644)
    empty.touch()
    assert "not a database" in holdfast("sessions", *words.split(), "--db", notes).sentence
    assert (notes.read_text(), notes.stat().st_mode & 0o777) == ("not a database\n" * 1000, 0o644)
    assert "There is no database" in holdfast("sessions", *words.split(), "--db", empty).sentence
    assert empty.stat().st_size == 0


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


HEAVY = {
    *("acp", "apsw", "asyncio", "difflib", "httpx2", "jsonschema", "markdown_it", "mcp", "multiprocessing"),
    *("prompt_toolkit", "psycopg", "rich", "websockets", "sqlite3", "ssl", "textual"),
    *("holdfast.agent.agent", "holdfast.store.db", "holdfast.chat.chat"),
}
NOTHING = set[str]()
STORE = {"apsw", "holdfast.store.db"}
# The module of the process folders also runs processes.
PROCESSES = STORE | {"asyncio", "ssl"}
AGENT = PROCESSES | {"difflib", "holdfast.agent.agent"}


# The heavy modules of commands of each kind, and their exit code.
CASES = [
    ("completion zsh", NOTHING, 0),
    ("config show", NOTHING, 0),
    ("mcp list", NOTHING, 0),
    ("tui", NOTHING, 2),
    # Without a greeting of the editor: the rest is loaded after it.
    ("acp", {"asyncio", "ssl"}, 0),
    ("salvage data/holdfast.db new.db", {"apsw"}, 0),
    *((words, STORE, 0) for words in ("audit", "db status", "doctor", "gateway status", "sessions list")),
    ("demo --rounds 1", STORE | {"multiprocessing", "sqlite3"}, 0),
    ("sessions delete last --yes", PROCESSES, 0),
    ("chat -p hi", AGENT, 0),
    ("rpc", AGENT, 0),
    ("gateway allow email a@b.c", AGENT, 0),
    # Refused after everything was loaded, before it listens.
    ("gateway run --host 0.0.0.0", AGENT | {"httpx2", "multiprocessing"}, 2),
]
CODE = """
import sys, holdfast.cli
try: holdfast.cli.main()
except SystemExit as left: print(left.code or 0, *sys.modules, file=sys.stderr)
else: print(0, *sys.modules, file=sys.stderr)
"""


def loaded_modules(home: Path, *arguments: str, **env: str) -> tuple[int, set[str]]:
    """Return the exit code of the program, and the modules that are loaded at its end."""
    done = cli_process.run_code(home, CODE, *arguments, env={**cli_process.OFFLINE, "EDITOR": "true", **env})
    code, *modules = done.err.splitlines()[-1].split()
    return int(code), set(modules)


@pytest.mark.parametrize(("words", "expected", "exit_code"), CASES, ids=[words for words, _, _ in CASES])
def test_command_loads_only_the_modules_it_uses(tmp_path: Path, words: str, expected: set[str], exit_code: int) -> None:
    with SessionDB(tmp_path / "data" / "holdfast.db") as db:
        db.create_session("talk", source="test", title="Talk")
        db.append_message("talk", role="user", content="hello there")
    code, modules = loaded_modules(tmp_path, *words.split())
    assert (code, modules & HEAVY) == (exit_code, expected)
    assert "holdfast.cli.demo" not in modules or words.startswith("demo")


@pytest.mark.parametrize("group", sorted({command[:-1] for command in documents.commands()}), ids=" ".join)
def test_help_loads_nothing_heavy(tmp_path: Path, group: tuple[str, ...]) -> None:
    code, modules = loaded_modules(tmp_path, *group, "--help")
    assert (code, modules & HEAVY) == (0, NOTHING)


def test_version_and_completion_load_next_to_nothing(tmp_path: Path) -> None:
    code, modules = loaded_modules(tmp_path, "--version")
    assert (code, {name for name in modules if name.startswith("holdfast.")}) == (0, {"holdfast.cli"})
    assert not modules & {"click", "msgspec", "apsw", "platformdirs", "json", "subprocess", "asyncio", "sqlite3"}
    words = {"_HOLDFAST_COMPLETE": "bash_complete", "COMP_WORDS": "holdfast ", "COMP_CWORD": "1"}
    code, modules = loaded_modules(tmp_path, **words)
    assert (code, modules & {*HEAVY, "holdfast.cli.sessions", "holdfast.cli.doctor"}) == (0, NOTHING)
