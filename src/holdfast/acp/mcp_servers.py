"""The servers of tools an editor brings to a session: started with it, ended with it, and seen by no other.

They stand beside those of the settings and are spoken to like them: each call needs a permission, and one that cannot
be had is told of at the next turn and keeps nothing from going on.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import assert_never

import msgspec
from acp import schema

from holdfast.tools.mcp import names as mcp_names
from holdfast.tools.mcp import servers, settings

logger = logging.getLogger("holdfast.acp")

PATIENCE = 20.0
"""Seconds after the start in which the first turn waits for servers that an editor brought: many are fetched first."""

Given = schema.HttpMcpServer | schema.SseMcpServer | schema.AcpMcpServer | schema.McpServerStdio


@asynccontextmanager
async def opened(
    given: Sequence[Given] | None, cwd: str | os.PathLike[str], own: Sequence[settings.Wanted] = ()
) -> AsyncIterator[servers.Servers | None]:
    """The servers of the settings and those of the editor, in the folder of a session; None where there are none."""
    brought = wanted(given or (), own)
    if not own and not brought:
        yield None
        return
    patience = PATIENCE if brought else servers.PATIENCE
    async with servers.Servers([*own, *brought], os.fspath(cwd), patience=patience) as started:
        yield started


def wanted(given: Sequence[Given], own: Sequence[settings.Wanted] = ()) -> list[settings.Wanted]:
    """The servers as ours are described, but for those that we have already. No two have the same name."""
    names = {mcp_names.prefix(each.name) for each in own}
    kept = {_what(each) for each in own}
    return [
        msgspec.structs.replace(each, name=_free(each.name, names))
        for each in _described(given)
        if _what(each) not in kept
    ]


def _described(given: Sequence[Given]) -> Iterator[settings.Wanted]:
    for each in given:
        match each:
            case schema.McpServerStdio(name=name, command=command, args=args):
                put = {one.name: one.value for one in each.env}
                yield settings.Wanted(name=name, command=command, args=tuple(args), env=put, given=tuple(put.items()))
            case schema.HttpMcpServer(name=name, url=url) | schema.SseMcpServer(name=name, url=url):
                sent, sse = {one.name: one.value for one in each.headers}, isinstance(each, schema.SseMcpServer)
                yield settings.Wanted(name=name, url=url, sse=sse, headers=sent, given=tuple(sent.items()))
            case schema.AcpMcpServer():
                # Nobody was told that this can be done.
                logger.warning("the MCP server %s is to be spoken to through the editor; it is left out", each.name)
            case _:
                assert_never(each)


def _what(each: settings.Wanted) -> tuple[object, ...]:
    """What makes it this server and no other, whatever it is called."""
    return each.command, each.args, frozenset(each.env.items()), each.url, frozenset(each.headers.items())


def _free(name: str, names: set[str]) -> str:
    """The name, or the same with a number where it is taken."""
    # Tools are told apart by what a name becomes in front of theirs.
    number, free = 1, name
    while mcp_names.prefix(free) in names:
        number += 1
        free = f"{name}-{number}"
    names.add(mcp_names.prefix(free))
    return free
