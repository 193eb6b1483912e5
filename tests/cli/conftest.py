"""A store with something in it, and the program to look at it with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import SessionDB
from tests.support import cli_process, cli_zygote

TRIP, SECOND, THIRD, BRANCH = (
    "20260528_000000_aaaaaa",
    "20260528_001000_bbbbbb",
    "20260528_003000_dddddd",
    "20260529_ccc",
)


@pytest.fixture(scope="session")
def waiting() -> Iterator[cli_zygote.Server]:
    with cli_zygote.Server() as server:
        yield server


@pytest.fixture(scope="session")
def asking() -> Iterator[cli_zygote.Server]:
    """One that has loaded what it takes to ask a provider, too."""
    with cli_zygote.Server("holdfast.model.openai.adapter") as server:
        yield server


@pytest.fixture
def holdfast(tmp_path: Path, waiting: cli_zygote.Server) -> Callable[..., cli_process.Run]:
    def run(*arguments: str | Path, **env: str) -> cli_process.Run:
        return waiting.run(tmp_path, *arguments, env=env)

    return run


class Clock:
    """A minute passes when the test says so, however often anyone looks."""

    def __init__(self) -> None:
        self.now = 1_780_000_000.0

    def __call__(self) -> float:
        return self.now

    def minute(self) -> None:
        self.now += 60


@pytest.fixture
def trip(tmp_path: Path) -> Path:
    """Two conversations: one with two compactions (the second undone), a hidden message and a branch; one ended."""
    path, clock = tmp_path / "trip.db", Clock()
    with SessionDB(path, clock=clock) as db:
        db.create_session(TRIP, source="cli", title="Trip to Lisbon", folder="/work/trip")
        for number in range(1, 7):
            db.append_message(TRIP, role="user" if number % 2 else "assistant", content=f"message {number}")
            clock.minute()
        db.commit_compaction(db.snapshot(TRIP), summary="They plan a trip.", cut_seq=4, pinned=(2,), child_id=SECOND)
        clock.minute()
        db.append_message(TRIP, role="assistant", tool_calls=[{"id": "c1", "name": "ls", "arguments": {"path": "/"}}])
        db.append_message(TRIP, role="tool", content="etc home", tool_call_id="c1")
        clock.minute()
        db.branch(TRIP, 5, branch_id=BRANCH)
        db.append_message(BRANCH, role="user", content="only in the branch")
        clock.minute()
        db.commit_compaction(db.snapshot(TRIP), summary="Packed.", cut_seq=6, child_id=THIRD)
        db.undo_compaction(TRIP)
        db.hide(TRIP, 6, 6)
        clock.minute()
        db.create_session("other", source="telegram")
        db.append_message("other", role="user", content=[{"type": "text", "text": "hi"}, {"type": "image", "url": "x"}])
        clock.minute()
        db.end_conversation("other", "done")
    return path
