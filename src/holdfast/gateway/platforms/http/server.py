"""The server that has the connections: uvicorn, bound to this machine unless somebody has to say who they are."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast import errors
from holdfast.gateway.platforms.http import requests

HEADERS = 15.0
"""Seconds a client may take for the head of a request."""
IDLE = 30
"""Seconds a connection is kept that nobody asks anything by."""
CONNECTIONS = 1_000
"""Connections at once. Above it the one that has been idle longest makes room, and where none is, the new one is
closed unread: a connection that is only answered with a refusal would still take a descriptor."""
OF_ONE = 250
"""Of those, from one address of another machine; a proxy on this one speaks for many."""
AT_ONCE = 128
"""Connections that are accepted before anybody looks at one of them."""
FILES = 65_536
"""As many files as a gateway wants to have open at most."""
SOON = 0.001
LEAVING = 5
"""Seconds that what is being answered may still take when the server stops."""


class Patient(H11Protocol):
    """Patient, but not for ever: a connection that does not come to the end of a request's head is closed."""

    _waits: asyncio.TimerHandle | None = None
    _quiet_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._quiet_since = self.loop.time()
        if self._has_room():
            self._look()
        else:
            transport.abort()

    def _has_room(self) -> bool:
        """Whether there is room for this connection, or some was made."""
        others: list[Patient] = [each for each in self.connections if isinstance(each, Patient) and each is not self]
        peer = self.client[0] if self.client else ""
        if not requests.is_here(peer) and peer:
            same = [each for each in others if each.client and each.client[0] == peer]
            if len(same) >= OF_ONE:
                return _made_room(same)
        return len(others) < self._most or _made_room(others)

    @property
    def _most(self) -> int:
        return (self.config.limit_concurrency or CONNECTIONS + 1) - 1

    @property
    def is_idle(self) -> bool:
        """Whether nobody asks anything by it now."""
        answered = self.cycle is None or self.cycle.response_complete
        return answered and self.conn.their_state in (h11.IDLE, h11.DONE)

    @property
    def quiet_since(self) -> float:
        return self._quiet_since

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _look(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._quiet_since = self.loop.time()
            self._stop()
        elif self._waits is None:
            self._waits = self.loop.call_later(HEADERS, self._too_slow)

    def _stop(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None

    def _too_slow(self) -> None:
        self._waits = None
        if self.conn.their_state is h11.IDLE and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()


def _made_room(among: Sequence[Patient]) -> bool:
    """Close the one that has been idle longest, if any is."""
    idle = min((each for each in among if each.is_idle), key=lambda each: each.quiet_since, default=None)
    if idle is None:
        return False
    idle.connections.discard(idle)
    idle.transport.abort()
    return True


def room(wanted: int = CONNECTIONS) -> int:
    """How many connections there may be, so that files are left for everything else."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft // 2))


def raise_files(wanted: int = FILES) -> None:
    """Have as many files open as are wanted, as far as whoever started this process allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class Server(uvicorn.Server):
    """Leaves signals to whoever runs it."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def bound(host: str, port: int, has_tokens: bool, share: bool = False) -> socket.socket:
    """A socket that listens. SettingInvalid: it cannot be had, or others could reach it and nobody has a token."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise errors.SettingInvalid(f"gateway.http.host: {errors.shown(host)} is no address of this machine.") from None
    family, kind, proto, _, address = found[0]
    if (not host or not requests.is_here(str(address[0]))) and not has_tokens:
        raise errors.SettingInvalid(
            f"gateway.http.host: at {errors.shown(host)} others could reach the agent, and nobody would have to "
            'say who they are. Set a token ([gateway.http.tokens], ann = "ANN_TOKEN"), or use 127.0.0.1.'
        )
    made = socket.socket(family, kind, proto)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if share:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind(address)
        made.listen(socket.SOMAXCONN)
    except OSError as error:
        made.close()
        raise errors.SettingInvalid(
            f"gateway.http: {host} port {port} cannot be listened at: {error.strerror}. Is a gateway running already?"
        ) from None
    made.setblocking(False)
    return made


@asynccontextmanager
async def serving(app: ASGIApp, listening: socket.socket) -> AsyncIterator[Callable[[], None]]:
    """Answer requests at a socket to the end of the block. What it gives stops listening: connections stay."""
    wanted = uvicorn.Config(
        app,
        http=Patient,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        # Nobody is believed who says that a request came from elsewhere.
        proxy_headers=False,
        server_header=False,
        # One more than there can be: whoever is let in is answered.
        limit_concurrency=room() + 1,
        backlog=AT_ONCE,
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=LEAVING,
        h11_max_incomplete_event_size=requests.LONGEST_HEADERS + 8 * 1024,
    )
    server = Server(wanted)
    task = asyncio.create_task(server.serve([listening]))

    def stop_listening() -> None:
        for each in getattr(server, "servers", ()):
            each.close()

    try:
        while not server.started and not task.done():
            await asyncio.sleep(SOON)
        yield stop_listening
    finally:
        server.should_exit = True
        await asyncio.wait([task])
        listening.close()
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
