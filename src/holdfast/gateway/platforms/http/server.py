"""Run the HTTP server: uvicorn, on this machine only unless clients have to authenticate.

uvicorn limits the number of connections, the size of a request's head and idle keep-alive connections. It does not
limit how slowly a client sends a request's head: a gateway that other machines reach belongs behind a reverse proxy.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.types import ASGIApp

from holdfast import errors
from holdfast.gateway.platforms.http import requests

MAX_HEAD_BYTES = 24 * 1024
"""The largest request line with headers."""
KEEP_ALIVE_SECONDS = 30
"""How long an idle connection stays open after a response."""
MAX_CONNECTIONS = 1_000
"""Concurrent connections; further requests are answered with status 503."""
BACKLOG = 128
MAX_OPEN_FILES = 65_536
SHUTDOWN_SECONDS = 5
"""How long running responses may take after the server was asked to stop."""
POLL_SECONDS = 0.001


def connection_limit(wanted: int = MAX_CONNECTIONS) -> int:
    """Return how many connections to accept, so that file descriptors are left for the store."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft // 2))


def raise_file_limit(wanted: int = MAX_OPEN_FILES) -> None:
    """Raise the limit of open files to `wanted`, or to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


class HttpServer(uvicorn.Server):
    """A uvicorn server that leaves signals to the program."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def bind(host: str, port: int, has_tokens: bool, share: bool = False) -> socket.socket:
    """Return a listening socket.

    Raises SettingInvalid if the address is not one of this machine, or if other machines could reach it and no token is
    set; HoldfastError if the port is in use, which may end.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise errors.SettingInvalid(
            f"gateway.http.host: {errors.quote(host)} is not an address of this machine."
        ) from None
    family, kind, proto, _, address = found[0]
    if (not host or not requests.is_loopback(str(address[0]))) and not has_tokens:
        raise errors.SettingInvalid(
            f"gateway.http.host: other machines could use the agent at {errors.quote(host)} without a token. "
            'Set a token ([gateway.http.tokens], ann = "ANN_TOKEN"), or listen at 127.0.0.1.'
        )
    listening = socket.socket(family, kind, proto)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if share:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind(address)
        listening.listen(socket.SOMAXCONN)
    except OSError as error:
        listening.close()
        raise errors.HoldfastError(
            f"gateway.http: cannot listen at {host} port {port}: {error.strerror}. Is a gateway running already?"
        ) from None
    listening.setblocking(False)
    return listening


@asynccontextmanager
async def serve(app: ASGIApp, listening: socket.socket) -> AsyncIterator[Callable[[], None]]:
    """Serve requests until the end of the block; yield a function that stops accepting connections."""
    server = HttpServer(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            # A client could send forged forwarding headers.
            proxy_headers=False,
            server_header=False,
            limit_concurrency=connection_limit(),
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        )
    )
    task = asyncio.create_task(server.serve([listening]))

    def stop_listening() -> None:
        for each in getattr(server, "servers", ()):
            each.close()

    try:
        while not server.started and not task.done():
            await asyncio.sleep(POLL_SECONDS)
        yield stop_listening
    finally:
        server.should_exit = True
        await asyncio.wait([task])
        listening.close()
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
