"""Fixtures of the fault tests: a zygote per worker, and a folder in memory per test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.store.postgres import connection
from tests.faults import zygote as zygotes
from tests.support import memory_folders


@pytest.fixture(scope="session")
def zygote() -> Iterator[zygotes.Zygote]:
    with zygotes.start() as running:
        yield running


@pytest.fixture
def place() -> Iterator[Path]:
    with memory_folders.folder() as made:
        yield Path(made)


@pytest.fixture
def quick_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent PostgreSQL server is given up after little more than three seconds."""
    monkeypatch.setattr(connection, "PROBE_AFTER", 0.3)
    monkeypatch.setattr(connection, "PROBE_TIMEOUT", 2)  # libpq's shortest connect_timeout
