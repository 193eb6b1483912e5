"""TLS for tests: certificates of our own, and a front that takes TLS off for a server that has none of its own.

PostgreSQL of the wheel is made without TLS. What a client asks for and checks is the same, whoever answers it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import trustme

# What a client of PostgreSQL sends first when it wants TLS.
_ASKED = bytes.fromhex("0000000804d2162f")


class Authority:
    """Who signs certificates, and the file that says so."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._ca = trustme.CA()
        self.root = folder / "root.pem"
        self._ca.cert_pem.write_to_path(str(self.root))

    def context(self, *names: str) -> ssl.SSLContext:
        """What a server of these names shows."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._ca.issue_cert(*names).configure_cert(context)
        return context


class Front:
    """Before a server on this machine: whoever asks for TLS gets it, and who does not goes through as he is."""

    def __init__(self, server: int, context: ssl.SSLContext) -> None:
        self._server, self._context = server, context
        self.port = 0
        self.encrypted = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._done = asyncio.get_running_loop(), asyncio.Event()
        listener = await asyncio.start_server(self._passed, "127.0.0.1", 0)
        self.port = listener.sockets[0].getsockname()[1]
        self._ready.set()
        await self._done.wait()
        listener.close()

    async def _passed(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        with contextlib.closing(answers), contextlib.suppress(OSError, EOFError):
            first = await client.readexactly(8)
            if first == _ASKED:
                answers.write(b"S")
                await answers.drain()
                await answers.start_tls(self._context)
                self.encrypted += 1
                first = b""
            server, asks = await asyncio.open_connection("127.0.0.1", self._server)
            with contextlib.closing(asks):
                asks.write(first)
                ways = {asyncio.create_task(_pump(client, asks)), asyncio.create_task(_pump(server, answers))}
                _, open_ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in open_:
                    way.cancel()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while part := await source.read(65536):
            sink.write(part)
            await sink.drain()
