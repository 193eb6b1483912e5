"""Frames over WebSocket, one text message each, for programs that know the token.

Close codes: 1001 the server shuts down, 1003 a binary message, 1007 invalid UTF-8, 1009 a message that is too large,
1011 the keepalive timed out.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from websockets.asyncio import server
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from holdfast import errors
from holdfast.rpc import admission, frames

logger = logging.getLogger("holdfast.rpc")
# On level DEBUG the library logs whole messages, and the token.
library_logger = logging.getLogger("holdfast.rpc.websocket_transport")
library_logger.setLevel(logging.WARNING)


def _is_relevant(record: logging.LogRecord) -> bool:
    """Drop an assertion of the library that any client can cause by an invalid handshake."""
    is_internal = record.getMessage() == "unexpected internal error"
    return not (is_internal and record.exc_info and isinstance(record.exc_info[1], AssertionError))


library_logger.addFilter(_is_relevant)

MAX_CONNECTIONS = 16
OPEN_SECONDS, CLOSE_SECONDS = 10.0, 2.0
"""Timeouts of the opening and closing handshakes."""
PING_SECONDS, PONG_SECONDS = 20.0, 60.0
"""The interval of keepalive pings, and the timeout of their answers."""
WRITE_BUFFER_BYTES = 1 << 16
"""Unread bytes from which on `send` waits for the other side."""

OnConnect = Callable[["WebSocketChannel"], Awaitable[None]]


class WebSocketChannel:
    """A channel over one connection."""

    def __init__(self, connection: server.ServerConnection) -> None:
        self._connection = connection

    async def receive(self) -> bytes | None:
        try:
            message = await self._connection.recv()
        except ConnectionClosed:
            return None
        if isinstance(message, str):
            return message.encode()
        await self._connection.close(1003, "Frames must be text messages.")
        return None

    async def send(self, frame: bytes) -> None:
        try:
            await self._connection.send(frame, text=True)
        except ConnectionClosed:
            raise errors.Gone() from None

    async def unread(self) -> None:
        await asyncio.Event().wait()  # A connection ends in both directions at once.

    async def close(self) -> None:
        await self._connection.close()


@asynccontextmanager
async def serve(
    on_connect: OnConnect,
    rules: admission.AdmissionRules,
    port: int = 0,
    *,
    max_bytes: int = frames.DEFAULT_LIMITS.max_bytes,
) -> AsyncIterator[str]:
    """Accept connections until the end of the block, each until `on_connect` returns. Yields the URL.

    Raises SettingInvalid if it cannot listen, or if the token is too short or cannot be sent in a header.
    """
    if not admission.is_valid_token(rules.token):
        raise errors.SettingInvalid(admission.INVALID_TOKEN)
    admitting = _Admission(rules, on_connect)
    listening = bind(rules.host, port)
    async with server.serve(
        admitting.connect,
        sock=listening,
        process_request=admitting.check,
        select_subprotocol=_select_subprotocol,
        compression=None,
        max_size=max_bytes,
        max_queue=1,
        write_limit=WRITE_BUFFER_BYTES,
        open_timeout=OPEN_SECONDS,
        close_timeout=CLOSE_SECONDS,
        ping_interval=PING_SECONDS,
        ping_timeout=PONG_SECONDS,
        server_header=None,
        logger=library_logger,
    ):
        host, number = rules.host, listening.getsockname()[1]
        yield f"ws://[{host}]:{number}/" if ":" in host else f"ws://{host}:{number}/"


class _Admission:
    """Checks requests against the rules and limits the number of connections."""

    def __init__(self, rules: admission.AdmissionRules, on_connect: OnConnect) -> None:
        self._rules, self._on_connect = rules, on_connect
        self._connected = 0

    def check(self, connection: server.ServerConnection, request: Request) -> Response | None:
        headers = dict[str, list[str]]()
        for name, value in request.headers.raw_items():
            headers.setdefault(name.lower(), []).append(value)
        rejection = admission.check_request(self._rules, request.path, headers)
        if rejection is None and self._connected >= MAX_CONNECTIONS:
            rejection = admission.HandshakeRejection(503, "Too many connections.")
        if rejection is None:
            return None
        logger.info("rejected a connection: %s", rejection.reason)
        return connection.respond(rejection.status, f"{rejection.reason}\n")

    async def connect(self, connection: server.ServerConnection) -> None:
        self._connected += 1
        try:
            await self._on_connect(WebSocketChannel(connection))
        finally:
            self._connected -= 1


def _select_subprotocol(_: server.ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    """Never select the one with the token: the response would repeat it."""
    return next((each for each in offered if each == admission.SUBPROTOCOL), None)


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to the first address of a host. Raises SettingInvalid."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise errors.SettingInvalid(f"{errors.quote(host)} is not an address of this machine.") from None
    bound = socket.socket(family, kind, proto)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise errors.SettingInvalid(f"Cannot listen on {host} port {port}: {error.strerror}.") from None
    return bound
