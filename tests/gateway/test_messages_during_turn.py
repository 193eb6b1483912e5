"""Messages that arrive during a turn keep their order and reach no other conversation."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import AsyncSessionDB, content_parts, errors, events, fault_points, types
from holdfast.agent.commands import turns
from holdfast.gateway import commands, message_policy, replies, settings
from holdfast.model import ScriptedModel
from tests.support import agents, gateways
from tests.support.agents import Trickle, calls, shape, tool
from tests.support.memory_platform import MemoryPlatform
from tests.support.polling import until_async

INTERRUPT = settings.GatewaySettings(busy="interrupt")
NOT_SENT = "Interrupted. The message was not sent."


@pytest.mark.parametrize(
    ("mode", "text", "plain", "expected"),
    [
        ("queue", "/STOP", True, "now"),
        ("steer", "/compact", True, "later"),
        ("queue", "/memory", True, "now"),
        ("queue", "/memory forget all", True, "later"),
        ("queue", "Hello", True, "later"),
        ("collect", "stop", True, "later"),
        ("steer", "//stop", True, "steer"),
        ("steer", "a picture", False, "later"),
        ("interrupt", "/etc/hosts is gone", True, "interrupt"),
    ],
)
def test_mode_decides_on_messages_and_commands_about_the_turn_run_at_once(
    mode: message_policy.BusyMode, text: str, plain: bool, expected: str
) -> None:
    assert message_policy.action_during_turn(mode, text, plain) == expected


async def test_stop_ends_the_turn_and_the_next_message_is_answered(db: AsyncSessionDB) -> None:
    async with gateways.open_turn(db, ["Next."]) as turn:
        await turn.chat.say("/stop", key="2")
        one, two = await gateways.wait_settled(db, "1", "2")
        await turn.chat.say("Go on", key="3")
        assert gateways.texts(await turn.chat.replies(2)) == [commands.STOPPED, "Next."]
    assert (one.outcome, two.outcome) == ("interrupted", "command")


async def test_stop_before_the_turn_began_drops_the_message(db: AsyncSessionDB) -> None:
    slow = Trickle("Hm")
    other = agents.agent(db, slow, session_id="talk", route=gateways.ROUTE, owner="loopback:local")
    running = asyncio.create_task(other.run_conversation("First"))
    await slow.stuck.reached.wait()
    async with gateways.open_gateway(db, ScriptedModel()) as (_, chat):
        await chat.say("Second", key="1")
        await gateways.wait_begun(db, "1")
        await chat.say("/stop", key="2")
        one, _ = await gateways.wait_settled(db, "1", "2")
        assert NOT_SENT in gateways.texts(await chat.replies(2))
    assert (one.outcome, one.seq) == ("interrupted", None)
    other.interrupt()
    await running


@pytest.mark.parametrize("mode", ["queue", "collect"])
async def test_message_waits_for_the_turn(mode: str, db: AsyncSessionDB) -> None:
    async with gateways.open_turn(db, ["First.", "Second.", "Third."], busy=mode) as turn:
        await turn.chat.say("Two", key="2")
        await turn.chat.say("Three", key="3")
        await turn.observe()
        _, two, three = await turn.finish("1", "2", "3")
        sent = gateways.texts(turn.chat.sent)[1:]
    if mode == "queue":
        assert (sent, three.joined) == (["First.", "Second.", "Third."], None)
    else:
        assert (sent, three.joined, three.seq) == (["First.", "Second."], two.id, two.seq)
        assert content_parts.text(turn.model.requests[2].messages[-1].content) == "Two\n\nThree"


async def test_messages_of_different_senders_are_not_joined(db: AsyncSessionDB) -> None:
    ann, ben = ({"kind": "group", "chat": "g", "sender": sender} for sender in ("ann", "ben"))
    answers = ["First.", "Second.", "Third."]
    async with gateways.open_turn(db, answers, busy="collect", where=ann, shared=True) as turn:
        await turn.chat.say("Two", key="2", **ann)
        await turn.chat.say("Three", key="3", **ben)
        await turn.observe(**ben)
        found = await turn.finish("1", "2", "3")
    assert [each.joined for each in found] == [None] * 3


async def test_joined_messages_are_the_same_message_after_a_crash(db: AsyncSessionDB) -> None:
    await gateways.begin_elsewhere(db, "1", "One", "Two")
    await db.mail.add_inbound(gateways.new_inbound("3", "Three"))
    model = ScriptedModel(["Both.", "Third."])
    async with gateways.open_gateway(db, model) as (_, chat):
        assert gateways.texts(await chat.replies(2)) == ["Both.", "Third."]
        found = await gateways.wait_settled(db, "1", "1+1", "3")
    assert [each.seq for each in found] == [1, 1, 3]
    assert content_parts.text(model.requests[0].messages[-1].content) == "One\n\nTwo"


@pytest.mark.parametrize(("mode", "line", "waiting"), [("steer", "Quickly", []), ("queue", "/steer Quickly", ["Two"])])
async def test_steering_message_reaches_the_turn_before_its_next_step(
    mode: str, line: str, waiting: list[str], db: AsyncSessionDB
) -> None:
    async with gateways.open_turn(db, ["Done, quickly.", "Second."], busy=mode) as turn:
        for text in waiting:
            await turn.chat.say(text, key=text)
        await turn.chat.say(line, key="2")
        await gateways.wait_begun(db, "2")
        one, two, *_ = await turn.finish("1", "2", *waiting)
        expected = ["Done, quickly.", "Second."][: 1 + len(waiting)]
        expected += [turns.STEERED.text] if line.startswith("/") else []
        assert sorted(gateways.texts(turn.chat.sent)) == sorted(expected)
    assert (one.outcome, two.outcome, two.seq, two.attempts) == ("answered", "steered", 4, 1)
    assert shape(await db.transcript(one.conversation_id or ""))[3] == ("user", "Quickly")


async def test_steering_message_whose_turn_is_over_is_answered(db: AsyncSessionDB) -> None:
    await gateways.begin_elsewhere(db, "1", "/steer Quickly")
    async with gateways.open_gateway(db, ScriptedModel(["As you say."])) as (_, chat):
        assert gateways.texts(await chat.replies(1)) == ["As you say."]
        (found,) = await gateways.wait_settled(db, "1")
    assert (found.outcome, found.seq) == ("answered", 1)


async def test_steered_message_is_not_repeated_after_a_crash(db: AsyncSessionDB) -> None:
    gate, model = gateways.Gate(), ScriptedModel([calls("wait"), "Done."])
    options = {"session_id": "talk", "route": gateways.ROUTE, "owner": "loopback:local"}
    elsewhere = agents.agent(db, model, tools=[tool("wait", gate)], **options)
    running = asyncio.create_task(elsewhere.run_conversation("One"))
    await gate.reached.wait()
    await gateways.begin_elsewhere(db, "2", "Quickly")
    assert elsewhere.steer("Quickly", "inbox:loopback:2")
    gate.go.set()
    await running
    async with gateways.open_gateway(db, model, settings=settings.GatewaySettings(busy="steer")) as (opened, chat):
        (found,) = await gateways.wait_settled(db, "2")
        await gateways.wait_idle(opened, db)
        assert chat.sent == []
    assert (found.outcome, found.seq, len(model.requests)) == ("steered", 4, 2)


async def test_message_after_new_is_not_added_to_the_turn_before_it(db: AsyncSessionDB) -> None:
    async with gateways.open_turn(db, ["First.", "Second."], busy="steer") as turn:
        await turn.chat.say("/new", key="2")
        await turn.chat.say("A secret", key="3")
        await turn.observe()
        one, _, secret = await turn.finish("1", "2", "3")
        assert gateways.texts(turn.chat.sent)[1:] == ["First.", commands.NEW, "Second."]
    assert (secret.outcome, secret.conversation_id == one.conversation_id) == ("answered", False)
    assert "A secret" not in str(shape(await db.transcript(one.conversation_id or "")))


async def test_command_that_only_shows_something_waits_for_earlier_messages_but_not_for_the_turn(
    db: AsyncSessionDB,
) -> None:
    async with gateways.open_turn(db, ["First."]) as turn:
        await gateways.settle(db, turn.chat, "/memory", key="2")
        await turn.chat.say("/memory add Tea", key="3")
        await turn.chat.say("/memory", key="4")
        await turn.observe()
        assert len(await turn.chat.replies(2)) == 2
        await turn.finish("1", "3", "4")
        sent = gateways.texts(turn.chat.sent)
    assert (sent[0], sent[2]) == ("No notes.", "First.")
    assert "Tea" in sent[3]
    assert "Tea" in sent[4]


async def test_message_is_not_added_to_the_turn_of_a_notice(db: AsyncSessionDB) -> None:
    gate, model = gateways.Gate(), ScriptedModel(["Hello!", calls("wait"), "Noticed.", "New."])
    steer = settings.GatewaySettings(busy="steer")
    async with gateways.open_gateway(db, model, settings=steer, tools=[tool("wait", gate)]) as (opened, chat):
        old = await gateways.settle(db, chat, "Hi", key="1")
        await gateways.settle(db, chat, "/new", key="2")
        await db.mail.add_inbox_entry(old.conversation_id or "", "n", "The build ended.")
        opened.router.wake()
        await gate.reached.wait()
        await chat.say("For the new one", key="3")
        await gateways.settle(db, chat, "/status", key="4")
        gate.go.set()
        (found,) = await gateways.wait_settled(db, "3")
        await gateways.wait_idle(opened, db)
    assert (found.outcome, found.conversation_id == old.conversation_id) == ("answered", False)


@pytest.mark.parametrize("mode", ["steer", "interrupt"])
async def test_message_of_another_chat_neither_steers_nor_stops_the_turn(mode: str, db: AsyncSessionDB) -> None:
    seen = set[tuple[str, str]]()

    class Observing(MemoryPlatform):
        def on_event(self, arrival: types.InboundMessage, event: events.AnyEvent) -> None:
            if isinstance(event, events.TextDelta):
                seen.add((arrival.chat, event.text))

    one, two = ({"chat": chat, "sender": "me"} for chat in ("one", "two"))
    script = ["For one.", *["For two."] * 3]
    async with gateways.open_turn(db, script, busy=mode, where=one, platforms=[Observing()]) as turn:
        (began,) = await db.routes()
        await gateways.settle(db, turn.chat, f"/resume {began.conversation_id}", key="r", **two)
        await turn.chat.say("A?", key="2", **two)
        await gateways.wait_begun(db, "2")
        await turn.chat.say("B?", key="3", **two)
        await turn.observe(**two)
        first, a, b = await turn.finish("1", "2", "3")
    said = [(each.text, each.address["chat"]) for each in turn.chat.sent if each.text.startswith("For")]
    assert said[0] == ("For one.", "one")
    assert set(said[1:]) == {("For two.", "two")}
    assert seen == {("dm:one", "For one."), ("dm:two", "For two.")}
    assert (first.outcome, (first.seq or 0) < (a.seq or 0) < (b.seq or 0)) == ("answered", True)


async def test_turn_in_a_shared_chat_is_steered_by_its_sender_only(db: AsyncSessionDB) -> None:
    ann, ben = ({"kind": "group", "chat": "g", "sender": sender} for sender in ("ann", "ben"))
    async with gateways.open_turn(db, ["For Ann.", "For Ben."], busy="steer", where=ann, shared=True) as turn:
        await turn.chat.say("Quickly", key="2", **ann)
        await gateways.wait_begun(db, "2")
        await turn.chat.say("Slowly", key="3", **ben)
        await turn.observe(**ben)
        found = await turn.finish("1", "2", "3")
    assert [each.outcome for each in found] == ["answered", "steered", "answered"]
    steered = str(turn.model.requests[1].messages[-1].content)
    note = replies.SPEAKERS.format(names='id "ann"')
    assert steered == f"{note}\n\n> Quickly\n"


async def test_interrupting_messages_are_answered_as_one_without_the_old_reply(db: AsyncSessionDB) -> None:
    model = gateways.HeldModel("Half an ans", *["All of it."] * 3)
    async with gateways.open_gateway(db, model, settings=INTERRUPT) as (opened, chat):
        await chat.say("One", key="1")
        await model.reached.wait()
        await asyncio.gather(*(chat.say(f"Part {key}", key=key) for key in "234"))
        await until_async(lambda: len(model.requests) > 1)
        model.released.set()
        found = await gateways.wait_settled(db, "1", "2", "3", "4")
        await gateways.wait_idle(opened, db)
        assert set(gateways.texts(chat.sent)) == {"All of it."}
    assert found[0].outcome == "interrupted"
    said = "".join(text for _, text in shape(await db.transcript(found[0].conversation_id or "")))
    assert all(each.seq is not None and each.text in said for each in found)


async def test_turn_is_not_interrupted_before_its_message_is_stored(db: AsyncSessionDB) -> None:
    slow, model = Trickle("Hm"), ScriptedModel(["Yes."] * 2)
    other = agents.agent(db, slow, session_id="talk", route=gateways.ROUTE, owner="loopback:local")
    running = asyncio.create_task(other.run_conversation("First"))
    await slow.stuck.reached.wait()
    async with gateways.open_gateway(db, model, settings=INTERRUPT) as (opened, chat):
        await chat.say("Second", key="1")
        await gateways.wait_begun(db, "1")
        await chat.say("Third", key="2")
        await gateways.settle(db, chat, "/status", key="3")
        other.interrupt()
        await running
        one, two = await gateways.wait_settled(db, "1", "2")
        await gateways.wait_idle(opened, db)
    assert NOT_SENT not in gateways.texts(chat.sent)
    assert (one.seq, two.outcome) == (3, "answered")


async def test_queue_lists_and_drops_waiting_messages_but_not_deleted_ones(db: AsyncSessionDB) -> None:
    async with gateways.open_turn(db, ["First.", "Fourth."]) as turn:
        for key, text in (("2", "Two"), ("3", "Three"), ("4", "Four")):
            await turn.chat.say(text, key=key)
        assert await turn.gateway.handler.delete("loopback", "2")
        for number, line in enumerate(("/queue", "/queue drop 1", "/queue drop 9", "/status"), 1):
            await turn.chat.say(line, key=f"q{number}")
            await turn.chat.replies(number)
        _, deleted, dropped, _ = await turn.finish("1", "2", "3", "4")
        sent = gateways.texts(turn.chat.sent)
    assert sent[:2] == ["1  Three\n2  Four", "Dropped: Three"]
    assert sent[2].startswith("No message 9 is waiting")
    assert sent[3].endswith("running, 1 waiting")
    assert (sent[4:], deleted.outcome, dropped.outcome) == (["First.", "Fourth."], "interrupted", "dropped")


@pytest.mark.parametrize("failing", ["reading the chat", "beginning the command"])
async def test_stop_survives_a_failing_store(failing: str, monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB) -> None:
    failures: list[Exception] = [errors.StoreBusy(), errors.StoreFull()]

    def fail_at(point: str) -> None:
        if point == "begin.begun" and failures:
            raise failures.pop()

    async def fail() -> None:
        fail_at("begin.begun")

    async with gateways.open_turn(db, poll=0.02) as turn:
        if failing == "reading the chat":
            gateways.intercept(db.mail, "open_inbound", fail)
            await until_async(lambda: not failures)  # It is read again and again, also without a new message.
        else:
            monkeypatch.setattr(fault_points, "hook", fail_at)
        await turn.chat.say("/stop", key="2")
        one, two = await gateways.wait_settled(db, "1", "2")
    assert (one.outcome, two.outcome, failures) == ("interrupted", "command", [])
