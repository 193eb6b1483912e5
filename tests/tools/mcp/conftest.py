"""Servers of the Model Context Protocol for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast.tools.mcp import servers
from tests.support import mcp_servers


@pytest.fixture(scope="module")
async def shared() -> AsyncIterator[servers.McpServers]:
    """The same server for all tests of a module that leave it as it is."""
    async with mcp_servers.running(mcp_servers.raw()) as started:
        await started.offer()
        yield started
