"""`holdfast mcp`: the MCP servers of the settings."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from holdfast import config, safe_text
from holdfast.cli import console, lazy_group

if TYPE_CHECKING:
    from holdfast.tools.mcp import servers

COMMANDS = {"list": ("holdfast.cli.mcp:list_", "Start each MCP server, and list its tools.")}
command = lazy_group.group("Check the MCP servers of your settings.", COMMANDS)


@click.command(name="list")
@lazy_group.as_json
@click.pass_obj
def list_(out: console.Console, as_json: bool) -> None:
    """Start each server of `mcpServers`, and show its state and its tools."""
    found = _start_servers(out.settings) if out.settings.servers else []
    if as_json:
        out.json({"servers": [_to_json(each) for each in found]})
        return
    rows = [
        (safe_text.safe(each.name), _state(each), f"{len(each.offers.tools)} tools", safe_text.safe(each.why))
        for each in found
    ]
    out.table(rows, right=(2,))
    if not found:
        out.note("There are no MCP servers. Add one to your settings as `[mcpServers.NAME]`.")


def _state(each: servers.McpServer) -> str:
    return "ready" if each.state == "ready" else "down"


def _to_json(each: servers.McpServer) -> dict[str, object]:
    return {
        "name": each.name,
        "state": _state(each),
        "why": each.why or None,
        "tools": [tool.spec.name for tool in each.offers.tools],
        "prompts": [prompt.name for prompt in each.offers.prompts],
        "left_out": list(each.offers.left_out),
    }


def _start_servers(settings: config.Settings) -> list[servers.McpServer]:
    module = lazy_group.load("holdfast.tools.mcp.servers")
    started = module.McpServers(settings.servers, os.getcwd())

    async def start() -> list[servers.McpServer]:
        """Return the servers in the state they had before they were stopped again."""
        async with started:
            await started.wait_started(module.START_TIMEOUT_SECONDS + 5)
            states = [(each, each.state, each.why) for each in started.servers]
        for each, state, why in states:
            each.state, each.why = state, why
        return list(started.servers)

    found: list[servers.McpServer] = lazy_group.load("asyncio").run(start())
    return found
