"""Servers for a test: started, asked, and ended with nothing left."""

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
    """The server made by hand, in one of its moods."""
    args = ("-I", str(HERE / "mcp_raw_server.py"), mode, *([str(file)] if file else []))
    wanted = settings.ServerConfig(name="raw", command=sys.executable, args=args, timeout=30.0)
    return msgspec.structs.replace(wanted, **given)


@asynccontextmanager
async def running(
    *wanted: settings.ServerConfig, folder: Path = HERE, **given: Any
) -> AsyncIterator[servers.McpServers]:
    options = {"patience": PATIENCE, "backoff": (0.0,), **given}
    async with servers.McpServers(wanted, str(folder), **options) as all_of_them:
        yield all_of_them


async def call(all_of_them: servers.McpServers, name: str, heard: list[str] | None = None, **arguments: Any) -> Any:
    """What a tool answers when it may do what it wants to."""
    plan = await (await tools(all_of_them))[name].run(arguments)
    assert isinstance(plan, base.Plan)
    with base.calling(base.Calling("call", say=[].append if heard is None else heard.append)):
        return await plan.go()


async def tools(all_of_them: servers.McpServers) -> dict[str, base.Tool]:
    return {tool.spec.name: tool for tool in (await all_of_them.offer()).tools}
