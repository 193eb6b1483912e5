"""What goes wrong at the edges: an editor that is gone, a session that cannot be closed, an end that fails."""

from __future__ import annotations

import asyncio
import logging

import pytest
from acp import exceptions, schema

from holdfast import errors
from holdfast.acp import border, channel, server
from holdfast.store import aio
from tests.acp import seat
from tests.agent import stage


def test_that_an_editor_is_gone_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    @border.answered
    async def told() -> None:
        raise ConnectionError("The editor is gone.")

    with pytest.raises(exceptions.RequestError):
        asyncio.run(told())
    assert caplog.records == []


def test_a_session_that_cannot_be_closed_keeps_no_other_open(caplog: pytest.LogCaptureFixture) -> None:
    async def fails(_: str) -> None:
        raise errors.HoldfastError("It is stuck.")

    async def story(editor: seat.Editor) -> None:
        for _ in range(2):
            await editor.new()
        editor.program.doors[0].over = fails  # type: ignore[method-assign]

    seat.run(story)
    assert [each.levelno for each in caplog.records] == [logging.ERROR]


def test_whoever_was_served_is_not_turned_away_afterwards() -> None:
    async def story(db: aio.AsyncSessionDB) -> None:
        person = seat.Editor(seat.House(db, None))
        wire = channel.Channel(person, "1.0")
        person.asking("initialize", protocolVersion=1)
        assert await wire.greeted()
        async with server.Server(person.program) as opened:
            serving = asyncio.create_task(server.attend(opened, wire))
            await person.ask("session/list")
            serving.cancel()
            await asyncio.wait([serving])
        async with asyncio.timeout(5):
            await wire.turn_away("The store could not be closed.")

    stage.run(story)


def test_servers_that_are_to_be_spoken_to_through_the_editor_are_told_of() -> None:
    given = schema.AcpMcpServer(type="acp", name="inner", server_id="1")
    (said,) = server._left_out([given])
    assert "'inner'" in said
