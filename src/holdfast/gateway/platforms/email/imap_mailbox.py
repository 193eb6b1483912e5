"""A folder of an IMAP server. The client library blocks, so its calls run in a worker thread, one at a time."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import imapclient  # type: ignore[import-untyped]

from holdfast.gateway.platforms import email

CONNECT_SECONDS, READ_SECONDS = 10.0, 60.0
T = TypeVar("T")


class ImapMailbox:
    """An open folder."""

    def __init__(self) -> None:
        self._client: Any = None
        self._call: asyncio.Future[Any] | None = None

    async def unseen(self) -> list[int]:
        """Return the UIDs of unread mails, in the order of arrival."""
        return await self._run(lambda: sorted(self._client.search("UNSEEN")))

    async def fetch_headers(self, uid: int) -> tuple[bytes, int]:
        """Return the headers and the size of a mail; empty if it was removed."""

        def fetch() -> tuple[bytes, int]:
            found = self._client.fetch([uid], ["RFC822.SIZE", "BODY.PEEK[HEADER]"]).get(uid, {})
            return found.get(b"BODY[HEADER]") or b"", found.get(b"RFC822.SIZE", 0)

        return await self._run(fetch)

    async def fetch(self, uid: int) -> bytes:
        """Return a mail; empty if it was removed."""
        return await self._run(lambda: self._client.fetch([uid], ["BODY.PEEK[]"]).get(uid, {}).get(b"BODY[]") or b"")

    async def add_flags(self, uid: int, *flags: bytes) -> None:
        await self._run(lambda: self._client.add_flags([uid], flags, silent=True))

    async def wait(self, seconds: float) -> None:
        """Wait until the server reports a change, or the time is over. Without IDLE, only the time counts.

        The library does not notice a report that arrives together with the answer to IDLE, so the time must be short.
        """
        if not await self._run(lambda: self._client.has_capability("IDLE")):
            await asyncio.sleep(seconds)
            await self._run(self._client.noop)
            return

        def idle() -> None:
            self._client.idle()
            self._client.idle_check(seconds)
            self._client.idle_done()

        await self._run(idle)

    async def open(self, wanted: email.EmailSettings, password: str, tls: ssl.SSLContext) -> None:
        def connect() -> None:
            timeout = imapclient.SocketTimeout(CONNECT_SECONDS, READ_SECONDS)
            is_tls = wanted.imap_security == "tls"
            self._client = imapclient.IMAPClient(
                wanted.imap_host, wanted.imap_port, ssl=is_tls, ssl_context=tls, timeout=timeout
            )
            if wanted.imap_security == "starttls":
                self._client.starttls(tls)
            self._client.login(wanted.username or wanted.address, password)
            self._client.select_folder(wanted.folder)

        await self._run(connect)

    async def close(self) -> None:
        """Close the connection, which ends a running call, too."""
        if self._client is not None:
            with suppress(OSError):  # Not the method of a TLS socket, which would release what the call uses.
                socket.socket.shutdown(self._client.socket(), socket.SHUT_RDWR)
        if self._call is not None:
            await asyncio.wait([self._call])
        if self._client is not None:
            with suppress(OSError):
                self._client.shutdown()

    async def _run(self, function: Callable[[], T]) -> T:
        self._call = call = asyncio.ensure_future(asyncio.to_thread(function))
        call.add_done_callback(lambda done: done.cancelled() or done.exception())  # It may be cancelled meanwhile.
        return await asyncio.shield(call)


@asynccontextmanager
async def open_mailbox(wanted: email.EmailSettings, password: str, tls: ssl.SSLContext) -> AsyncIterator[ImapMailbox]:
    mailbox = ImapMailbox()
    try:
        await mailbox.open(wanted, password, tls)
        yield mailbox
    finally:
        await mailbox.close()
