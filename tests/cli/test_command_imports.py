"""A command loads only the modules it uses: loading takes most of the time of a short command."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast import SessionDB
from tests.support import cli_commands, cli_process

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


class Use(NamedTuple):
    """Arguments of a command, the heavy modules it loads, and its exit code."""

    arguments: str
    loads: set[str]
    code: int = 0


USES = {
    "chat": Use("-p hi", AGENT),
    # Without a greeting of the editor: the rest is loaded after it.
    "acp": Use("", {"asyncio", "ssl"}),
    "audit": Use("", STORE),
    "backup": Use("copy.db", STORE),
    "completion": Use("zsh", NOTHING),
    "config check": Use("", NOTHING),
    "config edit": Use("", NOTHING),
    "config path": Use("", NOTHING),
    "config show": Use("", NOTHING),
    "db copy": Use("data/holdfast.db copy.db", STORE),
    "db init": Use("data/holdfast.db", STORE),
    "db status": Use("", STORE),
    "db scrub": Use("", STORE),
    "demo": Use("--rounds 1", STORE | {"multiprocessing", "sqlite3"}),
    "doctor": Use("", STORE),
    "gateway allow": Use("telegram 42", STORE),
    "gateway deny": Use("telegram 42", STORE),
    "gateway failed": Use("", STORE),
    "gateway pair": Use("WRONG", STORE, 1),
    "gateway people": Use("", STORE),
    # Refused after everything was loaded, before it listens.
    "gateway run": Use("--host 0.0.0.0", AGENT | {"httpx2", "multiprocessing"}, 1),
    "gateway retry": Use("1", STORE, 1),
    "gateway status": Use("", STORE),
    "mcp list": Use("", NOTHING),
    "restore": Use("copy.db", STORE, 1),
    "rpc": Use("", AGENT),
    "salvage": Use("data/holdfast.db new.db", {"apsw"}),
    "tui": Use("", NOTHING, 2),
    "sessions delete": Use("last --yes", PROCESSES),
    "sessions export": Use("last", STORE),
    "sessions import": Use("none.jsonl", STORE, 1),
    "sessions list": Use("", STORE),
    "sessions prune": Use("--older-than 9999", STORE),
    "sessions redact": Use("last 1 --yes", PROCESSES),
    "sessions search": Use("hello", STORE),
    "sessions show": Use("last", STORE),
    "sessions title": Use("last Named", STORE),
    "sessions tree": Use("", STORE),
    "tour": Use("", AGENT),
}
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


@pytest.mark.parametrize("command", sorted(cli_commands.commands()), ids=" ".join)
def test_command_loads_only_what_it_uses(tmp_path: Path, command: tuple[str, ...]) -> None:
    with SessionDB(tmp_path / "data" / "holdfast.db") as db:
        db.create_session("talk", source="test", title="Talk")
        db.append_message("talk", role="user", content="hello there")
    arguments, expected, exit_code = USES[" ".join(command)]
    code, modules = loaded_modules(tmp_path, *command, *arguments.split())
    assert (code, modules & HEAVY) == (exit_code, expected)
    others = {"holdfast.cli.demo", "holdfast.cli.sessions_tree"} - {f"holdfast.cli.{'_'.join(command)}"}
    assert not modules & others


def test_every_use_is_of_an_existing_command() -> None:
    assert set(USES) == {" ".join(command) for command in cli_commands.commands()}


@pytest.mark.parametrize("group", sorted({command[:-1] for command in cli_commands.commands()}), ids=" ".join)
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
