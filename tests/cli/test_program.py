"""The program's manners: exit codes, one sentence for each error, data and notes kept apart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import holdfast as package
from holdfast import SessionDB
from holdfast.cli import program as cli
from tests.support import cli_in_process, cli_process, polling

Holdfast = Callable[..., cli_process.Run]
# What only a chat needs, or an agent.
CHAT = {"prompt_toolkit", "rich", "httpx2", "holdfast.runtime.runtime", "holdfast.chat.chat", "holdfast.cli.one_shot"}
LOOKING = [["sessions", "list"], ["sessions", "show", "last"], ["sessions", "tree"], ["doctor"]]


def test_version_is_printed(holdfast: Holdfast) -> None:
    for option in ("--version", "-V"):
        assert holdfast(option) == (0, f"holdfast {package.__version__}\n", "")


def test_console_script_is_the_same_program(tmp_path: Path) -> None:
    script = Path(sys.prefix) / "bin" / "holdfast"
    done = subprocess.run([script, "--version"], env=cli_process.environment(tmp_path), capture_output=True, check=True)
    assert done.stdout.decode() == f"holdfast {package.__version__}\n"


def test_version_loads_nothing_but_holdfast_itself(tmp_path: Path) -> None:
    code = "import sys; import holdfast.cli; sys.argv[1:] = ['--version']; holdfast.cli.main(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    loaded = set(done.stdout.split())
    assert {name for name in loaded if name.startswith("holdfast.")} == {"holdfast.cli"}
    assert not loaded & {"click", "msgspec", "apsw", "platformdirs", "json", "subprocess", "asyncio", "sqlite3"}


@click.command()
def faulty() -> None:
    """A command with a mistake in it."""
    raise AssertionError("one and one is three")


def test_a_fault_of_the_program_is_called_one_and_logged_with_its_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(cli.COMMANDS, "faulty", (f"{__name__}:faulty", "Fails."))
    done = cli_in_process.run(tmp_path, "faulty")
    assert done.code == 1
    assert done.sentence.startswith("holdfast: internal error (AssertionError).")
    assert "doctor" not in done.err
    assert "one and one is three" in caplog.text


def test_a_command_loads_no_other_command(holdfast: Holdfast, tmp_path: Path) -> None:
    code = "import sys; sys.argv[1:] = ['sessions', 'list', '--db', ':memory:']\nimport holdfast.cli\n"
    code += "try: holdfast.cli.main()\nexcept SystemExit: print(*sys.modules)"
    env = cli_process.environment(tmp_path)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, encoding="utf-8", check=True)
    loaded = set(done.stdout.split())
    assert "holdfast.cli.sessions_list" in loaded
    assert not loaded & {
        "holdfast.cli.demo",
        "holdfast.cli.doctor",
        "holdfast.cli.sessions_tree",
        "sqlite3",
        "multiprocessing",
    }
    assert not loaded & CHAT


@pytest.mark.parametrize("arguments", [["--help"], [], ["sessions", "--help"], ["chat", "--help"]], ids=" ".join)
def test_help_loads_nothing_of_the_chat(tmp_path: Path, arguments: list[str]) -> None:
    code = f"import sys; sys.argv[1:] = {arguments}\nimport holdfast.cli\n"
    code += "try: holdfast.cli.main()\nexcept SystemExit: print(*sys.modules, file=sys.stderr)"
    env = cli_process.environment(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert "Usage: holdfast" in done.stdout
    assert not set(done.stderr.split()) & CHAT


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["sessions"], ["sessions", "--help"]])
def test_help_names_every_command(holdfast: Holdfast, arguments: list[str]) -> None:
    done = holdfast(*arguments)
    assert (done.code, done.err) == (0, "")
    named = ("list", "show", "tree") if "sessions" in arguments else ("sessions", "doctor", "demo")
    assert all(f"\n  {name} " in done.out for name in named)


@pytest.mark.parametrize("command", [*LOOKING, ["demo"]])
def test_every_command_explains_itself(holdfast: Holdfast, command: list[str]) -> None:
    done = holdfast(*command, "--help")
    assert (done.code, done.err) == (0, "")
    assert "--json" in done.out


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["--bogus"],
        ["sessions", "bogus"],
        ["sessions", "show"],
        ["sessions", "list", "extra"],
        ["sessions", "list", "--limit", "many"],
        ["sessions", "list", "--limit", "0"],
        ["sessions", "list", "--db", ""],
        ["demo", "--processes", "1"],
        ["\x1b[31mred"],
    ],
)
def test_wrong_use_is_one_sentence_and_exit_2(holdfast: Holdfast, arguments: list[str]) -> None:
    done = holdfast(*arguments)
    assert done.code == 2
    assert "--help" in done.sentence
    assert "\x1b" not in done.err


def test_options_before_a_command_are_told_where_they_go(holdfast: Holdfast) -> None:
    done = holdfast("--db", "x", "sessions", "list")
    assert done.code == 2
    assert "`holdfast sessions ... --db ...`" in done.sentence


@pytest.mark.parametrize("command", LOOKING[:3])
def test_who_only_looks_makes_no_database(holdfast: Holdfast, tmp_path: Path, command: list[str]) -> None:
    missing = tmp_path / "sub" / "none.db"
    done = holdfast(*command, "--db", missing)
    assert done.code == 1
    assert f"There is no database at {missing}." in done.sentence
    assert "--db" in done.sentence
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_is_left_empty(holdfast: Holdfast, tmp_path: Path) -> None:
    empty = tmp_path / "empty.db"
    empty.touch()
    done = holdfast("sessions", "list", "--db", empty)
    assert (done.code, empty.stat().st_size) == (1, 0)
    assert "There is no database" in done.sentence


@pytest.mark.parametrize("command", LOOKING[:3])
def test_a_directory_is_refused(holdfast: Holdfast, tmp_path: Path, command: list[str]) -> None:
    done = holdfast(*command, "--db", tmp_path)
    assert done.code == 1
    assert "is a directory" in done.sentence


@pytest.mark.parametrize("command", LOOKING[:3])
def test_a_file_of_something_else_is_refused_and_untouched(
    holdfast: Holdfast, tmp_path: Path, command: list[str]
) -> None:
    garbage = tmp_path / "notes.txt"
    garbage.write_text("not a database\n" * 1000)
    garbage.chmod(0o644)
    done = holdfast(*command, "--db", garbage)
    assert done.code == 1
    assert "not a database" in done.sentence
    assert garbage.read_text() == "not a database\n" * 1000
    assert garbage.stat().st_mode & 0o777 == 0o644


def test_a_shared_directory_is_refused_with_the_remedy(holdfast: Holdfast, trip: Path) -> None:
    trip.parent.chmod(0o777)
    done = holdfast("sessions", "list", "--db", trip)
    assert done.code == 1
    assert f"chmod go-w {trip.parent}" in done.sentence


def test_a_path_with_escape_codes_is_shown_safely(holdfast: Holdfast, tmp_path: Path) -> None:
    done = holdfast("sessions", "list", "--db", tmp_path / "\x1b[31mred.db")
    assert "\\x1b[31mred.db" in done.sentence
    assert "\x1b" not in done.err


def test_a_store_of_a_newer_version_is_refused(holdfast: Holdfast, tmp_path: Path) -> None:
    path = tmp_path / "newer.db"
    with SessionDB(path) as db:
        db.driver._writer.pragma("user_version", 99)  # type: ignore[attr-defined]
    assert "schema 99" in holdfast("sessions", "list", "--db", path).sentence


def test_environment_names_the_store(holdfast: Holdfast, trip: Path, tmp_path: Path) -> None:
    assert "Trip to Lisbon" in holdfast("sessions", "list", HOLDFAST_DB=str(trip)).out
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    trip.rename(home / "holdfast.db")
    assert "Trip to Lisbon" in holdfast("sessions", "list", HOLDFAST_HOME=str(home)).out


def test_a_reader_that_has_seen_enough_ends_it_silently(trip: Path, tmp_path: Path) -> None:
    with SessionDB(trip) as db:
        db.append_messages("other", [{"role": "user", "content": "long " * 1000} for _ in range(200)])
    process = subprocess.Popen(
        [*cli_process.PROGRAM, "sessions", "show", "other", "--db", trip],
        env=cli_process.environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"other\n"
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(cli_process.PATIENCE) == 0


PAGES = [
    ["list"],
    ["list", "--all"],
    ["list", "--json"],
    ["search", "long"],
    ["search", "long", "--json"],
    ["show", "other"],
    ["show", "other", "--json"],
    ["show", "other", "--context"],
    ["tree"],
    ["tree", "--json"],
    ["export", "--all"],
    ["export", "--all", "-o", "/dev/stdout"],
    ["export", "--all", "--format", "markdown"],
    ["export", "--all", "--format", "html"],
    ["show", "--help"],
]


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that any command has more to say of than a pipe holds, and a branch for the tree."""
    path = tmp_path_factory.mktemp("long") / "long.db"
    with SessionDB(path) as db:
        db.create_session("other", source="test")
        db.append_messages("other", [{"role": "user", "content": "long " * 1000} for _ in range(50)])
        for number in range(800):
            db.create_session(f"{'x' * 150}{number:04}", source="test", title=f"{'long ' * 18}{number:04}")
    return path


