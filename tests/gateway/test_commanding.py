"""Commands from chats: carried out at most once, by those who may, in the conversation of the chat."""

from __future__ import annotations

import pytest

from holdfast import AsyncSessionDB, errors
from holdfast.gateway import commands
from holdfast.model import ScriptedModel
from holdfast.runtime import runtime
from tests.gateway.test_beside import Gate
from tests.gateway.test_gateway import ROUTE, new
from tests.support import gateways
from tests.support.agents import calls, tool


async def told(db: AsyncSessionDB, *lines: str, script: tuple[str, ...] = ("ok",) * 9, **given: object) -> list[str]:
    """What each of these is answered with, one after the other."""
    async with gateways.open_gateway(db, ScriptedModel(script), **given) as (_, chat):  # type: ignore[arg-type]
        for number, line in enumerate(lines, 1):
            await chat.say(line, key=str(number))
            await chat.replies(number)
        await gateways.settled(db, *(str(number) for number in range(1, len(lines) + 1)))
        return gateways.texts(chat.sent)


@pytest.mark.parametrize(
    ("line", "starts"),
    [
        ("/help", "/help [COMMAND]"),
        ("/status", ""),
        ("/nonsense", "Unknown command: '/nonsense'."),
        ("/compact", "The conversation begins with your first message"),
        ("/title", "This conversation has no title."),
        ("/stop", "Nothing is running."),
        ("/approve", "No approval is pending."),
        ("/queue", "No messages are waiting."),
        ("/quit", "/quit is not available here."),
        ("/steer", "/steer needs an argument"),
        ("/new", commands.NEW),
        ("/model openai/x", runtime.ADMINS_ONLY),
        ("/resume nowhere", "There is no"),
    ],
)
async def test_a_command_is_answered_before_anything_was_said(line: str, starts: str, db: AsyncSessionDB) -> None:
    (said,) = await told(db, line)
    assert said
    assert said.startswith(starts)
    (found,) = await gateways.settled(db, "1")
    assert (found.outcome, found.conversation_id) == ("command", None)
    assert await db.list_sessions() == []


async def test_help_lists_what_can_be_said_in_chats(db: AsyncSessionDB) -> None:
    (said,) = await told(db, "/help")
    assert "/approve" in said
    assert "/quit" not in said


async def test_a_command_that_was_begun_before_is_not_carried_out_again(db: AsyncSessionDB) -> None:
    await db.create_session("talk", source="test")
    await db.append_message("talk", role="user", content="Hi")
    await db.bind_route(ROUTE, "talk", version=0)
    arrival, _ = await db.mail.add_inbound(new("1", "/title Mine"))
    claim = await db.mail.acquire_chat_lease(f"route:{ROUTE}")
    await db.mail.begin_inbound(claim, arrival.id, "talk")
    await db.mail.release_chat_lease(claim)
    async with gateways.open_gateway(db, ScriptedModel()) as (_, chat):
        (sent,) = await chat.replies(1)
    (found,) = await gateways.settled(db, "1")
    assert sent.text == commands.NOT_REPEATED.format(line="/title")
    assert (found.outcome, found.attempts) == ("command", 2)
    assert (await db.conversation("talk")).title is None


async def test_new_begins_another_conversation_with_the_next_message_and_writes_the_route_once(
    db: AsyncSessionDB,
) -> None:
    said = await told(db, "Hi", "/new Garden", "Roses", "/title")
    assert said[1:] == [commands.NEW, "ok", "Garden"]
    one, _, two, _ = await gateways.settled(db, "1", "2", "3", "4")
    assert one.conversation_id != two.conversation_id
    route = await db.route(ROUTE)
    assert (route.conversation_id, route.version) == (two.conversation_id, 2)


