"""Fixtures of the store tests: stores in files, and a PostgreSQL store that two hosts have open."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import SessionDB, fault_points
from tests.support import conversations, postgres, two_hosts


class Killed(BaseException):
    """Raised at a fault point in place of a kill of the process: no code handles it."""


@contextlib.contextmanager
def killed_at(point: str, times: int = 1) -> Iterator[None]:
    """Stop the block when it reaches a fault point for the given time; fail if it does not."""
    reached: list[str] = []

    def kill(name: str) -> None:
        reached.append(name)
        if reached.count(point) == times:
            raise Killed

    fault_points.hook = kill
    try:
        with pytest.raises(Killed):
            yield
    finally:
        fault_points.hook = None


def call_in_fork(call: Callable[[], str]) -> str:
    """Return the result of a call in a forked child that has ended and was reaped."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, call().encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        result = file.read()
    os.waitpid(child, 0)
    return result


@pytest.fixture
def pair() -> Iterator[two_hosts.Pair]:
    both = two_hosts.Pair(postgres.fresh())
    yield both
    both.close()


@pytest.fixture
def address() -> str:
    """The address of an empty PostgreSQL store."""
    return postgres.fresh()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def clock() -> conversations.Clock:
    return conversations.Clock()


@pytest.fixture
def open_db(tmp_path: Path, clock: conversations.Clock) -> Iterator[Callable[..., SessionDB]]:
    """Opens a store by its name in the test's folder; every one is checked and closed after the test."""
    opened: list[SessionDB] = []

    def make(name: str = "store.db") -> SessionDB:
        target = tmp_path / name
        if name != ":memory:":
            target.parent.mkdir(mode=0o700, exist_ok=True)
        opened.append(SessionDB(name if name == ":memory:" else target, clock=clock, durability="process-crash"))
        return opened[-1]

    yield make
    for db in opened:
        assert db.admin.fsck().ok
        db.close()


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The fault points that writes have reached."""
    reached: list[str] = []
    monkeypatch.setattr(fault_points, "hook", reached.append)
    return reached
