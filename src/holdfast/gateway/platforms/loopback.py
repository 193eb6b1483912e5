"""Loopback: a platform for scripts and tests, JSON lines in and out.

A line in is `{"text": …}` with, as wanted, `chat`, `sender`, `name`, `kind`, `key` and `mentioned`. It is acknowledged
by `{"type": "taken", "key": …, "arrival": …}` once it is stored; where it is not, by `{"type": "refused", "why": …}`.
Lines out are `{"type": "reply", …}`, and the same with `notice` and `question`. Over a socket whoever may open it is
whoever they say they are: it is only for the user the gateway runs as.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec

from holdfast import errors, types
from holdfast.gateway import platform
from holdfast.store import message_codec

logger = logging.getLogger("holdfast.gateway")

EVERY = 1.0
"""Seconds between two looks whether a socket was left."""
LONGEST_LINE = 1_100_000
"""Bytes of a line, which is somewhat more than the longest text that is stored."""

PATIENCE = 5.0
"""Seconds a client may take to make room for a line."""

Read = Callable[[], Awaitable[bytes]]
"""The next line, with its end; nothing: there is none any more. ValueError: it is too long."""
Write = Callable[[bytes], Awaitable[None]]


class Line(msgspec.Struct, frozen=True):
    """A line in."""

    text: str
    chat: str = "local"
    sender: str = "local"
    name: str = ""
    kind: platform.Kind = "dm"
    key: str = ""
    mentioned: bool = True


class Loopback:
    """In memory: what is said here comes in, and what goes out is kept in `sent`."""

    def __init__(self, name: str = "loopback", limit: int = 4_000) -> None:
        self._name, self._limit = name, limit
        self.sent: list[types.Outgoing] = []
        self._came = asyncio.Condition()
        self.door: platform.Door | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def limit(self) -> int:
        return self._limit

    async def listening(self) -> None:
        async with self._came:
            await self._came.wait_for(lambda: self.door is not None)

    async def run(self, door: platform.Door) -> None:
        async with self._came:
            self.door = door
            self._came.notify_all()
        await asyncio.Event().wait()

    async def say(self, text: str, **given: Any) -> types.InboundMessage | None:
        """Have something come in; it is stored when this returns. `given` are the fields of a line."""
        await self.listening()
        return await self.bring(Line(text, **given))

    async def bring(self, line: Line) -> types.InboundMessage | None:
        assert self.door is not None  # set before anything is brought
        return await self.door.came(self.came(line))

    def came(self, line: Line) -> platform.Came:
        return platform.Came(
            platform=self.name,
            key=line.key or message_codec.generate_uid(),
            kind=line.kind,
            chat=tuple(line.chat.split("/")),
            sender=line.sender,
            name=line.name,
            text=line.text,
            address={"chat": line.chat},
            mentioned=line.mentioned,
        )

    async def lines(self, read: Read, write: Write) -> None:
        """What somebody says by lines, until they end."""
        while True:
            try:
                line = await read()
            except ValueError:
                await write(_line({"type": "error", "error": f"A line has at most {LONGEST_LINE:,} bytes."}))
                return
            if not line:
                return
            if line.strip():
                await write(await self._taken(line))

    async def _taken(self, line: bytes) -> bytes:
        """The answer to a line: it is stored, or why not."""
        try:
            said = msgspec.json.decode(line, type=Line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return _line({"type": "error", "error": f"That is not a line of JSON as it should be: {error}"})
        key = said.key or message_codec.generate_uid()
        assert self.door is not None  # set before anything is read
        try:
            found = await self.door.answered(self.came(msgspec.structs.replace(said, key=key)))
        except errors.HoldfastError as error:
            return _line({"type": "error", "key": key, "error": str(error)})
        if isinstance(found, platform.NotTaken):
            refused = {"why": found.why, "error": found.say, "retry_after": found.retry_after}
            return _line({"type": "refused", "key": key, **refused})
        return _line({"type": "taken", "key": key, "arrival": found.id})

    async def send(self, outgoing: types.Outgoing) -> str:
        async with self._came:
            self.sent.append(outgoing)
            self._came.notify_all()
        return f"{self.name}-{outgoing.id}"

    async def replies(self, count: int) -> list[types.Outgoing]:
        """What was sent, once it is so many messages."""
        async with self._came:
            await self._came.wait_for(lambda: len(self.sent) >= count)
        return list(self.sent)


class Lines(Loopback):
    """JSON lines on a Unix socket."""

    def __init__(self, path: str, name: str = "loopback", limit: int = 4_000) -> None:
        super().__init__(name, limit)
        self._path = path
        self._writers = set[asyncio.StreamWriter]()
        self._receives = asyncio.Event()
        self._listens = False

    async def listening(self) -> None:
        await self._receives.wait()

    async def run(self, door: platform.Door) -> None:
        self.door = door
        made = await self._bound()
        mine = _file_of(self._path)
        server = await asyncio.start_unix_server(self._client, sock=made, limit=LONGEST_LINE)
        self._receives.set()
        self._listens = True
        try:
            async with server:
                await server.serve_forever()
        finally:
            self._listens = False
            if mine is not None and _file_of(self._path) == mine:
                with suppress(OSError):
                    os.unlink(self._path)

    async def _bound(self) -> socket.socket:
        """The socket; where another gateway receives there, as soon as that leaves it."""
        while True:
            try:
                return bound(self._path)
            except errors.SettingInvalid:
                if not _is_socket(self._path):
                    raise
            if not self._receives.is_set():
                self._receives.set()
                logger.info("another gateway listens at %s; this one does when that leaves", self._path)
            await asyncio.sleep(EVERY)

    @property
    def alone(self) -> bool:
        return False  # While one leaves and the next is there already, both may have clients.

    def owns(self, _: types.Outgoing) -> bool:
        """Whoever has neither the socket nor a client leaves it to the one who has: nobody could be reached here."""
        return self._listens or bool(self._writers)

    async def send(self, outgoing: types.Outgoing) -> str:
        """To everybody who is connected; where nobody is, later."""
        if not await self._spread(encoded(outgoing)):
            raise errors.SendFailed("Nobody is connected.")
        return f"{self.name}-{outgoing.id}"

    async def _spread(self, line: bytes) -> bool:
        return any(await asyncio.gather(*(self._reached(writer, line) for writer in list(self._writers))))

    async def _reached(self, writer: asyncio.StreamWriter, line: bytes) -> bool:
        """Whether somebody took it. Who does not read is let go: nobody else waits for them, or is told twice."""
        try:
            writer.write(line)
            async with asyncio.timeout(PATIENCE):
                await writer.drain()
            return True
        except (OSError, TimeoutError):
            self._writers.discard(writer)
            writer.transport.abort()
            return False

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def write(line: bytes) -> None:
            writer.write(line)
            await writer.drain()

        # What is only in the buffer of this process is not delivered: wait until the system has it.
        writer.transport.set_write_buffer_limits(0)
        self._writers.add(writer)
        try:
            await self.lines(reader.readline, write)
        except OSError as error:
            logger.debug("a client of the loopback went away: %s", error)
        finally:
            self._writers.discard(writer)
            writer.close()


def refuse(path: str) -> None:
    """SettingInvalid where no socket can be made or found, whenever it is tried."""
    if os.path.lexists(path) and not _is_socket(path):
        raise errors.SettingInvalid(f"gateway.loopback.socket: {errors.shown(path)} is there, and is no socket.")
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise errors.SettingInvalid(f"gateway.loopback.socket: the folder of {errors.shown(path)} is not there.")


def bound(path: str) -> socket.socket:
    """A socket that only this user can open. One that a process left behind when it died is replaced."""
    if _abandoned(path):
        os.unlink(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        before = os.umask(0o177)
        try:
            made.bind(path)
        finally:
            os.umask(before)
    except OSError as error:
        made.close()
        raise errors.SettingInvalid(f"The socket {path} cannot be made: {error.strerror}.") from None
    return made


def _abandoned(path: str) -> bool:
    """Whether there is a socket that nobody listens at. What is not a socket is somebody's file."""
    if not _is_socket(path):
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(1.0)
            asking.connect(path)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def _file_of(path: str) -> tuple[int, int] | None:
    """Which file a path leads to: another process may have put its own there."""
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


def encoded(outgoing: types.Outgoing) -> bytes:
    """What goes out, as a line."""
    return _line(
        {
            "type": outgoing.kind,
            "id": outgoing.id,
            "arrival": outgoing.inbound_id,
            "part": outgoing.part,
            "chat": outgoing.address.get("chat"),
            "text": outgoing.text,
            "attachments": outgoing.attachments,
        }
    )


def _line(value: dict[str, Any]) -> bytes:
    return msgspec.json.encode(value) + b"\n"
