"""Notices of programs are answered in the chat that their conversation was last used from."""

from __future__ import annotations

from holdfast import AsyncSessionDB
from holdfast.gateway import settings
from holdfast.model import ScriptedModel
from tests.support.agents import Trickle, calls, shape, tool
from tests.support.gateways import Gate, open_gateway, settle, texts, wait_idle
from tests.support.memory_platform import MemoryPlatform

ANN = {"chat": "42", "sender": "42"}


async def begin(db: AsyncSessionDB, chat: MemoryPlatform) -> str:
    """Begin a conversation in the chat, and return its id."""
    found = await settle(db, chat, "Hi", key="1", **ANN)
    return found.conversation_id or ""


async def test_notice_is_answered_in_the_chat_of_its_conversation(db: AsyncSessionDB) -> None:
    await db.create_session("talk", source="terminal")
    await db.mail.add_inbox_entry("talk", "n0", "No chat has ever used this conversation.")
    async with open_gateway(db, ScriptedModel(["Hello!", "The build is through."])) as (opened, chat):
        here = await begin(db, chat)
        entry = await db.mail.add_inbox_entry(here, "n1", "The build ended with 0.", kind="process")
        opened.router.wake()
        _, reply = await chat.replies(2)
        await wait_idle(opened, db)
    assert (reply.text, reply.address, reply.inbox_entry_id) == ("The build is through.", {"chat": "42"}, entry.id)
    assert (await db.mail.inbox_entries(here), len(await db.mail.inbox_entries("talk"))) == ([], 1)
    assert [role for role, _ in shape(await db.transcript(here))] == ["user", "assistant"] * 2


async def test_notice_does_not_interrupt_a_turn_and_precedes_the_next_message(db: AsyncSessionDB) -> None:
    gate, model = Gate(), ScriptedModel(["Hello!", calls("wait"), "Waited.", "Noted.", "And next."])
    interrupt = settings.GatewaySettings(busy="interrupt")
    async with open_gateway(db, model, tools=[tool("wait", gate)], settings=interrupt) as (opened, chat):
        here = await begin(db, chat)
        await chat.say("Wait", key="2", **ANN)
        await gate.reached.wait()
        await db.mail.add_inbox_entry(here, "n1", "The build ended.")
        opened.router.wake()
        gate.go.set()
        await chat.replies(3)
        await chat.say("Next", key="3", **ANN)
        assert texts(await chat.replies(4)) == ["Hello!", "Waited.", "Noted.", "And next."]


async def test_notice_of_a_stopped_gateway_is_answered_by_the_next_one(db: AsyncSessionDB) -> None:
    slow = Trickle("Hm")
    async with open_gateway(db, ScriptedModel(["Hello!"])) as (_, chat):
        here = await begin(db, chat)
    async with open_gateway(db, slow) as (opened, _):
        await db.mail.add_inbox_entry(here, "n1", "The build ended.")
        opened.router.wake()
        await slow.stuck.reached.wait()
    assert len(await db.mail.inbox_entries(here)) == 1
    async with open_gateway(db, ScriptedModel(["Noted."])) as (opened, chat):
        assert texts(await chat.replies(1)) == ["Noted."]
        await wait_idle(opened, db)
    assert await db.mail.inbox_entries(here) == []


async def test_stop_ends_the_turn_of_a_notice(db: AsyncSessionDB) -> None:
    gate = Gate()
    async with open_gateway(db, ScriptedModel(["Hello!", calls("wait")]), tools=[tool("wait", gate)]) as (opened, chat):
        here = await begin(db, chat)
        await db.mail.add_inbox_entry(here, "n1", "The build ended.")
        opened.router.wake()
        await gate.reached.wait()
        await settle(db, chat, "/stop", key="2", **ANN)
        await wait_idle(opened, db)
    assert await db.mail.inbox_entries(here) == []
