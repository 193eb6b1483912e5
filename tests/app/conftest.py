"""Fixtures of the tests of the whole program."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import config


@pytest.fixture
def settings(tmp_path: Path) -> config.Settings:
    """The settings of a program whose home is the test's folder, with the offline model."""
    return config.Settings(
        home=str(tmp_path),
        database=str(tmp_path / "store.db"),
        colour=False,
        columns=None,
        model="offline",
        backup=config.BackupSection(folder=str(tmp_path / "copies")),
    )
