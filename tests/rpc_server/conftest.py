"""Fixtures of the RPC server tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support import agents, backends, rpc_client


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


@pytest.fixture
async def server() -> AsyncIterator[rpc_client.Harness]:
    """A server on a store in memory, with a dictated model."""
    async with agents.store() as db, rpc_client.serve(db) as running:
        yield running


@pytest.fixture
async def client(server: rpc_client.Harness) -> rpc_client.RpcClient:
    return await server.connect()
