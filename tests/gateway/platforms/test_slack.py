"""Slack: messages, threads, edits, files, buttons and commands, over Socket Mode and signed HTTP requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast import AsyncSessionDB
from holdfast.gateway import gateway
from holdfast.model import ScriptedModel
from tests.support import gateways
from tests.support.polling import until_async
from tests.support.slack_server import BOT, SlackServer


@pytest.fixture
async def slack_server() -> AsyncIterator[SlackServer]:
    async with SlackServer().run() as running:
        yield running


async def wait_answered(opened: gateway.Gateway, db: AsyncSessionDB) -> None:
    await gateways.wait_idle(opened, db)


async def test_message_is_answered_in_its_chat(slack_server: SlackServer, db: AsyncSessionDB) -> None:
    chat = slack_server.platform()
    async with gateways.open_gateway(db, ScriptedModel(["Hello **Ann**!"]), platforms=[chat]) as (opened, _):
        await opened.wait_ready()
        said = await slack_server.say("Hi &amp; welcome")
        await wait_answered(opened, db)
    inbound = await db.mail.inbound_by_key("slack", f"D1:{said['event']['ts']}")
    assert inbound is not None
    assert (inbound.text, inbound.sender, inbound.name) == ("Hi & welcome", "U1", "Ann")
    assert slack_server.texts() == ["Hello *Ann*!"]
