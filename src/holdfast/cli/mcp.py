"""`holdfast mcp`: the servers of tools that settings name, and whether they are there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from holdfast import config, safe_text
from holdfast.cli import console, lazy_group

if TYPE_CHECKING:
    from holdfast.tools.mcp import server

COMMANDS = {"list": ("holdfast.cli.mcp:list_", "Start each server, and say what it offers.")}


@click.group(cls=lazy_group.LazyGroup, commands_in=COMMANDS)
@click.pass_context
def command(context: click.Context) -> None:
    """Look at the servers of tools."""
    lazy_group.help_when_alone(context)


@click.command(name="list")
@lazy_group.as_json
@click.pass_obj
def list_(out: console.Console, as_json: bool) -> None:
    """Start each server of `mcpServers`, and say whether it is there and what it offers."""
    found = _found(out.settings) if out.settings.servers else []
    if as_json:
        out.json({"servers": [_shape(each) for each in found]})
        return
    width = max((safe_text.cells(safe_text.safe(each.name)) for each in found), default=0)
    for each in found:
        shape = _shape(each)
        said = f"{shape['state']:7}  {len(each.offers.tools):>3} tools  {safe_text.safe(each.why)}"
        out.print(out.clipped(f"{safe_text.padded(safe_text.safe(each.name), width)}  {said}".rstrip(), out.width))
    if not found:
        out.note("There are no servers of tools. `[mcpServers.NAME]` in the settings names one.")


def _shape(each: server.Server) -> dict[str, object]:
    return {
        "name": each.name,
        "state": "ready" if each.state == "ready" else "down",
        "why": each.why or None,
        "tools": [tool.spec.name for tool in each.offers.tools],
        "prompts": [prompt.name for prompt in each.offers.prompts],
        "left_out": list(each.offers.left_out),
    }


def _found(settings: config.Settings) -> list[server.Server]:
    servers, port = lazy_group.load("holdfast.tools.mcp.servers"), lazy_group.load("holdfast.tools.mcp.server")
    all_of_them = servers.Servers(settings.servers, os.getcwd())

    async def tried() -> list[server.Server]:
        """Each as it was before it was ended again."""
        async with all_of_them:
            await all_of_them.tried(port.STARTING + 5)
            states = [(each, each.state, each.why) for each in all_of_them.servers]
        for each, state, why in states:
            each.state, each.why = state, why
        return list(all_of_them.servers)

    found: list[server.Server] = lazy_group.load("asyncio").run(tried())
    return found
