"""Frames as lines, on two file descriptors: standard input and output, whatever they are.

A line that is too long is cut after its first byte too many, and the rest of it is skipped: the next one is read as if
nothing had been.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import stat
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from holdfast import errors
from holdfast.rpc import frames

PIECE = 1 << 16
UNREAD = 1 << 16
"""Bytes that wait here for the other side to read them before sending waits, too."""
LEAVING = 2.0
"""Seconds the other side has for reading what was said when this one closes."""
LOOK = 1.0
"""Seconds after which it is looked again whether anybody reads."""

Read = Callable[[], Awaitable[bytes]]


class Splitter:
    """Pieces of bytes to lines, of which none is kept longer than one byte more than it may be."""

    def __init__(self, longest: int) -> None:
        self._most = longest + 1
        self._line = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that end in this piece; those without anything on them are left out."""
        *ends, rest = piece.split(b"\n")
        found = list[bytes]()
        for each in ends:
            self._add(each)
            found += self.rest()
        self._add(rest)
        return found

    def rest(self) -> list[bytes]:
        """What is left when nothing more comes."""
        line, self._line = bytes(self._line), bytearray()
        return [line] if line.strip() else []

    def _add(self, piece: bytes) -> None:
        self._line += piece[: self._most - len(self._line)]


class Lines:
    """A channel: lines come by what `read` gives, and go out by a writer, or straight to a file."""

    def __init__(self, read: Read, write: asyncio.StreamWriter | int, longest: int = frames.ORDINARY.size) -> None:
        self._read, self._write = read, write
        self._split = Splitter(longest)
        self._came = deque[bytes]()
        self._over = self._broken = False
        self.failed: OSError | None = None
        """Why something could not be written, where that is not only that nobody reads any more."""

    async def receive(self) -> bytes | None:
        while not self._came and not self._over:
            try:
                piece = await self._read()
            except OSError:
                piece = b""
            self._over = not piece
            self._came.extend(self._split.feed(piece) if piece else self._split.rest())
        return self._came.popleft() if self._came else None

    async def send(self, frame: bytes) -> None:
        try:
            if isinstance(self._write, int):
                _written(self._write, frame + b"\n")
                return
            if self._write.is_closing():
                raise errors.Gone()
            self._write.write(frame + b"\n")
            await self._write.drain()
        except OSError as error:
            self._broken = True
            if not isinstance(error, ConnectionError):
                self.failed = error
            raise errors.Gone() from None
        if self._broken:
            raise errors.Gone()

    async def unread(self) -> None:
        while not self._broken and (isinstance(self._write, int) or not _hung_up(self._write.transport)):
            await asyncio.sleep(LOOK)

    async def close(self) -> None:
        if isinstance(self._write, int) or self._write.transport.is_closing():
            return
        self._write.close()
        try:
            async with asyncio.timeout(LEAVING):
                await self._write.wait_closed()
        except TimeoutError:
            self._broken = True
            self._write.transport.abort()
        except OSError:
            return


@asynccontextmanager
async def opened(reads: int = 0, writes: int = 1, longest: int = frames.ORDINARY.size) -> AsyncIterator[Lines]:
    """A channel over two descriptors, which are left open and as they were."""
    before = [(each, os.get_blocking(each)) for each in (reads, writes)]
    loop = asyncio.get_running_loop()
    reader: asyncio.ReadTransport | None = None
    writer: asyncio.StreamWriter | int = writes
    file = os.fdopen(os.dup(reads), "rb", buffering=0)
    try:
        if _can_wait(writes):
            writer = await _writer(writes)
        if _can_wait(reads):
            stream = asyncio.StreamReader(limit=PIECE)
            reader, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), file)
            channel = Lines(lambda: stream.read(PIECE), writer, longest)
        else:
            # These are always ready, and cannot be waited for.
            channel = Lines(lambda: asyncio.to_thread(file.read, PIECE), writer, longest)
        try:
            yield channel
        finally:
            await channel.close()
    finally:
        if reader is not None:
            reader.close()
        file.close()
        for descriptor, blocking in before:
            os.set_blocking(descriptor, blocking)  # Others may have the same terminal open.


class _WritesOnly(asyncio.StreamReaderProtocol):
    """A socket may be input as well: whoever only writes there must not take what comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(transport, asyncio.ReadTransport)  # it is one of a socket
        transport.pause_reading()


async def _writer(writes: int) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    is_socket = stat.S_ISSOCK(os.fstat(writes).st_mode)
    protocol = (_WritesOnly if is_socket else asyncio.StreamReaderProtocol)(asyncio.StreamReader())
    transport: asyncio.WriteTransport
    if is_socket:
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, socket.socket(fileno=os.dup(writes)))
    else:
        transport, _ = await loop.connect_write_pipe(lambda: protocol, os.fdopen(os.dup(writes), "wb", buffering=0))
    transport.set_write_buffer_limits(UNREAD)
    return asyncio.StreamWriter(transport, protocol, None, loop)


def _can_wait(descriptor: int) -> bool:
    kind = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or os.isatty(descriptor)


def _hung_up(transport: asyncio.WriteTransport) -> bool:
    """Whether the other end is closed: what is written there next could only fail."""
    end = transport.get_extra_info("pipe") or transport.get_extra_info("socket")
    if transport.is_closing() or end is None or end.fileno() < 0:
        return True
    looking = select.poll()
    looking.register(end.fileno(), 0)
    return bool(looking.poll(0))


def _written(descriptor: int, line: bytes) -> None:
    while line:
        line = line[os.write(descriptor, line) :]