@pytest.mark.parametrize("command", PAGES, ids=" ".join)
def test_whatever_is_listed_a_reader_may_leave_after_a_line(long: Path, tmp_path: Path, command: list[str]) -> None:
    arguments = [*command] if "--help" in command else [*command, "--db", str(long)]
    arguments += ["--limit", "1000"] if command[0] in ("list", "search", "tree") else []
    script = 'set -o pipefail; "$@" | head -n 1'
    done = subprocess.run(
        ["bash", "-c", script, "-", *cli_process.PROGRAM, "sessions", *arguments],
        env=cli_process.environment(tmp_path),
        capture_output=True,
        timeout=cli_process.PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"\n") == 1


@pytest.mark.parametrize(("command", "code"), [(["show", "nobody"], 1), (["list", "--limit", "1"], 0), (["bogus"], 2)])
def test_a_closed_standard_error_changes_no_exit_code(
    trip: Path, tmp_path: Path, command: list[str], code: int
) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*cli_process.PROGRAM, "sessions", *command, *([] if code == 2 else ["--db", str(trip)])],
        env=cli_process.environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=write,
        timeout=cli_process.PATIENCE,
        check=False,
    )
    os.close(write)
    assert done.returncode == code


@pytest.mark.parametrize("locale", ["C", "POSIX"])
def test_a_plain_locale_speaks_utf_8(trip: Path, tmp_path: Path, locale: str) -> None:
    env = {**cli_process.environment(tmp_path), "LC_ALL": locale}
    del env["PYTHONIOENCODING"]

    def run(*arguments: str) -> bytes:
        command = [*cli_process.PROGRAM, "sessions", *arguments, "--db", str(trip)]
        return subprocess.run(command, env=env, capture_output=True, timeout=cli_process.PATIENCE, check=True).stdout

    run("title", "other", "漢字 naïve")
    assert "漢字 naïve".encode() in run("list")
    assert "漢字 naïve".encode() in run("show", "漢字 naïve")
    assert "└─".encode() in run("tree")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_output_that_cannot_be_written_is_an_error(trip: Path, tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*cli_process.PROGRAM, "sessions", "list", "--db", trip],
            env=cli_process.environment(tmp_path),
            stdout=full,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            check=False,
        )
    assert cli_process.Run(done.returncode, "", done.stderr).sentence.startswith("holdfast: cannot write the output")
    assert done.returncode == 1


def test_closed_standard_output_is_no_error(trip: Path, tmp_path: Path) -> None:
    command = f"exec {sys.executable} -m holdfast sessions list --db {trip} >&-"
    done = subprocess.run(
        ["sh", "-c", command], env=cli_process.environment(tmp_path), capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_encoding_without_boxes_gets_ascii(holdfast: Holdfast, trip: Path) -> None:
    with SessionDB(trip) as db:
        db.set_session_title("other", "漢字")
    done = holdfast("sessions", "tree", "--db", trip, PYTHONIOENCODING="ascii")
    assert done.code == 0
    assert done.out.isascii()
    assert "`- * " in done.out
    assert "\\u6f22\\u5b57" in done.out


@cli_process.needs_proc
def test_interrupt_is_exit_130_without_a_traceback(tmp_path: Path) -> None:
    process = cli_process.start(tmp_path, "demo", "--rounds", "100")
    polling.until(lambda: len(cli_process.racers(process)) == 6)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=cli_process.PATIENCE)
    assert (process.returncode, out, err) == (130, "", "Interrupted.\n")
    polling.until(lambda: not _anyone_in(process.pid))
    assert list(tmp_path.iterdir()) == []


def _anyone_in(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
