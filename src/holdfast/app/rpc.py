"""The server for front ends of their own, with the store, the model and the agents of this program under it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import holdfast
from holdfast import config
from holdfast.app import compose
from holdfast.rpc import frames, line_transport, peer, stdio
from holdfast.rpc_server import server

ENDING = 600.0
"""Seconds that what was asked may still take when the input has ended: `printf ... | holdfast rpc` is answered, turns
and all. Whoever reads no more is gone at once."""


@asynccontextmanager
async def served(
    settings: config.Settings, *, database: str | None = None, model: str | None = None
) -> AsyncIterator[server.Server]:
    """A server; at the end of the block its sessions are closed."""
    async with (
        compose.start(settings, database=database, model=model, source="rpc") as started,
        server.Server(
            started.runtime,
            program=f"Holdfast {holdfast.__version__}",
            model=started.model,
            notice=started.notice,
        ) as opened,
    ):
        yield opened


async def by_lines(opened: server.Server, kept: stdio.Kept) -> None:
    """Serve one client by lines on these descriptors, until it is gone. Raises OSError where they cannot be written."""
    limits = frames.Limits(ending=ENDING)
    async with line_transport.opened(kept.reads, kept.writes, limits.size) as channel:
        await opened.attend(peer.Peer(channel, opened.methods(), limits))
    if channel.failed is not None:
        raise channel.failed


async def attended(opened: server.Server, channel: peer.Channel) -> None:
    """Serve a client by whatever carries its frames, until it is gone."""
    await opened.attend(peer.Peer(channel, opened.methods()))
