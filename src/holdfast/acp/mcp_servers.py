"""The MCP servers that an editor provides for a session: started and stopped with it, invisible to other sessions.

They are used like those of the settings: each call needs a permission, and a server that cannot be started is reported
with the next turn.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import assert_never

import msgspec
from acp import schema

from holdfast import errors
from holdfast.tools.mcp import names as mcp_names
from holdfast.tools.mcp import servers, settings

logger = logging.getLogger("holdfast.acp")

START_SECONDS = 20.0
"""Seconds that the first turn waits for servers of the editor: many are downloaded first."""

EditorMcpServer = schema.HttpMcpServer | schema.SseMcpServer | schema.AcpMcpServer | schema.McpServerStdio


@asynccontextmanager
async def open_servers(
    given: Sequence[EditorMcpServer] | None,
    cwd: str | os.PathLike[str],
    configured: Sequence[settings.ServerConfig] = (),
) -> AsyncIterator[servers.McpServers | None]:
    """Start the servers of the settings and of the editor for a session; None if there are none."""
    provided = convert_servers(given or (), configured)
    if not configured and not provided:
        yield None
        return
    patience = START_SECONDS if provided else servers.FIRST_TURN_SECONDS
    async with servers.McpServers([*configured, *provided], os.fspath(cwd), patience=patience) as started:
        yield started


def convert_servers(
    given: Sequence[EditorMcpServer], configured: Sequence[settings.ServerConfig] = ()
) -> list[settings.ServerConfig]:
    """Convert the servers of the editor, without those that are configured already, under unique names."""
    names = {mcp_names.prefix(each.name) for each in configured}
    known = {_identity(each) for each in configured}
    return [
        msgspec.structs.replace(each, name=_unique(each.name, names))
        for each in _convert(given)
        if _identity(each) not in known
    ]


def describe_ignored(given: Sequence[EditorMcpServer]) -> list[str]:
    """Return a warning for each server of the editor that cannot be used."""
    ignored = [each.name for each in given if isinstance(each, schema.AcpMcpServer)]
    return [f"MCP server {errors.quote(name)} is ignored: the ACP transport is not supported." for name in ignored]


def _convert(given: Sequence[EditorMcpServer]) -> Iterator[settings.ServerConfig]:
    for each in given:
        match each:
            case schema.McpServerStdio(name=name, command=command, args=args):
                env = {one.name: one.value for one in each.env}
                yield settings.ServerConfig(
                    name=name, command=command, args=tuple(args), env=env, given=tuple(env.items())
                )
            case schema.HttpMcpServer(name=name, url=url) | schema.SseMcpServer(name=name, url=url):
                headers, sse = {one.name: one.value for one in each.headers}, isinstance(each, schema.SseMcpServer)
                yield settings.ServerConfig(name=name, url=url, sse=sse, headers=headers, given=tuple(headers.items()))
            case schema.AcpMcpServer():
                logger.warning("MCP server %s is ignored: the ACP transport is not supported", each.name)
            case _:
                assert_never(each)


def _identity(each: settings.ServerConfig) -> tuple[object, ...]:
    """Return what makes two servers the same, whatever their names."""
    return each.command, each.args, frozenset(each.env.items()), each.url, frozenset(each.headers.items())


def _unique(name: str, names: set[str]) -> str:
    """Return the name, with a number if its tools would have the same prefix as those of another server."""
    number, unique = 1, name
    while mcp_names.prefix(unique) in names:
        number += 1
        unique = f"{name}-{number}"
    names.add(mcp_names.prefix(unique))
    return unique
