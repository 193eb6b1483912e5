"""What comes in during a turn keeps its order, and goes into no other conversation than its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast import AsyncSessionDB, SessionDB, errors, fault_points, types
from holdfast.gateway import commands, platform, router, worker
from holdfast.model import ScriptedModel
from holdfast.model import base as models
from tests.gateway.test_beside import Gate, settings, told
from tests.gateway.test_gateway import ROUTE, new
from tests.support import agents as actors
from tests.support import gateways, polling
from tests.support.agents import Stuck, Trickle, calls, shape, tool


async def looked_at(db: AsyncSessionDB, by: gateways.memory_platform.MemoryPlatform, key: str, **where: str) -> None:
    """Until what was said before this has been looked at beside the turn: what comes last is answered at once."""
    await by.say("/status", key=key, **where)  # type: ignore[arg-type]
    await gateways.settled(db, key)


# --- interrupt ----------------------------------------------------------------------------------------


async def test_of_several_messages_that_interrupt_a_turn_none_is_lost_and_they_are_answered_as_one(
    db: AsyncSessionDB,
) -> None:
    stuck, model = Stuck(), ScriptedModel([calls("wait"), "All of it."])
    given = {"settings": settings("interrupt"), "tools": [tool("wait", stuck)]}
    async with gateways.open_gateway(db, model, **given) as (opened, chat):  # type: ignore[arg-type]
        await chat.say("One", key="1")
        await stuck.reached.wait()
        await asyncio.gather(*(chat.say(f"Part {key}", key=key) for key in "234"))
        found = await gateways.settled(db, "1", "2", "3", "4")
        await gateways.quiet(opened, db)
        assert gateways.texts(chat.sent)[-1] == "All of it."
    assert found[0].outcome == "interrupted"
    said = "".join(text for role, text in shape(await db.transcript(found[0].conversation_id or "")))
    assert all(each.seq is not None and each.text in said for each in found)
    assert "Interrupted. The message was not sent." not in gateways.texts(chat.sent)


async def test_what_waited_before_a_start_is_answered_together_where_messages_interrupt(db: AsyncSessionDB) -> None:
    for key in "123":
        await db.mail.add_inbound(new(key, f"Part {key}"))
    model = ScriptedModel(["All of it."])
    async with gateways.open_gateway(db, model, settings=settings("interrupt")) as (opened, chat):
        found = await gateways.settled(db, "1", "2", "3")
        await gateways.quiet(opened, db)
        assert gateways.texts(chat.sent) == ["All of it."]
    assert [(each.outcome, each.seq) for each in found] == [("answered", 1)] * 3


async def test_a_turn_is_not_interrupted_before_its_message_is_stored(db: AsyncSessionDB) -> None:
    slow, model = Trickle("Hm"), ScriptedModel(["Yes."] * 2)
    other = actors.agent(db, slow, session_id="talk", route=ROUTE)
    running = asyncio.create_task(other.run_conversation("First"))
    await slow.stuck.reached.wait()
    async with gateways.open_gateway(db, model, settings=settings("interrupt")) as (opened, chat):
        await chat.say("Second", key="1")
        await polling.until_async(lambda: told(db, "1"))
        await chat.say("Third", key="2")
        await looked_at(db, chat, "3")
        other.interrupt()
        await running
        one, two = await gateways.settled(db, "1", "2")
        await gateways.quiet(opened, db)
    assert "Interrupted. The message was not sent." not in gateways.texts(chat.sent)
    assert (one.seq, two.outcome) == (3, "answered")


class OneByOne:
    """Models of which each is asked once, in turn."""

    name = "several/models"
    window = 1000

    def __init__(self, *several: models.Model) -> None:
        self._several = list(several)

    async def stream(self, request: models.Request):  # type: ignore[no-untyped-def]
        async for said in self._several.pop(0).stream(request):
            yield said

    async def close(self) -> None:
        pass


async def test_of_a_turn_that_gave_way_nothing_is_sent(db: AsyncSessionDB) -> None:
    slow = Trickle("Half an ans")
    model = OneByOne(slow, ScriptedModel(["The whole answer."]))
    async with gateways.open_gateway(db, model, settings=settings("interrupt")) as (opened, chat):
        await chat.say("One", key="1")
        await slow.stuck.reached.wait()
        await chat.say("Two", key="2")
        await gateways.settled(db, "1", "2")
        await gateways.quiet(opened, db)
        assert gateways.texts(chat.sent) == ["The whole answer."]


# --- steer --------------------------------------------------------------------------------------------


async def test_what_was_said_after_new_is_not_told_to_the_turn_before_it(db: AsyncSessionDB) -> None:
    gate, model = Gate(), ScriptedModel([calls("wait"), "First.", "Second."])
    given = {"settings": settings("steer"), "tools": [tool("wait", gate)]}
    async with gateways.open_gateway(db, model, **given) as (opened, chat):  # type: ignore[arg-type]
        await chat.say("One", key="1")
        await gate.reached.wait()
        await chat.say("/new", key="2")
        await chat.say("A secret", key="3")
        await looked_at(db, chat, "4")
        gate.go.set()
        one, _, secret = await gateways.settled(db, "1", "2", "3")
        await gateways.quiet(opened, db)
        assert gateways.texts(chat.sent)[1:] == ["First.", commands.NEW, "Second."]
    assert (secret.outcome, secret.conversation_id == one.conversation_id) == ("answered", False)
    assert "A secret" not in str(shape(await db.transcript(one.conversation_id or "")))


async def test_a_question_about_a_picture_does_not_overtake_it(db: AsyncSessionDB) -> None:
    gate, model = Gate(), ScriptedModel([calls("wait"), "First.", "A cat.", "Indeed."])
    given = {"settings": settings("steer"), "tools": [tool("wait", gate)]}
    async with gateways.open_gateway(db, model, **given) as (opened, chat):  # type: ignore[arg-type]
        await chat.say("One", key="1")
        await gate.reached.wait()
        picture = (platform.Attachment(b"\x89PNG\r\n\x1a\n", "image/png"),)
        where = {"platform": "loopback", "chat": ("local",), "sender": "local", "address": {"chat": "local"}}
        assert chat.handler is not None
        await chat.handler.receive(platform.Incoming(key="2", attachments=picture, **where))  # type: ignore[arg-type]
        await chat.say("What is in it?", key="3")
        await looked_at(db, chat, "4")
        gate.go.set()
        one, shown, asked = await gateways.settled(db, "1", "2", "3")
        await gateways.quiet(opened, db)
    assert (one.seq or 0) < (shown.seq or 0) < (asked.seq or 0)
    assert shown.outcome == "answered"


async def test_a_message_is_not_told_to_the_turn_of_a_notice(db: AsyncSessionDB) -> None:
    gate, model = Gate(), ScriptedModel(["Hello!", calls("wait"), "Noticed.", "New."])
    given = {"settings": settings("steer"), "tools": [tool("wait", gate)]}
    async with gateways.open_gateway(db, model, **given) as (opened, chat):  # type: ignore[arg-type]
        await chat.say("Hi", key="1")
        (old,) = await gateways.settled(db, "1")
        await chat.say("/new", key="2")
        await gateways.settled(db, "2")
        await db.mail.add_inbox_entry(old.conversation_id or "", "n", "The build ended.")
        opened.router.wake()
        await gate.reached.wait()
        await chat.say("For the new one", key="3")
        await looked_at(db, chat, "4")
        gate.go.set()
        (found,) = await gateways.settled(db, "3")
        await gateways.quiet(opened, db)
    assert (found.outcome, found.conversation_id == old.conversation_id) == ("answered", False)


@pytest.mark.parametrize("mode", ["steer", "interrupt"])
async def test_what_is_said_in_one_chat_is_neither_told_to_the_turn_of_another_nor_stops_it(
    mode: str, db: AsyncSessionDB
) -> None:
    gate, model = Gate(), ScriptedModel(["Here.", calls("wait"), "For one.", *["For two."] * 3])
    given = {"settings": settings(mode), "tools": [tool("wait", gate)]}  # type: ignore[arg-type]
    one, two = ({"chat": chat, "sender": "me"} for chat in ("one", "two"))
    async with gateways.open_gateway(db, model, **given) as (opened, chat):  # type: ignore[arg-type]
        await chat.say("Hi", key="0", **one)
        (began,) = await gateways.settled(db, "0")
        await chat.say(f"/resume {began.conversation_id}", key="r", **two)
        await gateways.settled(db, "r")
        await chat.say("Wait", key="1", **one)
        await gate.reached.wait()
        await chat.say("A?", key="2", **two)
        await polling.until_async(lambda: told(db, "2"))
        await chat.say("B?", key="3", **two)
        await looked_at(db, chat, "4", **two)
        gate.go.set()
        first, a, b = await gateways.settled(db, "1", "2", "3")
        await gateways.quiet(opened, db)
        said = [(each.text, each.address["chat"]) for each in chat.sent if each.text.startswith("For")]
    assert said[0] == ("For one.", "one")
    assert set(said[1:]) == {("For two.", "two")}
    assert (first.outcome, (first.seq or 0) < (a.seq or 0) < (b.seq or 0)) == ("answered", True)


async def test_in_a_shared_chat_only_whose_turn_it_is_tells_it_something(db: AsyncSessionDB) -> None:
    gate, model = Gate(), ScriptedModel([calls("wait"), "For Ann.", "For Ben."])
    given = {"settings": settings("steer"), "tools": [tool("wait", gate)], "shared": True}
    where = {"kind": "group", "chat": "g"}
    async with gateways.open_gateway(db, model, **given) as (opened, chat):  # type: ignore[arg-type]
        await chat.say("One", key="1", sender="ann", **where)  # type: ignore[arg-type]
        await gate.reached.wait()
        await chat.say("Quickly", key="2", sender="ann", **where)  # type: ignore[arg-type]
        await polling.until_async(lambda: told(db, "2"))
        await chat.say("Slowly", key="3", sender="ben", **where)  # type: ignore[arg-type]
        await looked_at(db, chat, "4", sender="ben", **where)
        gate.go.set()
        found = await gateways.settled(db, "1", "2", "3")
        await gateways.quiet(opened, db)
    assert [each.outcome for each in found] == ["answered", "steered", "answered"]


async def test_what_is_said_to_be_for_the_turn_is_told_to_it_whatever_else_waits(db: AsyncSessionDB) -> None:
    gate, model = Gate(), ScriptedModel([calls("wait"), "First.", "Second."])
    async with gateways.open_gateway(db, model, tools=[tool("wait", gate)]) as (opened, chat):
        await chat.say("One", key="1")
        await gate.reached.wait()
        await chat.say("Two", key="2")
        await chat.say("/steer Quickly", key="3")
        await polling.until_async(lambda: told(db, "3"))
        gate.go.set()
        found = await gateways.settled(db, "1", "2", "3")
        await gateways.quiet(opened, db)
        assert gateways.texts(chat.sent) == ["First.", "Second."]
    assert [each.outcome for each in found] == ["answered", "answered", "steered"]


# --- the very end of a turn, and a store that fails ---------------------------------------------------------


class Hindered(AsyncSessionDB):
    """A store whose looks at one chat can be held up, or fail."""

    def __init__(self, db: SessionDB) -> None:
        super().__init__(db)
        self.wrong = list[Exception]()
        self.failed, self.read, self.go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.go_on.set()
        self._open, self.mail.open_inbound = self.mail.open_inbound, self._looked

    async def _looked(self, route: str, limit: int = 100) -> list[types.InboundMessage]:
        if self.wrong:
            self.failed.set()
            raise self.wrong.pop()
        found = await self._open(route, limit)
        self.read.set()
        await self.go_on.wait()
        return found


def hindered(story: Callable[[Hindered], Awaitable[None]]) -> None:
    """Tell a story with such a store; nobody helps it by looking again."""

    async def told() -> None:
        async with Hindered(SessionDB(":memory:")) as db, asyncio.timeout(60):
            await story(db)
            assert (await db.admin.fsck()).ok

    asyncio.run(told())


def test_what_comes_at_the_very_end_of_a_turn_is_worked_on_right_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "POLL_SECONDS", 600.0)

    async def story(db: Hindered) -> None:
        gate, model = Gate(), ScriptedModel([calls("wait"), "First.", "Second."])
        async with gateways.open_gateway(db, model, tools=[tool("wait", gate)]) as (opened, chat):
            await chat.say("One", key="1")
            await gate.reached.wait()
            db.go_on.clear()
            db.read.clear()
            await chat.say("Two", key="2")
            await db.read.wait()
            gate.go.set()
            arrival = await db.mail.inbound_by_key("loopback", "1")
            async with opened.runtimes.use("loopback:local") as runtime:
                await runtime.wait_idle((arrival and arrival.target) or "")
            await db.contacts.all()  # Whoever waits for the turn has seen that it is over.
            db.go_on.set()
            assert gateways.texts(await chat.replies(2)) == ["First.", "Second."]

    hindered(story)


def test_what_could_not_be_looked_at_at_the_very_end_is_worked_on_right_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(router, "POLL_SECONDS", 600.0)

    async def story(db: Hindered) -> None:
        gate, model = Gate(), ScriptedModel([calls("wait"), "First.", "Second."])
        async with gateways.open_gateway(db, model, tools=[tool("wait", gate)]) as (_, chat):
            await chat.say("One", key="1")
            await gate.reached.wait()
            db.wrong = [errors.StoreBusy()]
            await chat.say("Two", key="2")
            await db.failed.wait()
            gate.go.set()
            assert gateways.texts(await chat.replies(2)) == ["First.", "Second."]

    hindered(story)


def test_a_store_that_fails_for_a_while_does_not_make_a_turn_deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "POLL_SECONDS", 0.01)

    async def story(db: Hindered) -> None:
        stuck = Stuck()
        async with gateways.open_gateway(db, ScriptedModel([calls("wait")]), tools=[tool("wait", stuck)]) as (_, chat):
            await chat.say("Wait", key="1")
            await stuck.reached.wait()
            db.wrong = [errors.StoreBusy(), errors.StoreFull()]
            await db.failed.wait()
            await chat.say("/stop", key="2")
            one, two = await gateways.settled(db, "1", "2")
        assert (one.outcome, two.outcome) == ("interrupted", "command")

    hindered(story)


def test_a_stop_that_could_not_be_begun_is_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "POLL_SECONDS", 0.01)
    wrong = [errors.StoreBusy(), errors.StoreFull()]

    def fails(point: str) -> None:
        if point == "begin.begun" and wrong:
            raise wrong.pop()

    async def story(db: Hindered) -> None:
        stuck = Stuck()
        async with gateways.open_gateway(db, ScriptedModel([calls("wait")]), tools=[tool("wait", stuck)]) as (_, chat):
            await chat.say("Wait", key="1")
            await stuck.reached.wait()
            monkeypatch.setattr(fault_points, "hook", fails)
            await chat.say("/stop", key="2")
            one, two = await gateways.settled(db, "1", "2")
            monkeypatch.undo()
            assert gateways.texts(await chat.replies(1)) == [commands.DONE]
        assert (one.outcome, two.outcome, wrong) == ("interrupted", "command", [])

    hindered(story)
