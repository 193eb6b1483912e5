"""The program, its settings, and a store with two conversations."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

from holdfast import SessionDB
from tests.support import cli_in_process, cli_process
from tests.support.cli_process import Configure, Holdfast

TRIP, SECOND = "20260528_000000_aaaaaa", "20260528_001000_bbbbbb"
THIRD, BRANCH = "20260528_003000_dddddd", "20260529_ccc"
ALL = {TRIP, BRANCH, "other"}
MCP_SERVER = Path(__file__).parents[1] / "support" / "mcp_raw_server.py"


def conversation_ids(path: Path) -> set[str]:
    with SessionDB(path) as db:
        assert db.admin.fsck().ok
        return {session.conversation_id for session in db.list_sessions()}


@pytest.fixture
def holdfast(tmp_path: Path) -> cli_process.Holdfast:
    """Run the program within this process, with the home `tmp_path`."""

    def run(*arguments: str | Path, piped: bytes | None = None, **env: str) -> cli_process.Run:
        return cli_in_process.run(tmp_path, *arguments, piped=piped, env=env)

    return run


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The data directory of the program."""
    (tmp_path / "data").mkdir(mode=0o700)
    return tmp_path / "data"


@pytest.fixture
def configure(home: Path) -> Configure:
    """Write the user's settings, and return the path of the file."""

    def write(text: str) -> Path:
        (home / "config.toml").write_text(text, "utf-8")
        return home / "config.toml"

    return write


@pytest.fixture
def mcp_settings() -> str:
    """Settings with three MCP servers: one works, one cannot be started, one is disabled."""
    good = f'[mcpServers.good]\ncommand = "{sys.executable}"\nargs = ["-I", "{MCP_SERVER}", "ten"]\n'
    bad = '[mcpServers.bad]\ncommand = "/no/such/program"\n[mcpServers.off]\ncommand = "x"\nenabled = false\n'
    return f"[memory]\nreview = false\n{good}{bad}"


@pytest.fixture
def trip(tmp_path: Path) -> Path:
    """Two conversations: one with two compactions (the second undone), a hidden message and a branch; one ended."""
    path, now = tmp_path / "trip.db", [1_780_000_000.0]

    def pass_minute() -> None:
        now[0] += 60

    with SessionDB(path, clock=lambda: now[0]) as db:
        db.create_session(TRIP, source="cli", title="Trip to Lisbon", folder="/work/trip")
        for number in range(1, 7):
            db.append_message(TRIP, role="user" if number % 2 else "assistant", content=f"message {number}")
            pass_minute()
        db.commit_compaction(db.snapshot(TRIP), summary="They plan a trip.", cut_seq=4, pinned=(2,), child_id=SECOND)
        pass_minute()
        db.append_message(TRIP, role="assistant", tool_calls=[{"id": "c1", "name": "ls", "arguments": {"path": "/"}}])
        db.append_message(TRIP, role="tool", content="etc home", tool_call_id="c1")
        pass_minute()
        db.branch(TRIP, 5, branch_id=BRANCH)
        db.append_message(BRANCH, role="user", content="only in the branch")
        pass_minute()
        db.commit_compaction(db.snapshot(TRIP), summary="Packed.", cut_seq=6, child_id=THIRD)
        db.undo_compaction(TRIP)
        db.hide(TRIP, 6, 6)
        pass_minute()
        db.create_session("other", source="telegram")
        db.append_message("other", role="user", content=[{"type": "text", "text": "hi"}, {"type": "image", "url": "x"}])
        pass_minute()
        db.end_conversation("other", "done")
    return path


@pytest.fixture
def on_trip(holdfast: Holdfast, trip: Path) -> Holdfast:
    """Run a command with the store `trip`."""
    return lambda *arguments, **options: holdfast(*arguments, "--db", trip, **options)


@pytest.fixture
def sessions(on_trip: Holdfast) -> Holdfast:
    """Run a command of `holdfast sessions` with the store `trip`."""
    return partial(on_trip, "sessions")
