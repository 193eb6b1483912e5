"""Frames over WebSocket, a text message each, for programs that know the token.

How a connection ends says why: 1001 this program ends, 1003 a message that is no text, 1007 one that is not UTF-8,
1009 one that is too large, 1011 nothing was heard for too long.
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
# At the least level it writes down whole messages, and the token.
quiet = logging.getLogger("holdfast.rpc.websocket_transport")
quiet.setLevel(logging.WARNING)
STUMBLED = "unexpected internal error"
"""What the library says of itself only: it has other words for what goes wrong with us."""


def _matters(record: logging.LogRecord) -> bool:
    """The library stumbles over a client that asks for nonsense and says at once that it is done: anybody could fill
    the log with that, and nobody can do anything about it."""
    stumbled = record.getMessage() == STUMBLED and record.exc_info and isinstance(record.exc_info[1], AssertionError)
    return not stumbled


quiet.addFilter(_matters)

MOST = 16
"""Connections at once."""
OPENING, CLOSING = 10.0, 2.0
"""Seconds for a handshake, and for a farewell."""
PING, PONG = 20.0, 60.0
"""Seconds after which the other side is asked whether it is there, and within which it says so."""
UNREAD = 1 << 16
"""Bytes that wait here for the other side to read them before sending waits, too."""

Connected = Callable[["Socket"], Awaitable[None]]


class Socket:
    """A channel: one connection."""

    def __init__(self, connection: server.ServerConnection) -> None:
        self._connection = connection

    async def receive(self) -> bytes | None:
        try:
            said = await self._connection.recv()
        except ConnectionClosed:
            return None
        if isinstance(said, str):
            return said.encode()
        await self._connection.close(1003, "Frames are text.")
        return None

    async def send(self, frame: bytes) -> None:
        try:
            await self._connection.send(frame, text=True)
        except ConnectionClosed:
            raise errors.Gone() from None

    async def unread(self) -> None:
        await asyncio.Event().wait()  # A connection ends for both directions.

    async def close(self) -> None:
        await self._connection.close()


@asynccontextmanager
async def serving(
    connected: Connected, rules: admission.Rules, port: int = 0, *, longest: int = frames.ORDINARY.size
) -> AsyncIterator[str]:
    """Let programs in to the end of the block; each connection lasts until `connected` returns. Gives the address.

    Raises SettingInvalid where it cannot listen, or where the token is easily guessed or cannot be said.
    """
    if not admission.is_token(rules.token):
        raise errors.SettingInvalid(admission.TOKENS)
    door = _Door(rules, connected)
    listening = bound(rules.host, port)
    async with server.serve(
        door.connected,
        sock=listening,
        process_request=door.asked,
        select_subprotocol=_chosen,
        compression=None,
        max_size=longest,
        max_queue=1,
        write_limit=UNREAD,
        open_timeout=OPENING,
        close_timeout=CLOSING,
        ping_interval=PING,
        ping_timeout=PONG,
        server_header=None,
        logger=quiet,
    ):
        host, number = rules.host, listening.getsockname()[1]
        yield f"ws://[{host}]:{number}/" if ":" in host else f"ws://{host}:{number}/"


class _Door:
    def __init__(self, rules: admission.Rules, connected: Connected) -> None:
        self._rules, self._connected = rules, connected
        self._inside = 0

    def asked(self, connection: server.ServerConnection, request: Request) -> Response | None:
        headers = dict[str, list[str]]()
        for name, value in request.headers.raw_items():
            headers.setdefault(name.lower(), []).append(value)
        refused = admission.refused(self._rules, request.path, headers)
        if refused is None and self._inside >= MOST:
            refused = admission.Refused(503, "Too many are connected.")
        if refused is None:
            return None
        logger.info("a connection was refused: %s", refused.reason)
        return connection.respond(refused.status, f"{refused.reason}\n")

    async def connected(self, connection: server.ServerConnection) -> None:
        self._inside += 1
        try:
            await self._connected(Socket(connection))
        finally:
            self._inside -= 1


def _chosen(_: server.ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    """The token is never said back."""
    return next((each for each in offered if each == admission.SPOKEN), None)


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens at the first address a host has. SettingInvalid where there is none to be had."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise errors.SettingInvalid(f"{errors.shown(host)} is no address of this machine.") from None
    made = socket.socket(family, kind, proto)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        made.close()
        raise errors.SettingInvalid(f"{host} port {port} cannot be listened at: {error.strerror}.") from None
    return made
