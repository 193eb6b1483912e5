"""What the tests of front ends share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import backends


@pytest.fixture(params=backends.DRIVERS, ids=lambda backend: backend.name)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store, of one database and then of the other."""
    address: str = request.param.target(tmp_path, "store")
    return address


@pytest.fixture(params=backends.SHARED, ids=lambda backend: backend.name)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The same of one that other processes can open, too."""
    address: str = request.param.target(tmp_path, "store")
    return address
