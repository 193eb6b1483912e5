"""Slash commands from chats run at most once, for senders who may, in the conversation of the chat."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncSessionDB, errors
from holdfast.gateway import commands, gateway_context, replies
from holdfast.model import ScriptedModel, request_common
from holdfast.runtime import runtime
from tests.support import agents, gateways, memory_platform
from tests.support.agents import shape
from tests.support.gateways import ROUTE, open_gateway, open_turn, texts, wait_idle, wait_sent, wait_settled


async def send(db: AsyncSessionDB, *lines: str, model: Any = None, **given: Any) -> list[str]:
    """Send lines, each after the reply to the one before; return the replies."""
    async with open_gateway(db, model or ScriptedModel(["ok"] * 9), **given) as (_, chat):
        for number, line in enumerate(lines, 1):
            await chat.say(line, key=str(number))
            await chat.replies(number)
        await wait_settled(db, *(str(number) for number in range(1, len(lines) + 1)))
        await wait_sent(db)
        return texts(chat.sent)


@pytest.mark.parametrize(
    ("line", "starts"),
    [
        ("/help", "/help [COMMAND]"),
        ("/nonsense", "Unknown command: '/nonsense'."),
        ("/stop", "Nothing is running."),
        ("/quit", "/quit is not available here."),
        ("/new", commands.NEW),
        ("/model openai/x", runtime.ADMINS_ONLY),
        ("/resume nowhere", "There is no"),
    ],
)
async def test_command_is_answered_before_the_first_message(line: str, starts: str, db: AsyncSessionDB) -> None:
    (said,) = await send(db, line)
    assert said.startswith(starts)
    (found,) = await wait_settled(db, "1")
    assert (found.outcome, found.conversation_id) == ("command", None)
    assert await db.list_sessions() == []


async def test_new_conversation_begins_with_the_next_message_and_has_its_title(db: AsyncSessionDB) -> None:
    assert (await send(db, "Hi", "/new Garden"))[1] == commands.NEW
    # The title outlives the process that received it.
    async with open_gateway(db, ScriptedModel(["ok"])) as (_, chat):
        await chat.say("Roses", key="10")
        await chat.say("/title", key="11")
        assert texts(await chat.replies(2)) == ["ok", "Garden"]
    one, two = await wait_settled(db, "1", "10")
    route = await db.route(ROUTE)
    assert (route.conversation_id, route.version) == (two.conversation_id, 2)
    assert one.conversation_id != two.conversation_id
    assert (await db.conversation(two.conversation_id or "")).owner == "loopback:local"


async def test_resume_and_branch_bind_the_chat(db: AsyncSessionDB) -> None:
    said = await send(db, "Hi", "/title One", "/branch Two", "In the branch", "/resume One", "Back")
    one, inside, back = await wait_settled(db, "1", "4", "6")
    assert inside.conversation_id not in (None, one.conversation_id)
    assert back.conversation_id == one.conversation_id
    assert said[2].splitlines()[-1].endswith("goes back.")
    assert said[4] == "This chat continues in: One"


class Formatting(memory_platform.MemoryPlatform):
    def render(self, text: str) -> str:
        return text

    def measure(self, text: str) -> int:
        return len(text)


async def test_reply_that_markdown_would_change_is_a_code_block(db: AsyncSessionDB) -> None:
    lines = ("Rename __init__.py ```", "/recall 1", "/title Plain", "/title a_b", "/search __init__", "/help")
    said = await send(db, *lines, platforms=[Formatting(limit=2_000)])
    assert said[1] == "````\n[1 user] Rename __init__.py ```\n````"
    assert said[2:4] == ["Title: Plain", "```\nTitle: a_b\n```"]
    assert len(said) > len(lines)
    assert all(each.startswith("```") and each.endswith("\n```") for each in said[5:])


async def test_admin_changes_the_model_of_the_chat(db: AsyncSessionDB) -> None:
    options = {"model": agents.ModelChoice(), "is_admin": gateway_context.is_always}
    before, changed, after = await send(db, "Hi", "/model second", "Hi", **options)
    assert (before, changed[:23], after) == ("first", "The model is second now", "second")


async def fail_lookup(_platform: str, _sender: str) -> bool:
    raise errors.StoreBusy


async def test_command_whose_permission_check_fails_is_not_run(db: AsyncSessionDB) -> None:
    async with open_turn(db, ["Done."], is_admin=fail_lookup) as turn:
        await turn.chat.say("/approve 1 always", key="2")
        assert texts(await turn.chat.replies(1)) == [commands.ACCESS_UNKNOWN]
        await turn.chat.say("/model other", key="3")
        *_, found = await turn.finish("1", "2", "3")
        (reply,) = await db.mail.replies(found.id)
        assert (found.attempts, reply.text) == (1, commands.ACCESS_UNKNOWN)


async def test_retry_in_a_shared_chat_keeps_the_sender_of_the_message(db: AsyncSessionDB) -> None:
    ann, ben = ({"kind": "group", "chat": "g", "sender": sender} for sender in ("ann", "ben"))
    async with open_gateway(db, model := ScriptedModel(["First.", "Second."]), shared=True) as (_, chat):
        await gateways.settle(db, chat, "Hi", key="1", **ann)
        await gateways.settle(db, chat, "/retry", key="2", **ben)
    (message,) = model.requests[1].messages
    note = replies.SPEAKERS.format(names='id "ann"')
    assert request_common.content_text(message.content).endswith(f"{note}\n\n> Hi\n")


async def test_interrupted_retry_is_finished_by_the_next_gateway(tmp_path: Path) -> None:
    begun, path = asyncio.Event(), str(tmp_path / "store.db")

    class Hanging(ScriptedModel):
        async def stream(self, request: Any) -> Any:
            if len(self.requests) == 1:
                begun.set()
                await asyncio.Event().wait()
            async for each in super().stream(request):
                yield each

    async with gateways.store(path) as db, open_gateway(db, Hanging(["First."])) as (_, chat):
        await chat.say("Hi", key="1")
        await chat.replies(1)
        await chat.say("/retry", key="2")
        await begun.wait()
    async with gateways.store(path) as db:
        async with open_gateway(db, ScriptedModel(["Second."])) as (opened, chat):
            assert texts(await chat.replies(1)) == ["Second."]
            (found,) = await wait_settled(db, "2")
            await wait_idle(opened, db)
        assert (found.outcome, found.seq, found.attempts) == ("answered", 3, 2)
        said = shape(await db.transcript(found.conversation_id or ""))
        assert [role for role, _ in said] == ["user", "assistant", "user", "assistant"]
        assert [each.role for each in await db.context(found.conversation_id or "")] == ["user", "assistant"]
