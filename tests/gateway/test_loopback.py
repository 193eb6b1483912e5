"""The platform for scripts: JSON lines in and out."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncSessionDB, SessionDB, errors, types
from holdfast.gateway import platform
from holdfast.gateway.platforms import loopback
from holdfast.model import ScriptedModel
from tests.support import gateways, memory_platform, polling


class Client:
    """A script at the other end of the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    async def tell(self, line: bytes | dict[str, Any]) -> None:
        self.writer.write((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n")
        await self.writer.drain()

    async def hear(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self._reader.readline())
        return found


@asynccontextmanager
async def connected(path: str) -> AsyncIterator[Client]:
    """As soon as somebody listens there."""
    found = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]()

    async def there() -> bool:
        with suppress(OSError):
            found.append(await asyncio.open_unix_connection(path))
        return bool(found)

    await polling.until_async(there)
    ((reader, writer),) = found
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


async def test_a_script_is_acknowledged_and_answered_by_lines(tmp_path: Path, db: AsyncSessionDB) -> None:
    path = str(tmp_path / "s")

    async with gateways.open_gateway(db, ScriptedModel(["Hello!"]), platforms=[loopback.LoopbackSocket(path)]):
        async with connected(path) as client:
            await client.tell({"text": "Hi", "key": "1", "chat": "a", "sender": "me"})
            taken = await client.hear()
            reply = await client.hear()
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert (taken["type"], taken["key"]) == ("taken", "1")
    assert (reply["type"], reply["arrival"], reply["chat"]) == ("reply", taken["arrival"], "a")
    assert reply["text"] == "Hello!"
    assert not os.path.exists(path)


@pytest.mark.parametrize(
    "line", [b"{", b"[]", b'{"text": 1}', b"\xff", b'{"kind": "nothing", "text": ""}', b"[" * 5_000]
)
async def test_a_line_that_is_none_is_answered_and_the_next_is_taken(
    tmp_path: Path, line: bytes, db: AsyncSessionDB
) -> None:
    path = str(tmp_path / "s")

    platforms = [loopback.LoopbackSocket(path)]
    async with (
        gateways.open_gateway(db, ScriptedModel(["Hello!"]), platforms=platforms),
        connected(path) as client,
    ):
        await client.tell(line)
        assert (await client.hear())["type"] == "error"
        await client.tell({"text": "Hi"})
        assert [(await client.hear())["type"] for _ in range(2)] == ["taken", "reply"]


async def test_a_line_that_never_ends_is_refused(tmp_path: Path, db: AsyncSessionDB) -> None:
    path = str(tmp_path / "s")

    platforms = [loopback.LoopbackSocket(path)]
    async with gateways.open_gateway(db, ScriptedModel(), platforms=platforms), connected(path) as client:
        client.writer.write(b"x" * (loopback.MAX_LINE * 2 + 2))
        assert (await client.hear())["type"] == "error"


async def test_of_two_gateways_the_one_that_has_the_clients_sends_to_them(tmp_path: Path) -> None:
    path, store = str(tmp_path / "s"), str(tmp_path / "mail.db")

    async with gateways.store(store) as db:
        ours, theirs = loopback.LoopbackSocket(path), loopback.LoopbackSocket(path)
        async with (
            gateways.open_gateway(db, ScriptedModel(), platforms=[ours]),
            connected(path) as client,
            AsyncSessionDB(SessionDB(store)) as other,
            gateways.open_gateway(other, ScriptedModel(), platforms=[theirs]),
        ):
            await client.tell(b"{")
            await client.hear()
            await theirs.wait_ready()
            several = [
                await other.mail.post(
                    types.NewOutgoing(platform="loopback", chat=f"dm:{each}", address={}, text="Hello!")
                )
                for each in range(5)
            ]
            assert [(await client.hear())["text"] for _ in several] == ["Hello!"] * 5
            assert (ours.owns(several[0]), theirs.owns(several[0])) == (True, False)
            assert [found.attempts for each in several if (found := await db.mail.outgoing(each.id))] == [1] * 5


async def test_what_nobody_was_connected_for_is_sent_to_who_comes_next(tmp_path: Path, db: AsyncSessionDB) -> None:
    path = str(tmp_path / "s")

    message = types.NewOutgoing(platform="loopback", chat="dm:local", address={}, text="Hello!")
    async with gateways.open_gateway(db, ScriptedModel(), platforms=[loopback.LoopbackSocket(path)]):
        waiting = await db.mail.post(message)

        async def failed() -> bool:
            found = await db.mail.outgoing(waiting.id)
            return found is not None and found.error is not None

        await polling.until_async(failed)
        async with connected(path) as client:
            assert (await client.hear())["text"] == "Hello!"


def test_a_socket_that_is_in_use_or_is_a_file_is_left_alone_and_one_left_behind_is_replaced(tmp_path: Path) -> None:
    path, file = str(tmp_path / "s"), tmp_path / "f"
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


async def test_a_gateway_is_ready_when_everything_receives_and_not_before(tmp_path: Path, db: AsyncSessionDB) -> None:
    path = str(tmp_path / "s")

    class Slow(memory_platform.MemoryPlatform):
        def __init__(self) -> None:
            super().__init__("slow")
            self.may = asyncio.Event()

        async def run(self, door: platform.Handler) -> None:
            await self.may.wait()
            await super().run(door)

    lines, slow = loopback.LoopbackSocket(path), Slow()
    async with gateways.open_gateway(db, ScriptedModel(), platforms=[lines, slow]) as (running, _):
        ready = asyncio.create_task(running.wait_ready())
        await lines.wait_ready()
        with socket.socket(socket.AF_UNIX) as talking:
            talking.connect(path)
        assert not ready.done()
        slow.may.set()
        await ready


async def test_a_socket_that_another_gateway_has_keeps_nobody_from_being_ready(
    tmp_path: Path, db: AsyncSessionDB
) -> None:
    path = str(tmp_path / "s")

    async with gateways.open_gateway(db, ScriptedModel(), platforms=[loopback.LoopbackSocket(path)]) as (first, _):
        await first.wait_ready()
        async with gateways.open_gateway(db, ScriptedModel(), platforms=[loopback.LoopbackSocket(path)]) as (
            second,
            _,
        ):
            await second.wait_ready()


async def test_who_does_not_read_is_let_go_and_nobody_else_waits_or_is_told_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    monkeypatch.setattr(loopback, "WRITE_SECONDS", 0.2)
    path = str(tmp_path / "s")

    async with (
        gateways.open_gateway(db, ScriptedModel(), platforms=[lines := loopback.LoopbackSocket(path)]),
        connected(path) as deaf,
        connected(path) as client,
    ):
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.tell({"text": "/help", "key": "0"})
        assert (await client.hear())["type"] == "taken"
        await client.hear()
        long = types.NewOutgoing(platform="loopback", chat="dm:local", address={}, text="x" * 50_000)
        posted = [await db.mail.post(long) for _ in range(20)]
        assert [(await client.hear())["id"] for _ in posted] == [each.id for each in posted]
        tried = [await db.mail.outgoing(each.id) for each in posted]
        assert [each and each.attempts for each in tried] == [1] * len(posted)
        assert len(lines._writers) == 1


async def test_a_gateway_that_leaves_takes_no_socket_of_another_with_it(tmp_path: Path, db: AsyncSessionDB) -> None:
    path = str(tmp_path / "s")

    async with gateways.open_gateway(db, ScriptedModel(), platforms=[loopback.LoopbackSocket(path)]) as (opened, _):
        await opened.wait_ready()
        os.unlink(path)
        other = loopback.bind(path)
    assert os.path.exists(path)
    other.close()


async def test_a_socket_that_another_gateway_leaves_is_taken_over_without_a_word_of_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, db: AsyncSessionDB
) -> None:
    monkeypatch.setattr(loopback, "POLL_SECONDS", 0.01)
    caplog.set_level("INFO", "holdfast.gateway")
    path = str(tmp_path / "s")

    async with gateways.open_gateway(db, ScriptedModel(), platforms=[loopback.LoopbackSocket(path)]) as (first, _):
        await first.wait_ready()
        second = gateways.open_gateway(db, ScriptedModel(), platforms=[loopback.LoopbackSocket(path)])
        opened, _ = await second.__aenter__()
        await opened.wait_ready()
    async with connected(path):
        pass
    await second.__aexit__(None, None, None)
    assert [each.message for each in caplog.records if "listens" in each.message] == [
        f"another gateway listens at {path}; waiting until it stops"
    ]
    assert not [each for each in caplog.records if each.levelname in ("WARNING", "ERROR")]


@dataclasses.dataclass
class Equal(memory_platform.MemoryPlatform):
    """A platform that nothing can be kept under: it says when it is equal to another, and so has no hash."""

    given: str

    def __post_init__(self) -> None:
        super().__init__(self.given)


async def test_a_platform_may_be_any_object(db: AsyncSessionDB) -> None:
    assert Equal.__hash__ is None
    async with gateways.open_gateway(db, ScriptedModel(["Yes."]), platforms=[Equal("far")]) as (_, chat):
        await chat.say("Hi", key="1")
        assert gateways.texts(await chat.replies(1)) == ["Yes."]
