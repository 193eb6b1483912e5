"""What goes wrong at the edges: an editor that is gone, a session that cannot be closed, an end that fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from holdfast import errors
from holdfast.acp import channel, client, server
from holdfast.acp import session as sessions
from holdfast.model import ScriptedModel
from holdfast.runtime import runtime
from holdfast.store import async_db
from tests.support import acp_editor


class Unclosable(acp_editor.House):
    """Its first door does not close."""

    @asynccontextmanager
    async def open_runtime(
        self, place: sessions.SessionSpec, client: client.ToolClient
    ) -> AsyncIterator[runtime.Runtime]:
        async with super().open_runtime(place, client) as opened:
            yield opened
        if place is self.places[0]:
            raise errors.HoldfastError("It is stuck.")


class Unreachable(acp_editor.House):
    """What it asks for models is gone."""

    async def models(self) -> Sequence[str]:
        raise ConnectionRefusedError("Nobody is at port 1234.")


@pytest.mark.parametrize("first", ["the frames", "the input"])
async def test_that_an_editor_is_gone_is_no_fault(caplog: pytest.LogCaptureFixture, first: str) -> None:
    async with acp_editor.editor() as person:
        db = person.program.db
        await db.create_session("talk", source="test")
        for number in range(3):
            await db.append_message("talk", role="user", content=f"message {number}")
        # It is told the first of them, and is gone before the second.
        person.reads.clear()
        person.asking("session/load", sessionId="talk", cwd="/", mcpServers=[])
        await acp_editor.so(lambda: any("method" in each for each in person.frames))
        (person.vanish if first == "the frames" else person.leave)()
        await acp_editor.so(person.is_heard)
        person.reads.set()
        await asyncio.wait([person.serving])
    assert caplog.records == []


async def test_another_connection_that_is_lost_is_a_fault_and_logged(
    caplog: pytest.LogCaptureFixture, db: async_db.AsyncSessionDB
) -> None:
    async with acp_editor.seated(Unreachable(db, ScriptedModel([]))) as person:
        answer = await person.asking("session/new", cwd="/", mcpServers=[])
        assert answer["error"]["code"] == -32603
        assert "1234" not in str(answer)
    assert "port 1234" in caplog.text


async def test_a_session_that_cannot_be_closed_keeps_no_other_open(
    caplog: pytest.LogCaptureFixture, db: async_db.AsyncSessionDB
) -> None:
    program = Unclosable(db, ScriptedModel([]))
    async with acp_editor.seated(program) as person:
        for _ in range(2):
            await person.new()
    assert program.open == 0
    assert [each.levelno for each in caplog.records] == [logging.ERROR]


async def test_whoever_was_served_is_not_turned_away_afterwards(db: async_db.AsyncSessionDB) -> None:
    person = acp_editor.Editor(acp_editor.House(db, None))
    wire = channel.EditorChannel(person, "1.0")
    person.asking("initialize", protocolVersion=1)
    assert await wire.wait_initialized()
    serving = asyncio.create_task(server.serve(server.EditorServer(person.program), wire))
    await person.ask("session/list")
    serving.cancel()
    await asyncio.wait([serving])
    async with asyncio.timeout(60):
        await wire.refuse_all("The store could not be closed.")


async def test_mcp_server_with_the_acp_transport_is_reported_with_the_next_prompt() -> None:
    async with acp_editor.editor(["A", "B"]) as person:
        given = {"type": "acp", "name": "inner", "serverId": "1"}
        made = await person.ask("session/new", cwd="/", mcpServers=[given])
        await person.prompt(made["sessionId"], "hello")
        await person.prompt(made["sessionId"], "again")
        assert person.text("agent_thought_chunk").count("'inner' is ignored") == 1
