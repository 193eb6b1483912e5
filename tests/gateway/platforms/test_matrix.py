"""The Matrix platform, with a real homeserver and the people that use it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast import AsyncSessionDB
from holdfast.gateway import gateway, platform
from holdfast.gateway.platforms import plugins
from holdfast.gateway.platforms.matrix import matrix_platform
from holdfast.model import ScriptedModel
from tests.support import matrix_server
from tests.support.gateways import open_gateway, wait_idle


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[matrix_server.Homeserver]:
    with matrix_server.run(tmp_path_factory.mktemp("synapse")) as running:
        yield running


@pytest.fixture
def bot(server: matrix_server.Homeserver) -> matrix_server.Account:
    return server.register("bot")


@pytest.fixture
async def ann(server: matrix_server.Homeserver, bot: matrix_server.Account) -> AsyncIterator[matrix_server.Person]:
    async with matrix_server.person(server, bot) as found:
        yield found


@pytest.fixture
async def ben(server: matrix_server.Homeserver, bot: matrix_server.Account) -> AsyncIterator[matrix_server.Person]:
    async with matrix_server.person(server, bot, "ben") as found:
        yield found


def load(url: str, bot: matrix_server.Account, **settings: Any) -> matrix_platform.MatrixPlatform:
    """Return the platform as the gateway loads it from the settings."""
    table = {"homeserver": url, "token_env": "TOKEN", "invites": ["*:test"], "draft_seconds": 0.05, **settings}
    (found,) = plugins.load({"matrix": table}, {"TOKEN": bot.token})
    assert isinstance(found, matrix_platform.MatrixPlatform)
    return found


@asynccontextmanager
async def serve(
    db: AsyncSessionDB, model: Any, chat: platform.Platform, **given: Any
) -> AsyncIterator[gateway.Gateway]:
    """Run a gateway, and wait until it receives messages."""
    async with open_gateway(db, model, platforms=[chat], **given) as (opened, _):
        await opened.wait_ready()
        yield opened


async def test_message_is_answered_once_with_formatted_text(
    server: matrix_server.Homeserver, bot: matrix_server.Account, ann: matrix_server.Person, db: AsyncSessionDB
) -> None:
    model = ScriptedModel(["**Hello** <b>you</b>, [Ben](https://matrix.to/#/@ben:test)!", "Two."])
    async with serve(db, model, load(server.url, bot)) as opened:
        room = await ann.open_room()
        await ann.send(room, "Hi")
        (reply,) = await ann.replies(room, 1)
        await ann.wait_for(lambda: "Hello" in ann.texts(room)[0])
        await wait_idle(opened, db)
        await ann.send(room, "And you?")
        await ann.wait_for(lambda: "Two." in ann.texts(room))
    (reply, second) = ann.seen(room)
    assert (reply["msgtype"], reply["m.mentions"]) == ("m.text", {})
    assert reply["formatted_body"].startswith("<p><strong>Hello</strong> &lt;b&gt;you&lt;/b&gt;, [Ben](")
    assert second["body"] == "Two."
    (session,) = await db.list_sessions()
    assert [each.role for each in await db.transcript(session.id)] == ["user", "assistant"] * 2
