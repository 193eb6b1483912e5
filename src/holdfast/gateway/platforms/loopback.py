"""Loopback: a platform for scripts, with JSON lines in both directions.

An inbound line is `{"text": …}` with the optional fields `chat`, `sender`, `name`, `kind`, `key`, `mentioned`, `edits`
and `reply_to`. It is acknowledged by `{"type": "taken", "key": …, "arrival": …}` once it is stored, or rejected by
`{"type": "refused", "why": …}`. Outbound lines have the type `reply`, `notice` or `question`. Every client of the
socket may use any sender id: only the gateway's user can open it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from contextlib import suppress
from typing import Any

import msgspec

from holdfast import errors, types
from holdfast.gateway import platform
from holdfast.store import message_codec

logger = logging.getLogger("holdfast.gateway")

MAX_LINE = 1_100_000
"""The longest line in bytes: somewhat more than the longest text that is stored."""


class LoopbackLine(msgspec.Struct, frozen=True):
    """An inbound line."""

    text: str
    chat: str = "local"
    sender: str = "local"
    name: str = ""
    kind: platform.ChatKind = "dm"
    key: str = ""
    mentioned: bool = True
    edits: str = ""
    reply_to: str = ""


def build_incoming(name: str, line: LoopbackLine) -> platform.Incoming:
    """Return the inbound message of a line on the platform `name`."""
    return platform.Incoming(
        platform=name,
        key=line.key or message_codec.generate_uid(),
        kind=line.kind,
        chat=tuple(line.chat.split("/")),
        sender=line.sender,
        name=line.name,
        text=line.text,
        address={"chat": line.chat},
        mentioned=line.mentioned,
        edits=line.edits,
        reply_to=platform.Quote(line.reply_to) if line.reply_to else None,
    )


class LoopbackSocket:
    """JSON lines on a Unix socket.

    A gateway checks every `poll_seconds` whether another one released the socket. A client may take `write_seconds` to
    read a line.
    """

    def __init__(self, path: str, *, poll_seconds: float = 1.0, write_seconds: float = 5.0) -> None:
        self._path, self._poll_seconds, self._write_seconds = path, poll_seconds, write_seconds
        self.handler: platform.Handler | None = None
        self._writers = set[asyncio.StreamWriter]()
        self._ready = asyncio.Event()
        self._is_listening = False

    @property
    def name(self) -> str:
        return "loopback"

    @property
    def limit(self) -> int:
        return 4_000

    async def wait_ready(self) -> None:
        await self._ready.wait()

    async def run(self, handler: platform.Handler) -> None:
        self.handler = handler
        listening = await self._bind()
        own = _file_id(self._path)
        server = await asyncio.start_unix_server(self._serve_client, sock=listening, limit=MAX_LINE)
        self._ready.set()
        self._is_listening = True
        try:
            async with server:
                await server.serve_forever()
        finally:
            self._is_listening = False
            if own is not None and _file_id(self._path) == own:
                with suppress(OSError):
                    os.unlink(self._path)

    async def _bind(self) -> socket.socket:
        """Return the listening socket; wait while another gateway listens there."""
        while True:
            try:
                return bind(self._path)
            except errors.SettingInvalid:
                if not _is_socket(self._path):
                    raise
            if not self._ready.is_set():
                self._ready.set()
                logger.info("another gateway listens at %s; waiting until it stops", self._path)
            await asyncio.sleep(self._poll_seconds)

    @property
    def exclusive(self) -> bool:
        return False  # During a restart two processes may have clients.

    def owns(self, _: types.Outgoing) -> bool:
        """A process without the socket and without clients cannot reach anybody."""
        return self._is_listening or bool(self._writers)

    async def send(self, delivery: platform.Delivery) -> str:
        """Send a message to every client; SendFailed if there is none."""
        line = encode_delivery(delivery)
        if not any(await asyncio.gather(*(self._write(writer, line) for writer in list(self._writers)))):
            raise errors.SendFailed("No client is connected.")
        return f"{self.name}-{delivery.id}"

    async def _write(self, writer: asyncio.StreamWriter, line: bytes) -> bool:
        """Return whether a client received a line. A client that does not read is disconnected."""
        try:
            writer.write(line)
            async with asyncio.timeout(self._write_seconds):
                await writer.drain()
            return True
        except (OSError, TimeoutError):
            self._writers.discard(writer)
            writer.transport.abort()
            return False

    async def _serve_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A line in the buffer of this process is not delivered: wait until the kernel has it.
        writer.transport.set_write_buffer_limits(0)
        self._writers.add(writer)
        try:
            while line := await reader.readline():
                if line.strip():
                    writer.write(await self._receive(line))
                    await writer.drain()
        except ValueError:
            writer.write(_encode({"type": "error", "error": f"A line may have at most {MAX_LINE:,} bytes."}))
        except OSError as error:
            logger.debug("a loopback client disconnected: %s", error)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _receive(self, line: bytes) -> bytes:
        """Store a line, and return the acknowledgement or the reason of the rejection."""
        try:
            found = msgspec.json.decode(line, type=LoopbackLine)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return _encode({"type": "error", "error": f"The line is not a JSON message: {error}"})
        key = found.key or message_codec.generate_uid()
        assert self.handler is not None  # Set before anything is read.
        try:
            stored = await self.handler.submit(build_incoming(self.name, msgspec.structs.replace(found, key=key)))
        except errors.HoldfastError as error:
            return _encode({"type": "error", "key": key, "error": str(error)})
        if isinstance(stored, platform.AdmissionResult):
            refused = {"why": stored.reason, "error": stored.message, "retry_after": stored.retry_after}
            return _encode({"type": "refused", "key": key, **refused})
        return _encode({"type": "taken", "key": key, "arrival": stored.id})


def check_path(path: str) -> None:
    """Raise SettingInvalid if a socket can never be created at a path."""
    if os.path.lexists(path) and not _is_socket(path):
        raise errors.SettingInvalid(f"gateway.loopback.socket: {errors.quote(path)} exists and is not a socket.")
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise errors.SettingInvalid(f"gateway.loopback.socket: the folder of {errors.quote(path)} does not exist.")


def bind(path: str) -> socket.socket:
    """Return a socket that only this user can open. A socket that a dead process left behind is replaced."""
    if _is_abandoned(path):
        os.unlink(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        before = os.umask(0o177)
        try:
            listening.bind(path)
        finally:
            os.umask(before)
    except OSError as error:
        listening.close()
        raise errors.SettingInvalid(f"The socket {path} cannot be created: {error.strerror}.") from None
    return listening


def _is_abandoned(path: str) -> bool:
    """Return whether a path is a socket without a listener."""
    if not _is_socket(path):
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(1.0)
            client.connect(path)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def _file_id(path: str) -> tuple[int, int] | None:
    """Return the identity of a file: another process may have replaced it."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def encode_delivery(delivery: platform.Delivery) -> bytes:
    return _encode(
        {
            "type": delivery.kind,
            "id": delivery.id,
            "arrival": delivery.inbound_id,
            "part": delivery.part,
            "chat": delivery.address.get("chat"),
            "text": delivery.text,
            "attachments": delivery.attachments,
        }
    )


def _encode(value: dict[str, Any]) -> bytes:
    return msgspec.json.encode(value) + b"\n"
