"""Approval questions are asked in the chat of their turn, have a number each, and are answered by its sender."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from holdfast import AsyncSessionDB, events, types
from holdfast.gateway import gateway_context, questions, routes, settings, turn_progress
from holdfast.model import ScriptedModel
from holdfast.model import base as models
from holdfast.runtime import runtime
from tests.support.approvals import Shell, shell_reply
from tests.support.gateways import Gate, new_inbound, open_gateway, settle, texts, wait_idle, wait_sent, wait_settled
from tests.support.memory_platform import MemoryPlatform
from tests.support.polling import until_async

GROUP, OWN, DM = "agent:main:far:group:g", "agent:main:far:group:g:@bob", "agent:main:far:dm:bob"


async def is_root(_: str, sender: str) -> bool:
    return sender == "root"


@pytest.mark.parametrize(
    ("answers", "refusal", "ran", "result"),
    [
        pytest.param([("ann", "/approve")], None, True, "It ran.", id="approved"),
        pytest.param([("ann", "/deny not today")], None, False, "not today", id="denied with a reason"),
        pytest.param([("ben", "/approve"), ("root", "/approve")], questions.NOT_ALLOWED, True, "", id="by an admin"),
        pytest.param([("ann", "/approve always"), ("ann", "/approve")], runtime.ADMINS_ONLY, True, "", id="always"),
        pytest.param([], None, False, turn_progress.NOT_ANSWERED, id="not answered in time"),
    ],
)
async def test_question_is_answered_in_its_chat_by_its_sender_or_an_admin(
    answers: list[tuple[str, str]], refusal: str | None, ran: bool, result: str, db: AsyncSessionDB
) -> None:
    shell, model = Shell(), ScriptedModel([shell_reply("make install"), "Done."])
    given: dict[str, Any] = {"settings": settings.GatewaySettings(answer_within=600.0 if answers else 0.05)}
    given |= {"tools": [shell.tool], "shared": True, "is_admin": is_root}
    async with open_gateway(db, model, **given) as (opened, chat):
        await chat.say("Install it", key="1", kind="group", chat="g", sender="ann")
        await chat.replies(1)
        for number, (sender, line) in enumerate(answers):
            await settle(db, chat, line, key=f"a{number}", kind="group", chat="g", sender=sender)
        await wait_settled(db, "1")
        await wait_idle(opened, db)
    sent = texts(chat.sent)
    assert {each.address["chat"] for each in chat.sent} == {"g"}
    assert sent[0].startswith("Question 1: allow this? Run make install.")
    assert "/approve 1 always (admins) permanently: " in sent[0]
    assert refusal is None or sent[1] == refusal
    assert "Done." in sent
    assert (shell.ran == ["make install"]) is ran
    assert result in str([each.content for each in model.requests[-1].messages if each.role == "tool"])
    assert await db.permissions.grants("loopback:group:g") == []


async def test_questions_are_numbered_across_turns_and_processes(db: AsyncSessionDB) -> None:
    shell = Shell()
    model = ScriptedModel([shell_reply("make one"), "One.", shell_reply("make two", "c2")])
    async with open_gateway(db, model, tools=[shell.tool]) as (_, chat):
        await chat.say("One", key="1")
        await chat.replies(1)
        await chat.say("/deny 1 not now", key="2")
        await wait_settled(db, "1", "2")
        await chat.say("Two", key="3")
        await chat.replies(4)
        # An answer to the first question is no answer to the second.
        await settle(db, chat, "/approve 1", key="4")
    asked = [each.text.partition(":")[0] for each in chat.sent if each.kind == "question"]
    assert asked == ["Question 1", "Question 2"]
    assert any(each.startswith("No approval 1 is pending.") for each in texts(chat.sent))
    model = ScriptedModel([shell_reply("make two", "c9"), "Done."])
    async with open_gateway(db, model, tools=[shell.tool]) as (opened, chat):
        (repeated,) = await chat.replies(1)
        assert repeated.text.startswith("Question 3:")
        await settle(db, chat, "/approve 2", key="5")
        assert shell.ran == []
        await chat.say("/approve 3", key="6")
        await wait_settled(db, "3", "6")
        await wait_idle(opened, db)
    assert shell.ran == ["make two"]


def both(first: str, second: str) -> models.Reply:
    made = (types.ToolCall(f"c{each}", "shell", {"command": line}) for each, line in enumerate((first, second)))
    return models.Reply(calls=tuple(made), usage=types.Usage(10, 5))


async def test_answer_must_name_its_question_if_several_are_pending(db: AsyncSessionDB) -> None:
    shell = Shell()
    parallel = msgspec.structs.replace(shell.tool, parallel=True)
    model = ScriptedModel([both("make 1", "make 2"), "Done."])
    async with open_gateway(db, model, tools=[parallel]) as (opened, chat):
        await chat.say("Both", key="1")
        asked = texts(await chat.replies(2))
        # Parallel calls ask in any order.
        commands = ["make 1", "make 2"] if "make 1" in asked[0] else ["make 2", "make 1"]
        await wait_sent(db)  # An answer counts only for questions that are marked as delivered.
        for number, line in enumerate(("/approve", "/deny", "/approve 7"), 2):
            await settle(db, chat, line, key=str(number))
        assert shell.ran == []
        refused = texts(await chat.replies(5))[2:]
        await chat.say("/approve 2", key="8")
        await chat.say("/deny 1 enough", key="9")
        await wait_settled(db, "1", "8", "9")
        await wait_idle(opened, db)
    problems = ["Several approvals are pending"] * 2 + ["No approval 7 is pending"]
    assert [each.partition(".")[0] for each in refused] == problems
    listed = [f"{number}  Run {command}." for number, command in enumerate(commands, 1)]
    assert all(each.splitlines()[1:] == listed for each in refused)
    assert shell.ran == commands[1:]


async def test_parts_of_two_long_questions_are_not_mixed(db: AsyncSessionDB) -> None:
    parallel = msgspec.structs.replace(Shell().tool, parallel=True)
    async with open_gateway(db, ScriptedModel([both("a" * 9_000, "b" * 9_000)]), tools=[parallel]) as (_, chat):
        await chat.say("Both", key="1")
        await until_async(lambda: all(sum(sent.text.count(each) for sent in chat.sent) >= 9_000 for each in "ab"))
        first = ["a" * 99 in sent.text for sent in chat.sent if "a" * 99 in sent.text or "b" * 99 in sent.text]
        assert first.count(True) > 1
        assert first == sorted(first, reverse=first[0])


@pytest.mark.parametrize(
    ("route", "asker", "wanted"),
    [
        pytest.param(GROUP, None, False, id="turn of a notice"),
        pytest.param(GROUP, ("far", "ann", GROUP), False, id="another member"),
        pytest.param(GROUP, ("far", "bob", GROUP), True, id="own turn"),
        pytest.param(GROUP, ("near", "bob", GROUP), False, id="same id on another platform"),
        pytest.param(GROUP, ("far", "bob", OWN), False, id="asked in another chat"),
        pytest.param(OWN, None, True, id="own chat in a group"),
        pytest.param(DM, None, True, id="direct chat"),
    ],
)
async def test_question_is_for_the_sender_of_its_turn_or_an_admin(
    route: str, asker: tuple[str, str, str] | None, wanted: bool, db: AsyncSessionDB
) -> None:
    async with open_gateway(db, ScriptedModel(), is_admin=is_root) as (opened, _):
        context = opened.router._context
    turn_id = None
    if asker is not None:
        platform, sender, where = asker
        turn, _ = await db.mail.add_inbound(new_inbound("1", "?", platform=platform, route=where, sender=sender))
        turn_id = turn.id
    for sender, expected in (("bob", wanted), ("root", True)):
        new = new_inbound(f"a-{sender}", "/approve", platform="far", route=route, sender=sender)
        answer, _ = await db.mail.add_inbound(new)
        assert await questions._may_answer(context, answer, turn_id) is expected


async def test_question_is_not_answered_from_another_chat_of_its_conversation(db: AsyncSessionDB) -> None:
    shell, model = Shell(), ScriptedModel([shell_reply("rm -rf build"), "No.", "Hello."])
    ann = {"kind": "thread", "chat": "g/t1", "sender": "ann"}
    mallory = {"kind": "thread", "chat": "g/t2", "sender": "mallory"}
    async with open_gateway(db, model, tools=[shell.tool], shared=True) as (opened, chat):
        first = await chat.say("Start", key="1", **ann)
        await chat.replies(1)
        target = (await db.mail.inbound(first.id) or first).target
        await settle(db, chat, f"/resume {target}", key="2", **mallory)
        # Her own turn waits behind that of the other thread.
        await chat.say("Hello", key="3", **mallory)
        await settle(db, chat, "/approve 1", key="4", **mallory)
        await settle(db, chat, "/approve 1", key="5", **{**ann, "sender": "mallory"})
        assert shell.ran == []
        await chat.say("/deny 1", key="6", **ann)
        await wait_settled(db, "1", "3", "6")
        await wait_idle(opened, db)
    assert shell.ran == []
    assert {questions.NOT_SHOWN, questions.NOT_ALLOWED} <= set(texts(chat.sent))


async def test_question_is_shown_once_all_of_it_was_delivered_before_the_answer(db: AsyncSessionDB) -> None:
    async def is_shown(**given: Any) -> bool:
        answer, _ = await db.mail.add_inbound(new_inbound(str(given), "/approve", platform="far", chat="c", **given))
        return bool(await questions._shown_questions(db, answer, "talk", {"r"}))

    await db.create_session("talk", source="test")
    keys = [questions.QuestionKey(1, "r", part, 2).text for part in range(2)]
    assert [questions.question_of(each) is None for each in keys] == [True, False]  # The last part has the buttons.
    part = types.NewOutgoing(platform="far", chat="c", address={}, text="?", kind="question")
    posted = [await db.mail.post(part, key=each, conversation_id="talk") for each in keys]
    late = time.time() + 60
    for each in posted:
        assert not await is_shown(at=late + each.id)
        assert await db.mail.mark_delivered(each.id)
    assert not await is_shown(at=posted[0].at - 1)
    assert not await is_shown(at=late, home="near")
    assert await is_shown(at=late)


async def test_approval_sent_before_its_question_was_shown_does_not_count(db: AsyncSessionDB) -> None:
    gate = Gate()

    class Slow(MemoryPlatform):
        async def send(self, outgoing: types.Outgoing) -> str:
            if "rm -rf /srv" in outgoing.text:
                await gate(None)
            return await super().send(outgoing)

    shell, model = Shell(), ScriptedModel([shell_reply("ls"), shell_reply("rm -rf /srv", "c2"), "Done."])
    async with open_gateway(db, model, platforms=[Slow()], tools=[shell.tool]) as (opened, chat):
        await chat.say("Do it", key="1")
        await chat.replies(1)
        await chat.say("/approve", key="2")
        await gate.reached.wait()
        for key, line in (("3", "/approve"), ("4", "/approve 2")):
            await settle(db, chat, line, key=key)
        assert shell.ran == ["ls"]
        gate.go.set()
        await until_async(lambda: any("rm -rf /srv" in each.text for each in chat.sent))
        await chat.say("/deny", key="5")
        await wait_settled(db, "1", "5")
        await wait_idle(opened, db)
    assert shell.ran == ["ls"]
    assert texts(chat.sent).count(questions.NOT_SHOWN) == 2


@pytest.mark.parametrize("notice", [True, False])
async def test_question_of_a_notice_belongs_to_no_waiting_message(notice: bool, db: AsyncSessionDB) -> None:
    await db.create_session("talk", source="test")
    waits, _ = await db.mail.add_inbound(new_inbound("1", "Hi", route=GROUP, chat="c", sender="bob"))
    async with (
        open_gateway(db, ScriptedModel()) as (opened, _),
        opened.runtimes.use(routes.Principal("bob", "bob")) as opened_runtime,
    ):
        context, where = opened.router._context, gateway_context.reply_address(waits)
        progress = turn_progress.TurnProgress(context, opened_runtime, "talk", where, waits, "own")
        seen: list[events.AnyEvent] = [] if notice else [events.MessageStored(1, "own", "user")]
        seen.append(events.TurnStarted("talk", "talk", "Hi", 1, "process" if notice else ""))
        seen.append(events.ApprovalAsked("r", "c1", "shell", "Run it."))
        for number, event in enumerate(seen, 1):
            progress.on_emitted(events.Emitted("talk", number, event))
        await until_async(lambda: db.mail.questions("talk"))
        await progress.close()
    (row,) = await db.mail.questions("talk")
    assert row.inbound_id == (None if notice else waits.id)