async def test_the_title_of_a_conversation_to_come_outlives_the_process_it_was_told_to(db: AsyncSessionDB) -> None:
    await told(db, "Hi", "/new Garden")
    async with gateways.open_gateway(db, ScriptedModel(["ok"])) as (_, chat):
        await chat.say("Roses", key="10")
        await chat.say("/title", key="11")
        assert [each.text for each in await chat.replies(2)] == ["ok", "Garden"]
    (found,) = await gateways.settled(db, "10")
    assert (await db.conversation(found.conversation_id or "")).owner == "loopback:local"


@pytest.mark.parametrize("title", ["Taken", "\u202e"])
async def test_a_title_that_cannot_be_had_keeps_nobody_from_a_new_conversation(title: str, db: AsyncSessionDB) -> None:
    said = await told(db, "Hi", "/title Taken", f"/new {title}", "Roses")
    assert said[2].endswith(f"\n{commands.NEW}")
    assert said[3] == "ok"
    one, four = await gateways.settled(db, "1", "4")
    assert four.conversation_id not in (None, one.conversation_id)


async def test_a_title_that_was_asked_for_before_the_first_message_is_given_with_it(db: AsyncSessionDB) -> None:
    said = await told(db, "/title Harbour", "Hi", "/title")
    assert said[2] == "Harbour"


async def test_resume_and_branch_bind_the_chat(db: AsyncSessionDB) -> None:
    await told(db, "Hi", "/title One")
    (one,) = await gateways.settled(db, "1")
    async with gateways.open_gateway(db, ScriptedModel(["ok"] * 9)) as (_, chat):
        for number, line in enumerate(("/branch Two", "In the branch", "/resume One", "Back"), 10):
            await chat.say(line, key=str(number))
            await chat.replies(number - 9)
        _, inside, _, back = await gateways.settled(db, "10", "11", "12", "13")
    assert inside.conversation_id not in (None, one.conversation_id)
    assert back.conversation_id == one.conversation_id
    assert chat.sent[2].text == "This chat continues in: One"


async def test_retry_asks_again_and_the_answer_is_the_reply(db: AsyncSessionDB) -> None:
    said = await told(db, "Hi", "/retry", script=("First.", "Second."))
    assert said == ["First.", "Second."]
    (found,) = await gateways.settled(db, "2")
    assert (found.outcome, found.seq) == ("answered", 3)


async def test_two_slashes_begin_a_message(db: AsyncSessionDB) -> None:
    assert await told(db, "//help me", script=("Yes?",)) == ["Yes?"]
    (found,) = await gateways.settled(db, "1")
    (said, _) = await db.transcript(found.conversation_id or "")
    assert "'/help me'" in str(said.content)


async def test_admins_may_choose_the_model(db: AsyncSessionDB) -> None:
    async def everybody(_platform: str, _sender: str) -> bool:
        return True

    (said,) = await told(db, "/model openai/x", is_admin=everybody)
    assert said != runtime.ADMINS_ONLY


async def fail_lookup(_platform: str, _sender: str) -> bool:
    raise errors.StoreBusy


async def test_command_whose_permission_check_fails_is_not_run_and_answered_so(db: AsyncSessionDB) -> None:
    async with gateways.open_gateway(db, ScriptedModel(["Yes."]), is_admin=fail_lookup) as (_, chat):
        await chat.say("/model other", key="1")
        (found,) = await gateways.settled(db, "1")
        (reply,) = await db.mail.replies(found.id)
        assert (found.attempts, reply.text) == (1, commands.ACCESS_UNKNOWN)


async def test_command_whose_permission_check_fails_during_a_turn_is_answered_during_it(db: AsyncSessionDB) -> None:
    gate, model = Gate(), ScriptedModel([calls("wait"), "Done."])
    async with gateways.open_gateway(db, model, tools=[tool("wait", gate)], is_admin=fail_lookup) as (_, chat):
        await chat.say("Go", key="1")
        await gate.reached.wait()
        await chat.say("/approve 1 always", key="2")
        assert gateways.texts(await chat.replies(1)) == [commands.ACCESS_UNKNOWN]
        gate.go.set()
        await gateways.settled(db, "1", "2")
