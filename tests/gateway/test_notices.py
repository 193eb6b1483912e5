"""Notices of programs are answered in the chat their conversation was last spoken to from."""

from __future__ import annotations

import asyncio

from holdfast import AsyncSessionDB, types
from holdfast.gateway import settings as gateway_settings
from holdfast.model import ScriptedModel
from tests.support import gateways
from tests.support.agents import Stuck, Trickle, calls, shape, tool


async def spoken(db: AsyncSessionDB, chat: gateways.memory_platform.MemoryPlatform) -> str:
    """A conversation that began in the chat."""
    await chat.say("Hi", key="1", chat="42", sender="42")
    (found,) = await gateways.settled(db, "1")
    assert found.conversation_id is not None
    return found.conversation_id


async def test_a_notice_is_answered_and_the_reply_goes_to_the_chat(db: AsyncSessionDB) -> None:
    async with gateways.open_gateway(db, ScriptedModel(["Hello!", "The build is through."])) as (opened, chat):
        here = await spoken(db, chat)
        inbound = await db.mail.add_inbox_entry(here, "n1", "The build ended with 0.", kind="process")
        opened.router.wake()
        _, reply = await chat.replies(2)
        await gateways.quiet(opened, db)
    assert (reply.text, reply.address, reply.inbox_entry_id) == (
        "The build is through.",
        {"chat": "42"},
        inbound.id,
    )
    assert await db.mail.inbox_entries(here) == []
    assert [role for role, _ in shape(await db.transcript(here))] == ["user", "assistant"] * 2


async def test_memory_note_is_shown_in_the_chat(db: AsyncSessionDB) -> None:
    noted = calls("memory", memory='{"action": "remember", "text": "Likes tea."}')
    async with gateways.open_gateway(db, ScriptedModel([noted, "Good."]), remembers=True) as (opened, chat):
        await spoken(db, chat)
        both = {each.kind: each.text for each in await chat.replies(2)}
        await gateways.quiet(opened, db)
    assert both == {"notice": "Added to memory: [1] Likes tea. (/memory forget 1 removes it.)", "reply": "Good."}


async def test_a_notice_of_a_conversation_no_chat_ever_spoke_to_is_left_to_others(db: AsyncSessionDB) -> None:
    await db.create_session("talk", source="terminal")
    await db.mail.add_inbox_entry("talk", "n1", "The build ended.")
    async with gateways.open_gateway(db, ScriptedModel(["Hello!"])) as (opened, chat):
        await spoken(db, chat)
        opened.router.wake()
        await gateways.quiet(opened, db)
        assert len(chat.sent) == 1
    assert len(await db.mail.inbox_entries("talk")) == 1


async def test_a_notice_never_interrupts_a_turn_and_comes_before_the_next_message(db: AsyncSessionDB) -> None:
    reached, go = asyncio.Event(), asyncio.Event()

    async def wait(_: object) -> types.Content:
        reached.set()
        await go.wait()
        return "ok"

    model = ScriptedModel(["Hello!", calls("wait"), "Waited.", "Told.", "And next."])
    given = {"tools": [tool("wait", wait)], "settings": gateway_settings.GatewaySettings(busy="interrupt")}
    async with gateways.open_gateway(db, model, **given) as (opened, chat):  # type: ignore[arg-type]
        here = await spoken(db, chat)
        await chat.say("Wait", key="2", chat="42", sender="42")
        await reached.wait()
        await db.mail.add_inbox_entry(here, "n1", "The build ended.")
        opened.router.wake()
        go.set()
        await chat.replies(3)
        await chat.say("Next", key="3", chat="42", sender="42")
        assert gateways.texts(await chat.replies(4)) == ["Hello!", "Waited.", "Told.", "And next."]


async def test_a_notice_whose_turn_is_left_to_another_process_is_answered_by_that_one(db: AsyncSessionDB) -> None:
    slow = Trickle("Hm")
    async with gateways.open_gateway(db, ScriptedModel(["Hello!"])) as (_, chat):
        here = await spoken(db, chat)
    async with gateways.open_gateway(db, slow) as (_, chat):
        await db.mail.add_inbox_entry(here, "n1", "The build ended.")
        await slow.stuck.reached.wait()
    assert len(await db.mail.inbox_entries(here)) == 1
    async with gateways.open_gateway(db, ScriptedModel(["Told."])) as (opened, chat):
        assert gateways.texts(await chat.replies(1)) == ["Told."]
        await gateways.quiet(opened, db)
    assert await db.mail.inbox_entries(here) == []


async def test_the_turn_of_a_notice_can_be_stopped(db: AsyncSessionDB) -> None:
    stuck = Stuck()
    model = ScriptedModel(["Hello!", calls("wait")])
    async with gateways.open_gateway(db, model, tools=[tool("wait", stuck)]) as (opened, chat):
        here = await spoken(db, chat)
        await db.mail.add_inbox_entry(here, "n1", "The build ended.")
        opened.router.wake()
        await stuck.reached.wait()
        await chat.say("/stop", key="2", chat="42", sender="42")
        await gateways.settled(db, "2")
        await gateways.quiet(opened, db)
    assert await db.mail.inbox_entries(here) == []
