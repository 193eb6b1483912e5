"""Questions of turns: put where they can be answered, each under its own number, for those whom they concern."""

from __future__ import annotations

import msgspec
import pytest

from holdfast import AsyncSessionDB, types
from holdfast.agent import approvals, permitting
from holdfast.gateway import commanding
from holdfast.model import ScriptedModel
from holdfast.model import port as models
from tests.agent.house import Shell, runs
from tests.gateway import stage
from tests.gateway.test_http_hooks import hook, open_hooks


def test_what_a_hook_would_ask_is_denied_at_once_and_nobody_is_asked_in_the_chat_its_reply_goes_to() -> None:
    async def story(db: AsyncSessionDB) -> None:
        shell, model = Shell(), ScriptedModel([runs("touch it"), "I may not."])
        async with open_hooks(db, model, tools=[shell.tool], build=hook(to="loopback:ann")) as open_:
            await open_.post()
            (sent,) = await open_.chat.replies(1)
        assert (sent.kind, sent.text, shell.ran) == ("reply", "I may not.", [])
        assert approvals.NOBODY in str(model.requests[-1].messages[-1].content)

    stage.run(story)


def test_a_notice_to_a_hooks_conversation_asks_nobody_either() -> None:
    async def story(db: AsyncSessionDB) -> None:
        shell = Shell()
        model = ScriptedModel(["Hm.", runs("touch it"), "I may not."])
        async with open_hooks(db, model, tools=[shell.tool], build=hook(to="loopback:ann")) as open_:
            await open_.post()
            await open_.chat.replies(1)
            arrival = await db.arrival(1)
            assert arrival is not None
            assert arrival.conversation_id is not None
            await db.receive(arrival.conversation_id, "n1", "The build ended.", kind="process")
            _, sent = await open_.chat.replies(2)
        assert (sent.kind, sent.text, shell.ran) == ("reply", "I may not.", [])

    stage.run(story)


def test_each_question_of_a_conversation_has_its_own_number() -> None:
    async def story(db: AsyncSessionDB) -> None:
        shell = Shell()
        model = ScriptedModel([runs("make one"), "One.", runs("make two", "c2"), "Two."])
        async with stage.open_gateway(db, model, tools=[shell.tool]) as (opened, chat):
            await chat.say("One", key="1")
            await chat.replies(1)
            await chat.say("/deny 1 not now", key="2")
            await stage.settled(db, "1", "2")
            await chat.say("Two", key="3")
            await chat.replies(4)
            # What was said of the first is no answer to the second.
            await chat.say("/approve 1", key="4")
            await stage.settled(db, "4")
            assert shell.ran == []
            await chat.say("/approve 2", key="5")
            await stage.settled(db, "3", "5")
            await stage.quiet(opened, db)
        questions = [each.text for each in chat.sent if each.kind == "question"]
        assert [each.partition(":")[0] for each in questions] == ["Question 1", "Question 2"]
        assert shell.ran == ["make two"]
        assert any(each.startswith("There is no open question 1.") for each in stage.texts(chat.sent))

    stage.run(story)


def test_where_several_are_open_an_answer_says_which() -> None:
    async def story(db: AsyncSessionDB) -> None:
        shell = Shell()
        both = models.Reply(
            calls=tuple(types.ToolCall(f"c{each}", "shell", {"command": f"make {each}"}) for each in (1, 2)),
            usage=types.Usage(10, 5),
        )
        beside = msgspec.structs.replace(shell.tool, parallel=True)
        async with stage.open_gateway(db, ScriptedModel([both, "Done."]), tools=[beside]) as (opened, chat):
            await chat.say("Both", key="1")
            await chat.replies(2)
            for number, line in enumerate(("/approve", "/deny", "/approve 7"), 2):
                await chat.say(line, key=str(number))
                await stage.settled(db, str(number))
            assert shell.ran == []
            refused = stage.texts(chat.sent)[2:]
            await chat.say("/approve 2", key="8")
            await chat.say("/deny 1 enough", key="9")
            await stage.settled(db, "1", "8", "9")
            await stage.quiet(opened, db)
        assert [each.partition(".")[0] for each in refused] == [
            "Several things are asked",
            "Several things are asked",
            "There is no open question 7",
        ]
        assert all("1  Run make 1." in each and "2  Run make 2." in each for each in refused)
        assert shell.ran == ["make 2"]

    stage.run(story)


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
    assert permitting.numbered(argument) == wanted


@pytest.mark.parametrize("line", ["/approve always", "/approve 2 always", "/APPROVE 2  ALWAYS"])
def test_for_ever_is_for_admins_with_a_number_too(line: str) -> None:
    assert commanding.for_admins(line)
    assert not commanding.for_admins(line.lower().replace("always", "once"))


def arrival(sender: str, route: str) -> types.Arrival:
    return types.Arrival(
        id=1, platform="far", key="1", route=route, home="far", chat="c", sender=sender, address={}, text="/approve",
        parts=[], name="", at=0.0,
    )  # fmt: skip


GROUP, OWN, DM = "agent:main:far:group:g", "agent:main:far:group:g:@bob", "agent:main:far:dm:bob"


@pytest.mark.parametrize(
    ("route", "running", "wanted"),
    [
        pytest.param(GROUP, None, commanding.NOT_YOURS, id="the turn of a notice"),
        (GROUP, "ann", commanding.NOT_YOURS),
        (GROUP, "bob", ""),
        (OWN, None, ""),
        (DM, None, ""),
    ],
)
def test_what_is_nobodys_in_a_group_is_for_admins_to_answer(route: str, running: str | None, wanted: str) -> None:
    async def story(db: AsyncSessionDB) -> None:
        async def is_admin(_: str, sender: str) -> bool:
            return sender == "root"

        async with stage.open_gateway(db, ScriptedModel()) as (opened, _):
            home = opened.router._home._replace(is_admin=is_admin)
        turn = arrival(running, route) if running else None
        assert await commanding.refusal(home, arrival("bob", route), turn) == wanted
        assert await commanding.refusal(home, arrival("root", route), turn) == ""

    stage.run(story)
