"""Fixtures of the RPC server tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import backends


@pytest.fixture(params=backends.DRIVERS, ids=lambda backend: backend.name)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store of each database driver."""
    address: str = request.param.target(tmp_path, "store")
    return address


@pytest.fixture(params=backends.SHARED, ids=lambda backend: backend.name)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store that other processes can open, too."""
    address: str = request.param.target(tmp_path, "store")
    return address
