"""Fixtures of the contract suite: a database, a clock that only the test moves, another process.

Every database that a test did not damage on purpose is checked by fsck when the test is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import SessionDB
from holdfast.store import points
from tests.contract import backends, steps

MakeDb = Callable[..., SessionDB]


def _opener(backend: backends.SqliteFile | backends.SqliteMemory, folder: Path, clock: steps.Clock) -> Iterator[MakeDb]:
    opened: list[SessionDB] = []

    def make(name: str = "store", **options: object) -> SessionDB:
        opened.append(backends.open_db(backend, folder, name, options.pop("clock", clock), **options))
        return opened[-1]

    yield make
    for db in opened:
        if not db.driver._closed:
            report = None if db in backends.spoiled else db.fsck()
            db.close()
            assert report is None or report.ok, report


@pytest.fixture
def clock() -> steps.Clock:
    return steps.Clock()


@pytest.fixture(params=backends.SHARED, ids=lambda backend: backend.name)
def make_db(request: pytest.FixtureRequest, tmp_path: Path, clock: steps.Clock) -> Iterator[MakeDb]:
    """Opens a database; the same name opens the same one again, as another process would."""
    yield from _opener(request.param, tmp_path, clock)


@pytest.fixture(params=backends.EVERY, ids=lambda backend: backend.name)
def db(request: pytest.FixtureRequest, tmp_path: Path, clock: steps.Clock) -> Iterator[SessionDB]:
    for make in _opener(request.param, tmp_path, clock):
        yield make()


@pytest.fixture
def at_point(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], None]], None]:
    """Sets what is called at the named points of every write."""
    return lambda hook: monkeypatch.setattr(points, "hook", hook)
