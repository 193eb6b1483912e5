"""Standard input and output as a platform: the lines of loopback, for a script that has this process to itself.

It ends with its input, once all that came by it is answered and what was said is written. Replies belong to the
process that took what they answer; those of one that died are written by the next.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from holdfast import errors, types
from holdfast.gateway import platform
from holdfast.gateway.platforms import loopback
from holdfast.store import async_db, leases

logger = logging.getLogger("holdfast.gateway")

NAME = "stdio"
SOON = 0.05


class Stdio(loopback.Loopback):
    """Lines on two file descriptors."""

    def __init__(self, db: async_db.AsyncSessionDB, reads: int = 0, writes: int = 1) -> None:
        super().__init__(NAME)
        self._db, self._reads, self._writes = db, reads, writes
        self._process = leases.encode_holder(leases.current_holder(None))
        self._open = set[int]()
        """What was taken and is not known to be over."""
        self._ended = asyncio.Event()
        self._writing = asyncio.Lock()
        """One line after the other: a pipe takes a long one in pieces."""
        self.broken = False
        """Whether nobody reads any more what is written."""

    async def run(self, door: platform.Door) -> None:
        async with self._came:
            self.door = door
            self._came.notify_all()
        try:
            async with opened(self._reads) as read:
                await self.lines(read, self._write)
        except BrokenPipeError:
            logger.warning("nobody reads standard output any more; what is left is written by the next one")
        self._ended.set()

    def address(self, line: loopback.Line) -> dict[str, Any]:
        return {"chat": line.chat, "process": self._process}

    def took(self, arrival: types.InboundMessage) -> None:
        self._open.add(arrival.id)

    @property
    def alone(self) -> bool:
        return False  # What a dead one left may be written by any of the others.

    def owns(self, outgoing: types.Outgoing) -> bool:
        process = outgoing.address.get("process")
        return process in (self._process, None) or leases.decode_holder(str(process)).is_dead()

    async def send(self, outgoing: types.Outgoing) -> str:
        try:
            await self._write(loopback.encoded(outgoing))
        except BrokenPipeError:
            self._ended.set()
            raise errors.SendFailed("Nobody reads standard output.") from None
        return f"{self.name}-{outgoing.id}"

    async def finished(self) -> None:
        """Until the input has ended and all that came by it is answered; at once where nobody reads the answers."""
        await self._ended.wait()
        while not self.broken and self._open:
            self._open = {each for each in self._open if not await self._is_over(each)}
            await asyncio.sleep(SOON)

    async def _is_over(self, arrival_id: int) -> bool:
        found = await self._db.mail.inbound(arrival_id)
        if found is None:
            return True
        return not found.open and not any(each.open for each in await self._db.mail.replies(found.joined or found.id))

    async def _write(self, line: bytes) -> None:
        await self._writing.acquire()
        writing = asyncio.ensure_future(asyncio.to_thread(written, self._writes, line))
        # A thread cannot be cancelled: whoever waits for it may be, and the next line still comes after all of this.
        writing.add_done_callback(self._wrote)
        try:
            await asyncio.shield(writing)
        except BrokenPipeError:
            self.broken = True
            raise

    def _wrote(self, writing: asyncio.Future[None]) -> None:
        self._writing.release()
        if not writing.cancelled():
            writing.exception()  # Whoever waits for it is told.


@asynccontextmanager
async def opened(reads: int) -> AsyncIterator[loopback.Read]:
    """The lines of a file descriptor, whatever it is: a pipe, a terminal, a file, nothing."""
    kind = os.fstat(reads).st_mode
    file = os.fdopen(os.dup(reads), "rb")
    if stat.S_ISREG(kind) or (stat.S_ISCHR(kind) and not os.isatty(reads)):
        # These are always ready, and cannot be waited for.
        with file:
            yield lambda: asyncio.to_thread(_limited, file.readline)
        return
    reader = asyncio.StreamReader(limit=loopback.LONGEST_LINE)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    try:
        yield reader.readline
    finally:
        transport.close()
        os.set_blocking(reads, True)  # Others may have the same terminal open.


def _limited(readline: Any) -> bytes:
    line: bytes = readline(loopback.LONGEST_LINE + 1)
    if len(line) > loopback.LONGEST_LINE:
        raise ValueError
    return line


def written(writes: int, line: bytes) -> None:
    """All of it, also where the descriptor does not wait, as a terminal that is read from in the same way."""
    while line:
        try:
            line = line[os.write(writes, line) :]
        except BlockingIOError:
            select.select([], [writes], [])
