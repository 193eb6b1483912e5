"""Frames as lines on two file descriptors: standard input and output, whatever they are connected to.

A line that is too long is cut after its first byte too many and the rest of it is skipped; the next one is read as
usual.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import stat
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

from holdfast import errors
from holdfast.rpc import frames

CHUNK_BYTES = 1 << 16
WRITE_BUFFER_BYTES = 1 << 16
"""Unread bytes from which on `send` waits for the other side."""
CLOSE_SECONDS = 2.0
"""Seconds that the other side has to read the last frames after `close`."""
POLL_SECONDS = 1.0
"""Seconds between two checks whether the other side still reads."""

Read = Callable[[], Awaitable[bytes]]


class LineSplitter:
    """Splits chunks of bytes into lines. No line is kept longer than one byte more than the maximum."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes + 1
        self._line = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that end in this chunk, without empty ones."""
        *ends, rest = chunk.split(b"\n")
        found = list[bytes]()
        for each in ends:
            self._add(each)
            found += self.finish()
        self._add(rest)
        return found

    def finish(self) -> list[bytes]:
        """Return the last line at the end of the input."""
        line, self._line = bytes(self._line), bytearray()
        return [line] if line.strip() else []

    def _add(self, chunk: bytes) -> None:
        self._line += chunk[: self._max_bytes - len(self._line)]


class LineChannel:
    """A channel whose frames are lines. It reads with `read` and writes to a stream or straight to a file."""

    def __init__(
        self, read: Read, write: asyncio.StreamWriter | int, max_bytes: int = frames.DEFAULT_LIMITS.max_bytes
    ) -> None:
        self._read, self._write = read, write
        self._splitter = LineSplitter(max_bytes)
        self._lines = deque[bytes]()
        self._is_over = self._is_broken = False
        self.failed: OSError | None = None
        """The write error, unless it only means that the other side reads no more."""

    async def receive(self) -> bytes | None:
        while not self._lines and not self._is_over:
            try:
                chunk = await self._read()
            except OSError:
                chunk = b""
            self._is_over = not chunk
            self._lines.extend(self._splitter.feed(chunk) if chunk else self._splitter.finish())
        return self._lines.popleft() if self._lines else None

    async def send(self, frame: bytes) -> None:
        try:
            if isinstance(self._write, int):
                _write_all(self._write, frame + b"\n")
                return
            if self._write.is_closing():
                raise errors.Gone()
            self._write.write(frame + b"\n")
            await self._write.drain()
        except OSError as error:
            self._is_broken = True
            if not isinstance(error, ConnectionError):
                self.failed = error
            raise errors.Gone() from None
        if self._is_broken:
            raise errors.Gone()

    async def unread(self) -> None:
        while not self._is_broken and (isinstance(self._write, int) or not _has_hung_up(self._write.transport)):
            await asyncio.sleep(POLL_SECONDS)

    async def close(self) -> None:
        if isinstance(self._write, int) or self._write.transport.is_closing():
            return
        self._write.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._write.wait_closed()
        except TimeoutError:
            self._is_broken = True
            self._write.transport.abort()
        except OSError:
            return


@asynccontextmanager
async def open_lines(
    reads: int = 0, writes: int = 1, max_bytes: int = frames.DEFAULT_LIMITS.max_bytes
) -> AsyncIterator[LineChannel]:
    """Open a channel over two descriptors. They stay open, and their blocking mode is restored."""
    before = [(each, os.get_blocking(each)) for each in (reads, writes)]
    loop = asyncio.get_running_loop()
    reader: asyncio.ReadTransport | None = None
    writer: asyncio.StreamWriter | int = writes
    file = os.fdopen(os.dup(reads), "rb", buffering=0)
    try:
        if _is_pollable(writes):
            writer = await _open_writer(writes)
        if _is_pollable(reads):
            stream = asyncio.StreamReader(limit=CHUNK_BYTES)
            reader, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), file)
            channel = LineChannel(lambda: stream.read(CHUNK_BYTES), writer, max_bytes)
        else:
            channel = LineChannel(lambda: asyncio.to_thread(file.read, CHUNK_BYTES), writer, max_bytes)
        try:
            yield channel
        finally:
            await channel.close()
    finally:
        if reader is not None:
            reader.close()
        file.close()
        for descriptor, is_blocking in before:
            os.set_blocking(descriptor, is_blocking)  # Other processes may have the same terminal open.


class _WriteOnlyProtocol(asyncio.StreamReaderProtocol):
    """Reads nothing from a socket that is standard input as well."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(transport, asyncio.ReadTransport)  # it is one of a socket
        transport.pause_reading()


async def _open_writer(writes: int) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    is_socket = stat.S_ISSOCK(os.fstat(writes).st_mode)
    protocol = (_WriteOnlyProtocol if is_socket else asyncio.StreamReaderProtocol)(asyncio.StreamReader())
    transport: asyncio.WriteTransport
    if is_socket:
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, socket.socket(fileno=os.dup(writes)))
    else:
        transport, _ = await loop.connect_write_pipe(lambda: protocol, os.fdopen(os.dup(writes), "wb", buffering=0))
    transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
    return asyncio.StreamWriter(transport, protocol, None, loop)


def _is_pollable(descriptor: int) -> bool:
    kind = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or os.isatty(descriptor)


def _has_hung_up(transport: asyncio.WriteTransport) -> bool:
    """Return whether the other end is closed, so that the next write would fail."""
    end = transport.get_extra_info("pipe") or transport.get_extra_info("socket")
    if transport.is_closing() or end is None or end.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(end.fileno(), 0)
    return bool(poll.poll(0))


def _write_all(descriptor: int, line: bytes) -> None:
    while line:
        line = line[os.write(descriptor, line) :]


# --- standard input and output -------------------------------------------------------------------------


class Stdio(NamedTuple):
    """Private copies of the descriptors of standard input and output."""

    reads: int
    writes: int


@contextmanager
def reserve_stdio() -> Iterator[Stdio]:
    """Reserve standard input and output for frames until the end of the block.

    Meanwhile everything else reads an empty input and prints to standard error: output of a plug-in or a child process
    would corrupt the frames. Raises SettingInvalid if one of them is closed.
    """
    # The number of a descriptor that was closed at the start may belong to another file by now.
    if sys.__stdin__ is None or sys.__stdout__ is None or not (_is_open(0) and _is_open(1)):
        raise errors.SettingInvalid("Standard input and output must be open: they carry the frames.")
    # Opened first, so that it takes the number of a closed standard error, and the copies do not.
    null = os.open(os.devnull, os.O_RDWR)
    reserved = Stdio(os.dup(0), os.dup(1))
    try:
        _flush_stdout()
        os.dup2(null, 0)
        os.dup2(2 if sys.__stderr__ is not None else null, 1)
        yield reserved
    finally:
        # Buffered output must not follow the frames.
        _flush_stdout()
        os.dup2(reserved.reads, 0)
        os.dup2(reserved.writes, 1)
        for each in (*reserved, null):
            os.close(each)


def _flush_stdout() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
