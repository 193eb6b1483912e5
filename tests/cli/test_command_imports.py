"""A command loads only the modules it uses: loading takes most of the time of a short command."""

from __future__ import annotations

from pathlib import Path

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


# The heavy modules of commands, their exit code, and the commands with arguments.
USES = [
    (NOTHING, 0, ["completion zsh", "config check", "config edit", "config path", "config show", "mcp list"]),
    (NOTHING, 2, ["tui"]),
    # Without a greeting of the editor: the rest is loaded after it.
    ({"asyncio", "ssl"}, 0, ["acp"]),
    ({"apsw"}, 0, ["salvage data/holdfast.db new.db"]),
    (STORE, 0, ["audit", "backup copy.db", "db copy data/holdfast.db copy.db", "db init data/holdfast.db"]),
    (STORE, 0, ["db status", "db scrub", "doctor", "gateway allow telegram 42", "gateway deny telegram 42"]),
    (STORE, 0, ["gateway failed", "gateway people", "gateway status", "sessions export last", "sessions list"]),
    (STORE, 0, ["sessions prune --older-than 9999", "sessions search hello", "sessions show last"]),
    (STORE, 0, ["sessions title last Named", "sessions tree"]),
    (STORE, 1, ["gateway pair WRONG", "gateway retry 1", "restore copy.db", "sessions import none.jsonl"]),
    (STORE | {"multiprocessing", "sqlite3"}, 0, ["demo --rounds 1"]),
    (PROCESSES, 0, ["sessions delete last --yes", "sessions redact last 1 --yes"]),
    (AGENT, 0, ["chat -p hi", "rpc", "tour"]),
    # Refused after everything was loaded, before it listens.
    (AGENT | {"httpx2", "multiprocessing"}, 1, ["gateway run --host 0.0.0.0"]),
]
CASES = [(words, modules, code) for modules, code, group in USES for words in group]
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
def test_command_loads_only_what_it_uses(tmp_path: Path, words: str, expected: set[str], exit_code: int) -> None:
    with SessionDB(tmp_path / "data" / "holdfast.db") as db:
        db.create_session("talk", source="test", title="Talk")
        db.append_message("talk", role="user", content="hello there")
    code, modules = loaded_modules(tmp_path, *words.split())
    assert (code, modules & HEAVY) == (exit_code, expected)
    assert not modules & {"holdfast.cli.demo", "holdfast.cli.sessions_tree"} or words.rsplit(maxsplit=1)[-1] in (
        "1",
        "tree",
    )


def test_every_command_has_a_case() -> None:
    commands = [" ".join(command) for command in cli_commands.commands()]
    assert sorted(commands) == sorted(
        max((c for c in commands if words.startswith(c)), key=len) for words, _, _ in CASES
    )


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
