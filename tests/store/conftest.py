"""Fixtures of the store tests: stores in files, and a PostgreSQL store that two hosts have open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import SessionDB, fault_points
from tests.support import conversations, postgres, two_hosts


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
