"""Composition of the RPC server for custom clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import holdfast
from holdfast import config
from holdfast.app import compose
from holdfast.rpc import frames, line_transport, peer
from holdfast.rpc_server import server

DRAIN_SECONDS = 600.0
"""Seconds that requests and turns may take after the end of the input, so that `printf ... | holdfast rpc` is answered.
A client that reads no more is disconnected at once."""


@asynccontextmanager
async def open_server(
    settings: config.Settings, *, database: str | None = None, model: str | None = None
) -> AsyncIterator[server.RpcServer]:
    """Open a server; its sessions are closed at the end of the block."""
    async with (
        compose.start(settings, database=database, model=model, source="rpc") as started,
        server.RpcServer(
            started.runtime,
            program=f"Holdfast {holdfast.__version__}",
            model=started.model,
            notice=started.notice,
        ) as opened,
    ):
        yield opened


async def serve_lines(opened: server.RpcServer, stdio: line_transport.Stdio) -> None:
    """Serve one client by lines until it disconnects. Raises OSError if the output cannot be written."""
    limits = frames.FrameLimits(drain_seconds=DRAIN_SECONDS)
    async with line_transport.open_lines(stdio.reads, stdio.writes, limits.max_bytes) as channel:
        await opened.serve(peer.Peer(channel, opened.methods(), limits))
    if channel.failed is not None:
        raise channel.failed


async def serve_channel(opened: server.RpcServer, channel: peer.Channel) -> None:
    """Serve one client over a channel until it disconnects."""
    await opened.serve(peer.Peer(channel, opened.methods()))
