"""The loopback platform: JSON lines of scripts on a Unix socket."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncSessionDB, errors, types
from holdfast.gateway.platforms import loopback
from holdfast.model import ScriptedModel
from tests.support import polling
from tests.support.gateways import open_gateway


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "s")


class Client:
    """A script at the other end of the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    async def send(self, line: bytes | dict[str, Any]) -> None:
        self.writer.write((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n")
        await self.writer.drain()

    async def receive(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self._reader.readline())
        return found


@asynccontextmanager
async def connect(path: str) -> AsyncIterator[Client]:
    """Connect as soon as the socket is there."""
    found = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]()

    async def is_connected() -> bool:
        with suppress(OSError):
            found.append(await asyncio.open_unix_connection(path))
        return bool(found)

    await polling.until_async(is_connected)
    ((reader, writer),) = found
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


def hello(chat: str = "local", text: str = "Hello!") -> types.NewOutgoing:
    return types.NewOutgoing(platform="loopback", chat=f"dm:{chat}", address={}, text=text)


async def test_line_is_acknowledged_and_answered(path: str, db: AsyncSessionDB) -> None:
    async with open_gateway(db, ScriptedModel(["Hello!"]), platforms=[loopback.LoopbackSocket(path)]):
        async with connect(path) as client:
            await client.send({"text": "Hi", "key": "1", "chat": "a", "sender": "me"})
            taken, reply = await client.receive(), await client.receive()
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert (taken["type"], taken["key"]) == ("taken", "1")
    assert (reply["type"], reply["arrival"], reply["chat"]) == ("reply", taken["arrival"], "a")
    assert reply["text"] == "Hello!"
    assert not os.path.exists(path)


async def test_invalid_line_is_refused_and_the_next_is_accepted(path: str, db: AsyncSessionDB) -> None:
    platforms = [loopback.LoopbackSocket(path)]
    async with open_gateway(db, ScriptedModel(["Hello!"]), platforms=platforms), connect(path) as client:
        for line in (b"{", b"[]", b'{"text": 1}', b"\xff", b'{"kind": "nothing", "text": ""}', b"[" * 5_000):
            await client.send(line)
            assert (await client.receive())["type"] == "error", line
        await client.send({"text": "Hi"})
        assert [(await client.receive())["type"] for _ in range(2)] == ["taken", "reply"]
        client.writer.write(b"x" * (loopback.MAX_LINE * 2 + 2))
        assert (await client.receive())["type"] == "error"


async def test_message_without_a_client_is_sent_to_the_next_one(path: str, db: AsyncSessionDB) -> None:
    async with open_gateway(db, ScriptedModel(), platforms=[loopback.LoopbackSocket(path)]):
        waiting = await db.mail.post(hello())

        async def has_failed() -> bool:
            found = await db.mail.outgoing(waiting.id)
            return found is not None and found.error is not None

        await polling.until_async(has_failed)
        async with connect(path) as client:
            assert (await client.receive())["text"] == "Hello!"


def test_socket_in_use_or_a_file_is_left_alone_and_a_stale_socket_is_replaced(path: str, tmp_path: Path) -> None:
    file = tmp_path / "f"
    with loopback.bind(path) as listening:
        listening.listen()
        with pytest.raises(errors.SettingInvalid):
            loopback.bind(path)
    with loopback.bind(path) as again:
        assert again.family == socket.AF_UNIX
    file.write_text("mine")
    with pytest.raises(errors.SettingInvalid):
        loopback.bind(str(file))
    assert file.read_text() == "mine"


async def test_client_that_does_not_read_is_disconnected_and_delays_no_other(path: str, db: AsyncSessionDB) -> None:
    lines = loopback.LoopbackSocket(path, write_seconds=0.2)
    async with (
        open_gateway(db, ScriptedModel(), platforms=[lines], poll=0.02),
        connect(path) as deaf,
        connect(path) as client,
    ):
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send({"text": "/help", "key": "0"})
        assert (await client.receive())["type"] == "taken"
        await client.receive()
        posted = [await db.mail.post(hello(text="x" * 50_000)) for _ in range(20)]
        assert [(await client.receive())["id"] for _ in posted] == [each.id for each in posted]
        tried = [await db.mail.outgoing(each.id) for each in posted]
        assert [each and each.attempts for each in tried] == [1] * len(posted)
        assert len(lines._writers) == 1


async def test_socket_of_a_stopped_gateway_is_taken_over(path: str, db: AsyncSessionDB) -> None:
    async with open_gateway(db, ScriptedModel(), platforms=[loopback.LoopbackSocket(path)]) as (first, _):
        await first.wait_ready()
        lines = loopback.LoopbackSocket(path, poll_seconds=0.01)
        second = open_gateway(db, ScriptedModel(), platforms=[lines])
        opened, _ = await second.__aenter__()
        await opened.wait_ready()  # It is ready although another gateway has the socket.
    async with connect(path) as client:
        await client.send({"text": "/stop", "key": "1"})
        assert [(await client.receive())["type"] for _ in range(2)] == ["taken", "reply"]
    await second.__aexit__(None, None, None)
