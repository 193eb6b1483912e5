"""TLS for tests: a certificate authority, and a proxy that terminates TLS for a server without it.

PostgreSQL of the wheel is made without TLS. A client requests and checks the same with any server.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path
from typing import Self

import trustme
from anyio import from_thread

# What a client of PostgreSQL sends first when it wants TLS.
_ASKED = bytes.fromhex("0000000804d2162f")


class Authority:
    """A certificate authority and the file of its root certificate."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._ca = trustme.CA()
        self.root = folder / "root.pem"
        self._ca.cert_pem.write_to_path(str(self.root))

    def context(self, *names: str) -> ssl.SSLContext:
        """Return a server context with a certificate for these names."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._ca.issue_cert(*names).configure_cert(context)
        return context

    def write(self, name: str, certificate: Path, key: Path) -> None:
        """Write a certificate and its key to files, for a server that is a separate program."""
        issued = self._ca.issue_cert(name)
        issued.private_key_pem.write_to_path(str(key))
        for each in issued.cert_chain_pems:
            each.write_to_path(str(certificate), append=True)


class Front:
    """A proxy of a local server: clients that request TLS get it, others are forwarded unencrypted."""

    def __init__(self, server: int, context: ssl.SSLContext) -> None:
        self._server, self._context = server, context
        self.port = self.encrypted = 0
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        portal = self._stack.enter_context(from_thread.start_blocking_portal())
        listener = portal.call(asyncio.start_server, self._passed, "127.0.0.1", 0)
        self._stack.callback(portal.call, listener.close)
        self.port = listener.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

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
