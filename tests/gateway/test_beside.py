"""What comes in beside a running turn: commands about it, and messages as the settings say."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast import AsyncSessionDB, content_parts, types
from holdfast.gateway import (
    commands,
    message_policy,
    questions,
    turn_progress,
)
from holdfast.gateway import settings as gateway_settings
from holdfast.model import ScriptedModel
from holdfast.runtime import runtime
from tests.gateway.test_gateway import ROUTE, new
from tests.support import agents as actors
from tests.support import gateways, polling
from tests.support.agents import Stuck, Trickle, calls, shape, tool
from tests.support.approvals import Shell, runs


def settings(mode: message_policy.BusyMode, **given: float) -> gateway_settings.GatewaySettings:
    return gateway_settings.GatewaySettings(busy=mode, **given)  # type: ignore[arg-type]


class Gate:
    """A tool that says when it was reached, and waits to be let go."""

    def __init__(self) -> None:
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, _: object) -> types.Content:
        self.reached.set()
        await self.go.wait()
        return "ok"


async def test_stop_stops_the_turn_and_the_next_message_is_answered(db: AsyncSessionDB) -> None:
    stuck = Stuck()
    model = ScriptedModel([calls("wait"), "Next."])
    async with gateways.open_gateway(db, model, tools=[tool("wait", stuck)]) as (_, chat):
        await chat.say("Wait", key="1")
        await stuck.reached.wait()
        await chat.say("/stop", key="2")
        one, two = await gateways.settled(db, "1", "2")
        await chat.say("Go on", key="3")
        await gateways.settled(db, "3")
        sent = gateways.texts(await chat.replies(2))
    assert (one.outcome, two.outcome) == ("interrupted", "command")
    assert sent == [commands.DONE, "Next."]
    assert stuck.cancelled


@pytest.mark.parametrize("mode", ["queue", "collect"])
async def test_by_default_a_message_waits_for_the_turn(mode: message_policy.BusyMode, db: AsyncSessionDB) -> None:
    gate, model = Gate(), ScriptedModel([calls("wait"), "First.", "Second.", "Third."])
    async with gateways.open_gateway(db, model, settings=settings(mode), tools=[tool("wait", gate)]) as (_, chat):
        await chat.say("One", key="1")
        await gate.reached.wait()
        await chat.say("Two", key="2")
        await chat.say("Three", key="3")
        await chat.say("/status", key="4")
        await gateways.settled(db, "4")
        gate.go.set()
        found = await gateways.settled(db, "1", "2", "3")
        sent = gateways.texts(await chat.replies(4 if mode == "queue" else 3))[1:]
    if mode == "queue":
        assert sent == ["First.", "Second.", "Third."]
        assert [each.joined for each in found] == [None, None, None]
    else:
        assert sent == ["First.", "Second."]
        assert (found[2].joined, found[2].seq) == (found[1].id, found[1].seq)
        assert content_parts.text(model.requests[2].messages[-1].content) == "Two\n\nThree"


async def test_what_was_collected_before_a_process_died_is_the_same_message_after_it(db: AsyncSessionDB) -> None:
    first, _ = await db.mail.add_inbound(new("1", "One"))
    second, _ = await db.mail.add_inbound(new("2", "Two"))
    claim = await db.mail.acquire_chat_lease(f"route:{ROUTE}")
    await db.mail.begin_inbound(claim, first.id, "talk", [second.id])
    await db.mail.release_chat_lease(claim)
    await db.mail.add_inbound(new("3", "Three"))
    model = ScriptedModel(["Both.", "Third."])
    async with gateways.open_gateway(db, model, settings=settings("queue")) as (_, chat):
        assert gateways.texts(await chat.replies(2)) == ["Both.", "Third."]
        found = await gateways.settled(db, "1", "2", "3")
    assert [each.seq for each in found] == [1, 1, 3]
    assert content_parts.text(model.requests[0].messages[-1].content) == "One\n\nTwo"


@pytest.mark.parametrize(("mode", "line"), [("steer", "Quickly"), ("queue", "/steer Quickly")])
async def test_a_running_turn_can_be_told_something_before_its_next_step(
    mode: message_policy.BusyMode, line: str, db: AsyncSessionDB
) -> None:
    gate, model = Gate(), ScriptedModel([calls("wait"), "Done, quickly."])
    async with gateways.open_gateway(db, model, settings=settings(mode), tools=[tool("wait", gate)]) as (opened, chat):
        await chat.say("One", key="1")
        await gate.reached.wait()
        await chat.say(line, key="2")
        await polling.until_async(lambda: told(db, "2"))
        gate.go.set()
        one, two = await gateways.settled(db, "1", "2")
        await gateways.quiet(opened, db)
        assert gateways.texts(chat.sent) == ["Done, quickly."]
    assert (one.outcome, two.outcome, two.seq, two.attempts) == ("answered", "steered", 4, 1)
    assert shape(await db.transcript(one.conversation_id or ""))[3] == ("user", "Quickly")


async def test_what_a_turn_could_not_be_told_any_more_is_a_message_like_any_other(db: AsyncSessionDB) -> None:
    arrival, _ = await db.mail.add_inbound(new("1", "/steer Quickly"))
    claim = await db.mail.acquire_chat_lease(f"route:{ROUTE}")
    await db.mail.begin_inbound(claim, arrival.id, "talk")
    await db.mail.release_chat_lease(claim)
    async with gateways.open_gateway(db, ScriptedModel(["As you say."])) as (_, chat):
        assert gateways.texts(await chat.replies(1)) == ["As you say."]
        (found,) = await gateways.settled(db, "1")
    assert (found.outcome, found.seq) == ("answered", 1)


async def test_what_a_turn_was_told_before_a_process_died_is_not_told_again(db: AsyncSessionDB) -> None:
    gate, model = Gate(), ScriptedModel([calls("wait"), "Done."])
    elsewhere = actors.agent(db, model, session_id="talk", route=ROUTE, tools=[tool("wait", gate)])
    running = asyncio.create_task(elsewhere.run_conversation("One"))
    await gate.reached.wait()
    arrival, _ = await db.mail.add_inbound(new("2", "Quickly"))
    claim = await db.mail.acquire_chat_lease(f"route:{ROUTE}")
    await db.mail.begin_inbound(claim, arrival.id, "talk")
    assert elsewhere.steer("Quickly", "inbox:loopback:2")
    gate.go.set()
    await running
    await db.mail.release_chat_lease(claim)
    async with gateways.open_gateway(db, model, settings=settings("steer")) as (opened, chat):
        (found,) = await gateways.settled(db, "2")
        await gateways.quiet(opened, db)
        assert chat.sent == []
    assert (found.outcome, found.seq) == ("steered", 4)
    assert len(model.requests) == 2


async def test_a_message_interrupts_the_turn_where_the_settings_say_so(db: AsyncSessionDB) -> None:
    stuck, model = Stuck(), ScriptedModel([calls("wait"), "The newer one."])
    async with gateways.open_gateway(db, model, settings=settings("interrupt"), tools=[tool("wait", stuck)]) as (
        _,
        chat,
    ):
        await chat.say("One", key="1")
        await stuck.reached.wait()
        await chat.say("Two", key="2")
        one, two = await gateways.settled(db, "1", "2")
        assert gateways.texts(await chat.replies(1)) == ["The newer one."]
    assert (one.outcome, two.outcome) == ("interrupted", "answered")


async def test_what_waits_is_listed_and_can_be_taken_back(db: AsyncSessionDB) -> None:
    gate, model = Gate(), ScriptedModel([calls("wait"), "First.", "Third."])
    async with gateways.open_gateway(db, model, tools=[tool("wait", gate)]) as (opened, chat):
        await chat.say("One", key="1")
        await gate.reached.wait()
        await chat.say("Two", key="2")
        await chat.say("Three", key="3")
        for number, line in enumerate(("/queue", "/queue drop 1", "/queue drop 9")):
            await chat.say(line, key=f"q{number}")
            await chat.replies(number + 1)
        gate.go.set()
        await gateways.settled(db, "1", "2", "3")
        await gateways.quiet(opened, db)
        sent = gateways.texts(chat.sent)
    assert sent[:2] == ["1  Two\n2  Three", "Dropped: Two"]
    assert sent[2].startswith("No message 9 is waiting")
    assert sent[3:] == ["First.", "Third."]
    dropped = await db.mail.inbound_by_key("loopback", "2")
    assert dropped is not None
    assert dropped.outcome == "dropped"


async def test_queue_lists_neither_deletions_nor_deleted_messages(db: AsyncSessionDB) -> None:
    gate, model = Gate(), ScriptedModel([calls("wait"), "First.", "Third."])
    async with gateways.open_gateway(db, model, tools=[tool("wait", gate)]) as (opened, chat):
        await chat.say("One", key="1")
        await gate.reached.wait()
        await chat.say("Two", key="2")
        await chat.say("Three", key="3")
        assert chat.handler is not None
        assert await chat.handler.delete("loopback", "2")
        for number, line in enumerate(("/queue", "/queue drop 2")):
            await chat.say(line, key=f"q{number}")
            await chat.replies(number + 1)
        gate.go.set()
        _, two, _ = await gateways.settled(db, "1", "2", "3")
        await gateways.quiet(opened, db)
        sent = gateways.texts(chat.sent)
    assert sent[0] == "1  Three"
    assert sent[1].startswith("No message 2 is waiting")
    assert (sent[2:], two.outcome) == (["First.", "Third."], "interrupted")


# --- questions ----------------------------------------------------------------------------------------

Answers = Callable[[object], Awaitable[None]]


async def asked(
    db: AsyncSessionDB, lines: list[tuple[str, str]], **given: object
) -> tuple[list[str], Shell, list[str]]:
    """What is sent, what was run, and what the model was told, where a turn asks and these lines come."""
    shell = Shell()
    model = ScriptedModel([runs("make install"), "Done."])
    admins = given.pop("admins", ())

    async def is_admin(_: str, sender: str) -> bool:
        return sender in admins  # type: ignore[operator]

    async with gateways.open_gateway(
        db,
        model,
        tools=[shell.tool],
        shared=True,
        is_admin=is_admin,
        **given,  # type: ignore[arg-type]
    ) as (opened, chat):
        await chat.say("Install it", key="1", kind="group", chat="g", sender="ann")
        await chat.replies(1)
        for number, (sender, line) in enumerate(lines):
            await chat.say(line, key=f"a{number}", kind="group", chat="g", sender=sender)
            await gateways.settled(db, f"a{number}")
        await gateways.settled(db, "1")
        await gateways.quiet(opened, db)
        assert {each.address["chat"] for each in chat.sent} == {"g"}
        told = [str(each.content) for each in model.requests[-1].messages if each.role == "tool"]
        return gateways.texts(chat.sent), shell, told


async def test_a_question_is_asked_in_the_chat_and_answered_there(db: AsyncSessionDB) -> None:
    sent, shell, _ = await asked(db, [("ann", "/approve")])
    assert sent[0].startswith("Question 1: allow this? Run make install.")
    assert "/approve" in sent[0]
    assert sent[1:] in (["Allowed: Run make install.", "Done."], ["Done.", "Allowed: Run make install."])
    assert shell.ran == ["make install"]


async def test_who_denies_may_say_why(db: AsyncSessionDB) -> None:
    _, shell, told = await asked(db, [("ann", "/deny not today")])
    assert shell.ran == []
    assert "not today" in told[0]


async def test_only_whose_turn_it_is_or_an_admin_answers(db: AsyncSessionDB) -> None:
    sent, shell, _ = await asked(db, [("ben", "/approve"), ("root", "/approve")], admins=("root",))
    assert sent[1] == questions.NOT_ALLOWED
    assert shell.ran == ["make install"]


async def test_for_ever_is_allowed_by_admins_only(db: AsyncSessionDB) -> None:
    sent, shell, _ = await asked(db, [("ann", "/approve always"), ("ann", "/approve conversation")])
    assert sent[1] == runtime.ADMINS_ONLY
    assert shell.ran == ["make install"]
    assert [each.conversation_id is None for each in await db.permissions.grants("loopback:group:g")] in (
        [],
        [False],
    )


async def test_a_question_nobody_answers_is_denied_in_time(db: AsyncSessionDB) -> None:
    _, shell, told = await asked(db, [], settings=gateway_settings.GatewaySettings(answer_within=0.05))
    assert shell.ran == []
    assert told[0].endswith(turn_progress.NOT_ANSWERED)
    assert "denied" not in told[0]


async def test_a_message_that_was_stopped_before_it_began_is_asked_for_again(db: AsyncSessionDB) -> None:
    slow = Trickle("Hm")
    other = actors.agent(db, slow, session_id="talk", route=ROUTE)
    running = asyncio.create_task(other.run_conversation("First"))
    await slow.stuck.reached.wait()
    async with gateways.open_gateway(db, ScriptedModel()) as (_, chat):
        await chat.say("Second", key="1")
        await polling.until_async(lambda: told(db, "1"))
        await chat.say("/stop", key="2")
        one, _ = await gateways.settled(db, "1", "2")
        assert "Interrupted. The message was not sent." in gateways.texts(await chat.replies(2))
    assert (one.outcome, one.seq) == ("interrupted", None)
    other.interrupt()
    await running


async def told(db: AsyncSessionDB, key: str) -> bool:
    found = await db.mail.inbound_by_key("loopback", key)
    return found is not None and found.attempts > 0


async def test_a_platform_sees_the_turn_as_it_goes(db: AsyncSessionDB) -> None:
    seen: list[str] = []

    class Shows(gateways.memory_platform.MemoryPlatform):
        def on_event(self, arrival: types.InboundMessage, event: object) -> None:
            seen.append(f"{arrival.key} {type(event).__name__}")
            raise RuntimeError("the screen is broken")

        async def send_typing(self, address: dict[str, object]) -> None:
            seen.append(f"typing {address['chat']}")

    async with gateways.open_gateway(db, ScriptedModel(["Yes."]), platforms=[Shows()]) as (_, chat):
        await chat.say("Hi", key="1")
        assert gateways.texts(await chat.replies(1)) == ["Yes."]
    assert "typing local" in seen
    order = [each for each in seen if each.split()[-1] in ("TurnStarted", "TextDelta", "TurnFinished")]
    assert order == ["1 TurnStarted", "1 TextDelta", "1 TurnFinished"]
