"""Fixtures of the contract suite: databases that are checked by fsck after the test, a settable clock, fault points."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import SessionDB, fault_points
from tests.support import backends, consistency, conversations


def _open_and_check(
    backend: backends.Backend, folder: Path, clock: conversations.Clock
) -> Iterator[Callable[..., SessionDB]]:
    opened: list[tuple[str, SessionDB]] = []

    def make(name: str = "store", **options: object) -> SessionDB:
        db = backends.open_db(backend, folder, name, options.pop("clock", clock), **options)
        opened.append((f"{name} {len(opened)}" if backend is backends.MEMORY else name, db))
        return db

    yield make
    left = {name: db for name, db in opened if not db.driver._closed and db not in backends.spoiled}
    reports = [consistency.report(db) for db in left.values()]  # a store that was opened twice is checked once
    for _, db in opened:
        db.close()
    assert not any(reports), reports


@pytest.fixture
def clock() -> conversations.Clock:
    return conversations.Clock()


@pytest.fixture(params=backends.SHARED, ids=lambda backend: backend.name)
def make_db(
    request: pytest.FixtureRequest, tmp_path: Path, clock: conversations.Clock
) -> Iterator[Callable[..., SessionDB]]:
    """Open a database; the same name opens the same one again, as another process would."""
    yield from _open_and_check(request.param, tmp_path, clock)


@pytest.fixture
def make_file_db(tmp_path: Path, clock: conversations.Clock) -> Iterator[Callable[..., SessionDB]]:
    """Open a SQLite file."""
    yield from _open_and_check(backends.FILE, tmp_path, clock)


@pytest.fixture(params=backends.DRIVERS, ids=lambda backend: backend.name)
def db(request: pytest.FixtureRequest, tmp_path: Path, clock: conversations.Clock) -> Iterator[SessionDB]:
    """An empty store in memory and in PostgreSQL; `backends.on_memory` and `backends.on_files` choose others."""
    for make in _open_and_check(request.param, tmp_path, clock):
        yield make()


@pytest.fixture
def at_point(monkeypatch: pytest.MonkeyPatch) -> backends.AtPoint:
    """Set the function that is called at the named points of every write."""
    return lambda hook: monkeypatch.setattr(fault_points, "hook", hook)
