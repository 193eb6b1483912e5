"""The server: connections that nobody asks anything by keep nobody else out, and take no files from the rest."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from holdfast.gateway.platforms.http import server

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Answers:
    """An application whose answers wait until they may go."""

    def __init__(self) -> None:
        self.go, self.asked = asyncio.Event(), 0
        self.go.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked += 1
        await self.go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


class Guests:
    """Who is connected."""

    def __init__(self, port: int) -> None:
        self._port, self.streams = port, list[Stream]()

    async def come(self, sent: bytes = b"") -> Stream:
        found = await asyncio.open_connection("127.0.0.1", self._port)
        self.streams.append(found)
        found[1].write(sent)
        return found


@asynccontextmanager
async def served(app: Answers) -> AsyncIterator[Guests]:
    listening = server.bind("127.0.0.1", 0, has_tokens=False)
    guests = Guests(listening.getsockname()[1])
    async with asyncio.timeout(60), server.serve(app, listening):
        try:
            yield guests
        finally:
            app.go.set()
            for _, writer in guests.streams:
                writer.close()


async def heard(stream: Stream) -> bytes:
    """All that comes until the connection is closed."""
    try:
        return await stream[0].read()
    except ConnectionResetError:
        return b""


async def test_connections_over_the_limit_are_answered_with_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "connection_limit", lambda: 3)
    app = Answers()
    async with served(app) as guests:
        app.go.clear()
        busy = [await guests.come(GET) for _ in range(2)]
        while app.asked < 2:
            await asyncio.sleep(0)
        assert (await heard(await guests.come(GET))).startswith(b"HTTP/1.1 503 ")
        app.go.set()
        assert [(await heard(each))[-2:] for each in busy] == [b"ok", b"ok"]
        assert (await heard(await guests.come(GET))).endswith(b"ok")
    assert app.asked == 3


async def test_head_of_a_request_that_is_too_large_is_refused() -> None:
    app = Answers()
    async with served(app) as guests:
        head = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (server.MAX_HEAD_BYTES + 100)
        assert (await heard(await guests.come(head))).startswith(b"HTTP/1.1 400 ")
    assert not app.asked


def test_files_are_left_for_everything_else_and_as_many_as_may_be_are_asked_for() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (600, before[1]))
        assert (server.connection_limit(), server.connection_limit(100)) == (300, 100)
        server.raise_file_limit(900)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (900, before[1])
        server.raise_file_limit(700)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (900, before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    unit = Path(__file__).parents[2] / "docs" / "holdfast-gateway.service"
    assert f"LimitNOFILE={server.MAX_OPEN_FILES}\n" in unit.read_text()
