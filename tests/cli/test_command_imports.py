"""A command loads what it uses and nothing else: starting up is most of what a short command takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast import SessionDB
from tests.support import cli_commands, cli_process

# Parts that take their time to load, and what of ours stands for an agent or a chat.
HEAVY = {
    "acp",
    "apsw",
    "asyncio",
    "difflib",
    "httpx2",
    "jsonschema",
    "markdown_it",
    "mcp",
    "multiprocessing",
    "prompt_toolkit",
    "psycopg",
    "rich",
    "websockets",
    "sqlite3",
    "ssl",
    "textual",
    "holdfast.agent.agent",
    "holdfast.store.db",
    "holdfast.chat.chat",
}
NOTHING = set[str]()
STORE = {"apsw", "holdfast.store.db"}
# The folders of processes are looked after by what also runs them.
PROCESSES = STORE | {"asyncio", "ssl"}
AGENT = PROCESSES | {"difflib", "holdfast.agent.agent"}


class Use(NamedTuple):
    """How a command is used, and what of all that it may load."""

    arguments: list[str]
    may_load: set[str]
    code: int = 0


USES = {
    "chat": Use(["-p", "hi"], AGENT),
    # Nobody says hello: what answers editors is loaded after that.
    "acp": Use([], {"asyncio", "ssl"}),
    "audit": Use([], STORE),
    "backup": Use(["copy.db"], STORE),
    "completion": Use(["zsh"], NOTHING),
    "config check": Use([], NOTHING),
    "config edit": Use([], NOTHING),
    "config path": Use([], NOTHING),
    "config show": Use([], NOTHING),
    "db copy": Use(["data/holdfast.db", "copy.db"], STORE),
    "db init": Use(["data/holdfast.db"], STORE),
    "db status": Use([], STORE),
    "db scrub": Use([], STORE),
    "demo": Use(["--rounds", "1"], STORE | {"multiprocessing", "sqlite3"}),
    "doctor": Use([], STORE),
    "gateway allow": Use(["telegram", "42"], STORE),
    "gateway deny": Use(["telegram", "42"], STORE),
    "gateway failed": Use([], STORE),
    "gateway pair": Use(["WRONG"], STORE, 1),
    "gateway people": Use([], STORE),
    # Refused before anything is listened at, and after all of it was loaded.
    "gateway run": Use(["--host", "0.0.0.0"], AGENT | {"httpx2", "multiprocessing"}, 1),
    "gateway retry": Use(["1"], STORE, 1),
    "gateway status": Use([], STORE),
    "mcp list": Use([], NOTHING),
    "restore": Use(["copy.db"], STORE, 1),
    "rpc": Use([], AGENT),
    "salvage": Use(["data/holdfast.db", "new.db"], {"apsw"}),
    "tui": Use([], NOTHING, 2),
    "sessions delete": Use(["last", "--yes"], PROCESSES),
    "sessions export": Use(["last"], STORE),
    "sessions import": Use(["none.jsonl"], STORE, 1),
    "sessions list": Use([], STORE),
    "sessions prune": Use(["--older-than", "9999"], STORE),
    "sessions redact": Use(["last", "1", "--yes"], PROCESSES),
    "sessions search": Use(["hello"], STORE),
    "sessions show": Use(["last"], STORE),
    "sessions title": Use(["last", "Named"], STORE),
    "sessions tree": Use([], STORE),
    "tour": Use([], AGENT),
}


def loaded(home: Path, *arguments: str) -> tuple[int, set[str]]:
    """The exit code, and the parts that were loaded when it left."""
    code = f"import sys; sys.argv[1:] = {list(arguments)}\nimport holdfast.cli\n"
    code += "try: holdfast.cli.main()\nexcept SystemExit as left: print(left.code or 0, *sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=cli_process.environment(home, {"HOLDFAST_MODEL": "offline", "EDITOR": "true"}),
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    exit_code, *modules = done.stderr.splitlines()[-1].split()
    return int(exit_code), set(modules) & HEAVY


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with SessionDB(tmp_path / "data" / "holdfast.db") as db:
        db.create_session("talk", source="test", title="Talk")
        db.append_message("talk", role="user", content="hello there")
    return tmp_path


@pytest.mark.parametrize("command", sorted(cli_commands.commands()), ids=" ".join)
def test_each_command_loads_only_what_it_uses(home: Path, command: tuple[str, ...]) -> None:
    use = USES[" ".join(command)]
    code, found = loaded(home, *command, *use.arguments)
    assert code == use.code
    assert found - use.may_load == set()
    # A part that is no longer needed may not be listed either: the next one to come in by it would not be seen.
    assert use.may_load - found == set()


def test_no_use_is_left_of_a_command_that_is_gone() -> None:
    assert set(USES) == {" ".join(command) for command in cli_commands.commands()}


@pytest.mark.parametrize("group", sorted({command[:-1] for command in cli_commands.commands()}), ids=" ".join)
def test_help_loads_none_of_it(tmp_path: Path, group: tuple[str, ...]) -> None:
    assert loaded(tmp_path, *group, "--help") == (0, NOTHING)
