"""Questions of turns: put where they can be answered, each under its own number, for those whom they concern."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from holdfast import AsyncSessionDB, events, types
from holdfast.agent import approvals, commands
from holdfast.agent.commands import permissions
from holdfast.gateway import gateway_context, questions, turn_progress
from holdfast.model import ScriptedModel
from holdfast.model import base as models
from tests.gateway.test_http_hooks import hook, open_hooks
from tests.support import gateways, memory_platform, polling
from tests.support.approvals import Shell, runs


async def test_what_a_hook_would_ask_is_denied_at_once_and_nobody_is_asked_in_the_chat_its_reply_goes_to(
    db: AsyncSessionDB,
) -> None:
    shell, model = Shell(), ScriptedModel([runs("touch it"), "I may not."])
    async with open_hooks(db, model, tools=[shell.tool], build=hook(to="loopback:ann")) as open_:
        await open_.post()
        (sent,) = await open_.chat.replies(1)
    assert (sent.kind, sent.text, shell.ran) == ("reply", "I may not.", [])
    assert approvals.NO_APPROVER in str(model.requests[-1].messages[-1].content)


async def test_a_notice_to_a_hooks_conversation_asks_nobody_either(db: AsyncSessionDB) -> None:
    shell = Shell()
    model = ScriptedModel(["Hm.", runs("touch it"), "I may not."])
    async with open_hooks(db, model, tools=[shell.tool], build=hook(to="loopback:ann")) as open_:
        await open_.post()
        await open_.chat.replies(1)
        arrival = await db.mail.inbound(1)
        assert arrival is not None
        assert arrival.conversation_id is not None
        await db.mail.add_inbox_entry(arrival.conversation_id, "n1", "The build ended.", kind="process")
        _, sent = await open_.chat.replies(2)
    assert (sent.kind, sent.text, shell.ran) == ("reply", "I may not.", [])


async def test_each_question_of_a_conversation_has_its_own_number(db: AsyncSessionDB) -> None:
    shell = Shell()
    model = ScriptedModel([runs("make one"), "One.", runs("make two", "c2"), "Two."])
    async with gateways.open_gateway(db, model, tools=[shell.tool]) as (opened, chat):
        await chat.say("One", key="1")
        await chat.replies(1)
        await chat.say("/deny 1 not now", key="2")
        await gateways.settled(db, "1", "2")
        await chat.say("Two", key="3")
        await chat.replies(4)
        # What was said of the first is no answer to the second.
        await chat.say("/approve 1", key="4")
        await gateways.settled(db, "4")
        assert shell.ran == []
        await chat.say("/approve 2", key="5")
        await gateways.settled(db, "3", "5")
        await gateways.quiet(opened, db)
    questions = [each.text for each in chat.sent if each.kind == "question"]
    assert [each.partition(":")[0] for each in questions] == ["Question 1", "Question 2"]
    assert shell.ran == ["make two"]
    assert any(each.startswith("No approval 1 is pending.") for each in gateways.texts(chat.sent))


async def test_where_several_are_open_an_answer_says_which(db: AsyncSessionDB) -> None:
    shell = Shell()
    both = models.Reply(
        calls=tuple(types.ToolCall(f"c{each}", "shell", {"command": f"make {each}"}) for each in (1, 2)),
        usage=types.Usage(10, 5),
    )
    beside = msgspec.structs.replace(shell.tool, parallel=True)
    async with gateways.open_gateway(db, ScriptedModel([both, "Done."]), tools=[beside]) as (opened, chat):
        await chat.say("Both", key="1")
        await chat.replies(2)
        for number, line in enumerate(("/approve", "/deny", "/approve 7"), 2):
            await chat.say(line, key=str(number))
            await gateways.settled(db, str(number))
        assert shell.ran == []
        refused = gateways.texts(await chat.replies(5))[2:]
        await chat.say("/approve 2", key="8")
        await chat.say("/deny 1 enough", key="9")
        await gateways.settled(db, "1", "8", "9")
        await gateways.quiet(opened, db)
    assert [each.partition(".")[0] for each in refused] == [
        "Several approvals are pending",
        "Several approvals are pending",
        "No approval 7 is pending",
    ]
    assert all("1  Run make 1." in each and "2  Run make 2." in each for each in refused)
    assert shell.ran == ["make 2"]


@pytest.mark.parametrize(
    ("argument", "wanted"),
    [
        ("", (None, "")),
        ("2", (2, "")),
        ("2 always", (2, "always")),
        ("always", (None, "always")),
        ("not  today", (None, "not  today")),
        ("\u0662 x", (None, "\u0662 x")),
        ("9999999999", (None, "9999999999")),
    ],
)
def test_an_answer_begins_with_the_number_it_is_about(argument: str, wanted: tuple[int | None, str]) -> None:
    assert permissions.split_number(argument) == wanted


@pytest.mark.parametrize("line", ["/approve always", "/approve 2 always", "/APPROVE 2  ALWAYS"])
def test_for_ever_is_for_admins_with_a_number_too(line: str) -> None:
    assert commands.needs_admin(line)
    assert not commands.needs_admin(line.lower().replace("always", "once"))


def arrival(sender: str, route: str) -> types.InboundMessage:
    return types.InboundMessage(
        id=1, platform="far", key="1", route=route, home="far", chat="c", sender=sender, address={}, text="/approve",
        parts=[], name="", at=0.0,
    )  # fmt: skip


async def root(_: str, sender: str) -> bool:
    return sender == "root"


GROUP, OWN, DM = "agent:main:far:group:g", "agent:main:far:group:g:@bob", "agent:main:far:dm:bob"


@pytest.mark.parametrize(
    ("route", "asker", "wanted"),
    [
        pytest.param(GROUP, None, False, id="the turn of a notice"),
        (GROUP, ("far", "ann", GROUP), False),
        (GROUP, ("far", "bob", GROUP), True),
        pytest.param(GROUP, ("near", "bob", GROUP), False, id="another of that name"),
        pytest.param(GROUP, ("far", "bob", OWN), False, id="asked elsewhere"),
        (OWN, None, True),
        (DM, None, True),
    ],
)
async def test_a_question_is_for_the_person_whose_turn_it_is_or_an_admin(
    route: str, asker: tuple[str, str, str] | None, wanted: bool, db: AsyncSessionDB
) -> None:
    async with gateways.open_gateway(db, ScriptedModel(), is_admin=root) as (opened, _):
        home = opened.router._context
    turn = None
    if asker is not None:
        platform, sender, where = asker
        turn, _ = await db.mail.add_inbound(
            types.NewInboundMessage(
                platform=platform, key="1", route=where, chat="c", sender=sender, address={}, text="?"
            )
        )
    of = turn.id if turn else None
    assert await questions._may_answer(home, arrival("bob", route), of) is wanted
    assert await questions._may_answer(home, arrival("root", route), of)


async def test_nobody_answers_what_another_chat_of_the_same_conversation_was_asked(db: AsyncSessionDB) -> None:
    shell, model = Shell(), ScriptedModel([runs("rm -rf build"), "No.", "Hello."])
    ann = {"kind": "thread", "chat": "g/t1", "sender": "ann"}
    mallory = {"kind": "thread", "chat": "g/t2", "sender": "mallory"}
    async with gateways.open_gateway(db, model, tools=[shell.tool], shared=True) as (opened, chat):
        first = await chat.say("Start", key="1", **ann)
        await chat.replies(1)
        assert first is not None
        target = (await db.mail.inbound(first.id) or first).target
        await chat.say(f"/resume {target}", key="2", **mallory)
        await gateways.settled(db, "2")
        # Her own turn waits behind that of the other thread.
        await chat.say("Hello", key="3", **mallory)
        await chat.say("/approve 1", key="4", **mallory)
        await gateways.settled(db, "4")
        await chat.say("/approve 1", key="5", **{**ann, "sender": "mallory"})
        await gateways.settled(db, "5")
        assert shell.ran == []
        await chat.say("/deny 1", key="6", **ann)
        await gateways.settled(db, "1", "3", "6")
        await gateways.quiet(opened, db)
    assert shell.ran == []
    said = gateways.texts(chat.sent)
    assert questions.NOT_SHOWN in said
    assert questions.NOT_ALLOWED in said


class Slow(memory_platform.MemoryPlatform):
    """A platform that takes its time with some messages."""

    def __init__(self, slow: str) -> None:
        super().__init__()
        self._slow, self.sends, self.may = slow, asyncio.Event(), asyncio.Event()

    async def send(self, outgoing: types.Outgoing) -> str:
        if self._slow in outgoing.text:
            self.sends.set()
            await self.may.wait()
        return await super().send(outgoing)


async def test_what_was_said_before_a_question_was_shown_does_not_answer_it(db: AsyncSessionDB) -> None:
    shell, slow = Shell(), Slow("rm -rf /srv")
    model = ScriptedModel([runs("ls"), runs("rm -rf /srv", "c2"), "Done."])
    async with gateways.open_gateway(db, model, platforms=[slow], tools=[shell.tool]) as (opened, chat):
        await chat.say("Do it", key="1")
        await chat.replies(1)
        await chat.say("/approve", key="2")
        await slow.sends.wait()
        for key, line in (("3", "/approve"), ("4", "/approve 2")):
            await chat.say(line, key=key)
            await gateways.settled(db, key)
        assert shell.ran == ["ls"]
        slow.may.set()
        await polling.until_async(lambda: _delivered(chat, "rm -rf /srv"))
        await chat.say("/deny", key="5")
        await gateways.settled(db, "1", "5")
        await gateways.quiet(opened, db)
    assert shell.ran == ["ls"]
    assert gateways.texts(chat.sent).count(questions.NOT_SHOWN) == 2


async def _delivered(chat: memory_platform.MemoryPlatform, words: str) -> bool:
    return any(words in each.text for each in chat.sent)


async def test_a_number_is_not_given_again_by_the_next_process(db: AsyncSessionDB) -> None:
    shell = Shell()
    async with gateways.open_gateway(db, ScriptedModel([runs("make one"), "?"]), tools=[shell.tool]) as (_, chat):
        await chat.say("Do it", key="1")
        await chat.replies(1)
    model = ScriptedModel([runs("rm -rf /srv", "c9"), "Done."])
    async with gateways.open_gateway(db, model, tools=[shell.tool]) as (opened, chat):
        (asked,) = await chat.replies(1)
        await chat.say("/approve 1", key="2")
        await gateways.settled(db, "2")
        assert shell.ran == []
        await chat.say("/deny 2", key="3")
        await gateways.settled(db, "1", "3")
        await gateways.quiet(opened, db)
    assert asked.text.startswith("Question 2:")
    assert shell.ran == []


@pytest.mark.parametrize("notice", [True, False])
async def test_what_a_notices_turn_asks_is_not_the_question_of_whose_message_waits_behind_it(
    notice: bool, db: AsyncSessionDB
) -> None:
    await db.create_session("talk", source="test")
    came = types.NewInboundMessage(
        platform="loopback", key="1", route=GROUP, chat="c", sender="bob", address={}, text="Hi"
    )
    waits, _ = await db.mail.add_inbound(came)
    asked = events.ApprovalAsked("r", "c1", "shell", "Run it.")
    async with gateways.open_gateway(db, ScriptedModel()) as (opened, _), opened.runtimes.use("bob") as runtime:
        home, where = opened.router._context, gateway_context.reply_address(waits)
        watch = turn_progress.TurnProgress(home, runtime, "talk", where, waits, "own")
        if not notice:
            watch.on_emitted(events.Emitted("talk", 1, events.MessageStored(1, "own", "user")))
        began = events.TurnStarted("talk", "talk", "Hi", 1, "process" if notice else "")
        watch.on_emitted(events.Emitted("talk", 2, began))
        watch.on_emitted(events.Emitted("talk", 3, asked))
        await polling.until_async(lambda: _asked(db))
        await watch.close()
    (row,) = await db.mail.questions("talk")
    assert row.inbound_id == (None if notice else waits.id)


async def _asked(db: AsyncSessionDB) -> bool:
    return bool(await db.mail.questions("talk"))


async def test_a_question_of_which_a_part_is_missing_was_not_shown(db: AsyncSessionDB) -> None:
    await db.create_session("talk", source="test")
    part = types.NewOutgoing(platform="far", chat="c", address={}, text="…", kind="question")
    for place in (0, 1):
        key = questions.QuestionKey(1, "r", place, 3).text
        row = await db.mail.post(part, key=key, conversation_id="talk")
        await db.mail.mark_delivered(row.id)
    answer = msgspec.structs.replace(arrival("bob", DM), at=1e12)
    assert await questions._shown_questions(db, answer, "talk", {"r"}) == {}
    row = await db.mail.post(part, key=questions.QuestionKey(1, "r", 2, 3).text, conversation_id="talk")
    assert await questions._shown_questions(db, answer, "talk", {"r"}) == {}
    await db.mail.mark_delivered(row.id)
    assert await questions._shown_questions(db, answer, "talk", {"r"}) == {"r": (1, None)}
    assert await questions._shown_questions(db, arrival("bob", DM), "talk", {"r"}) == {}


async def test_a_question_is_told_to_its_end_before_the_next_begins(db: AsyncSessionDB) -> None:
    shell = Shell()
    both = models.Reply(
        calls=tuple(types.ToolCall(f"c{each}", "shell", {"command": each * 9_000}) for each in "ab"),
        usage=types.Usage(10, 5),
    )
    beside = msgspec.structs.replace(shell.tool, parallel=True)
    async with gateways.open_gateway(db, ScriptedModel([both, "Done."]), tools=[beside]) as (_, chat):
        await chat.say("Both", key="1")

        async def told() -> bool:
            return all(sum(sent.text.count(each) for sent in chat.sent) >= 9_000 for each in "ab")

        await polling.until_async(told)
        first = ["a" * 99 in sent.text for sent in chat.sent if "a" * 99 in sent.text or "b" * 99 in sent.text]
        assert first.count(True) > 1
        assert first == sorted(first, reverse=first[0])
