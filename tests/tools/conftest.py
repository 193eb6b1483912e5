"""Fixtures for tests that start processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support import processes


@pytest.fixture
async def program(leash: processes.Leash, tmp_path: Path) -> AsyncIterator[processes.BackgroundProgram]:
    """A program with background processes, which are stopped at the end."""
    made = processes.BackgroundProgram(leash, tmp_path)
    yield made
    for process in await made.records.every(None, True):
        await made.processes.stop(process)


@pytest.fixture
def temporary_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, used by this test only."""
    folder = tmp_path_factory.mktemp("tmp")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder
