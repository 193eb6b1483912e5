"""Start MCP servers for a test and call their tools."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from holdfast.tools import base
from holdfast.tools.mcp import servers, settings

HERE = Path(__file__).parent
PATIENCE = 60.0


def raw(mode: str = "plain", file: Path | None = None, **given: Any) -> settings.ServerConfig:
    """Return the settings of `mcp_raw_server.py` in one of its modes."""
    args = ("-I", str(HERE / "mcp_raw_server.py"), mode, *([str(file)] if file else []))
    wanted = settings.ServerConfig(name="raw", command=sys.executable, args=args, timeout=30.0)
    return msgspec.structs.replace(wanted, **given)


@asynccontextmanager
async def running(
    *wanted: settings.ServerConfig, folder: Path = HERE, **given: Any
) -> AsyncIterator[servers.McpServers]:
    options = {"patience": PATIENCE, "backoff": (0.0,), **given}
    async with servers.McpServers(wanted, str(folder), **options) as started:
        yield started


async def call(started: servers.McpServers, name: str, shown: list[str] | None = None, **arguments: Any) -> Any:
    """Call a tool with approval and return its result; progress is appended to `shown`."""
    plan = await (await tools(started))[name].run(arguments)
    assert isinstance(plan, base.Plan)
    with base.calling(base.Calling("call", say=[].append if shown is None else shown.append)):
        return await plan.go()


async def tools(started: servers.McpServers) -> dict[str, base.Tool]:
    return {tool.spec.name: tool for tool in (await started.offer()).tools}
