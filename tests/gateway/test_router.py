"""Which chat is worked on when: each in turn, nothing begun that is not worked on, nothing given up without cause."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from holdfast import AsyncSessionDB, SessionDB, errors, fault_points, types
from holdfast.gateway import commands, router, worker
from holdfast.gateway import settings as gateway_settings
from holdfast.model import ScriptedModel
from tests.gateway.test_beside import Gate
from tests.gateway.test_gateway import ROUTE, new
from tests.support import conversations, gateways, polling
from tests.support.agents import Stuck, calls, tool


async def test_where_there_is_no_room_for_all_no_chat_waits_for_the_end_of_another(db: AsyncSessionDB) -> None:
    every = [f"{chat}{number}" for chat in "abc" for number in range(3)]
    for key in every:
        await db.mail.add_inbound(new(key, "Hi", route=f"agent:main:loopback:dm:{key[0]}", sender=key[0]))
    model, settings = ScriptedModel(["Yes."] * 9), gateway_settings.GatewaySettings(chats=1)
    async with gateways.open_gateway(db, model, settings=settings):
        found = await gateways.settled(db, *every)
    assert [each.sender for each in sorted(found, key=lambda each: each.settled_at or 0.0)] == list("abc" * 3)


class Counting(AsyncSessionDB):
    """Counts how often each chat is asked for."""

    def __init__(self, db: SessionDB) -> None:
        super().__init__(db)
        self.asked = Counter[str]()
        self._take_up, self.mail.begin_next_inbound = self.mail.begin_next_inbound, self._counted

    async def _counted(self, route: str, *args: Any, **given: Any) -> types.NextInbound:
        self.asked[route] += 1
        return await self._take_up(route, *args, **given)


async def test_chats_that_another_process_has_are_not_asked_for_again_and_again_where_there_is_no_room_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(router, "POLL_SECONDS", 60.0)
    async with Counting(SessionDB(":memory:")) as db, asyncio.timeout(60):
        for chat in "abc":
            route = f"agent:main:loopback:dm:{chat}"
            await db.mail.add_inbound(new(chat, "Hi", route=route, sender=chat))
            await db.mail.acquire_chat_lease(f"route:{route}", holder="another")

        async def asked() -> bool:
            return db.asked.total() >= 2

        async with gateways.open_gateway(db, ScriptedModel(), settings=gateway_settings.GatewaySettings(chats=2)):
            await polling.until_async(asked)
            # As often as something could be read meanwhile, they could have been asked for.
            for _ in range(50):
                await db.contacts.all()
            assert max(db.asked.values()) <= 2


# --- stopping -----------------------------------------------------------------------------------------------


async def test_a_gateway_that_stops_begins_nothing_more_and_the_next_one_carries_it_out(db: AsyncSessionDB) -> None:
    gate = Gate()
    given = {"tools": [tool("wait", gate)], "grace": 20.0}
    async with gateways.open_gateway(db, ScriptedModel([calls("wait"), "Done."]), **given) as (opened, chat):  # type: ignore[arg-type]
        await chat.say("One", key="1")
        await gate.reached.wait()
        await chat.say("/title Another", key="2")
        stops = asyncio.create_task(opened.stop())
        await polling.until_async(lambda: _stopping(opened))
        gate.go.set()
        await stops
        assert gateways.texts(chat.sent) == ["Done."]
    left = await db.mail.inbound_by_key("loopback", "2")
    assert left is not None
    assert (left.attempts, left.outcome) == (0, None)
    async with gateways.open_gateway(db, ScriptedModel()) as (opened, chat):
        (found,) = await gateways.settled(db, "2")
        await gateways.quiet(opened, db)
        assert not any("begun before" in text for text in gateways.texts(chat.sent))
    assert (await db.conversation(found.conversation_id or "")).title == "Another"


async def _stopping(opened: gateways.gateway.Gateway) -> bool:
    return opened.router._worker.stopping


class Failing(AsyncSessionDB):
    """A store in which, from a time on, nobody can look at what goes out."""

    def __init__(self, db: SessionDB) -> None:
        super().__init__(db)
        self.fails = False
        self._due, self.mail.due_outgoing = self.mail.due_outgoing, self._failing

    async def _failing(self, platform: str, limit: int = 100, now: float | None = None) -> list[types.Outgoing]:
        if self.fails:
            raise errors.StoreBusy
        return await self._due(platform, limit, now)


async def test_a_gateway_stops_also_where_the_store_fails() -> None:
    async with (
        Failing(SessionDB(":memory:")) as db,
        asyncio.timeout(60),
        gateways.open_gateway(db, ScriptedModel(["Yes."]), grace=1.0) as (opened, chat),
    ):
        before = asyncio.all_tasks()
        await chat.say("Hi", key="1")
        await gateways.settled(db, "1")
        await gateways.quiet(opened, db)
        db.fails = True
        await opened.stop()
        assert len(opened.runtimes) == 0
        assert asyncio.all_tasks() < before


# --- attempts -----------------------------------------------------------------------------------------------


async def test_a_message_is_not_given_up_because_of_a_store_that_could_not_be_had(
    monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    monkeypatch.setattr(router, "MIN_PAUSE", 0.01)
    monkeypatch.setattr(router, "MAX_PAUSE", 0.01)
    monkeypatch.setattr(router, "POLL_SECONDS", 0.02)
    wrong = [errors.StoreFull() for _ in range(4)]

    def full(point: str) -> None:
        if point == "append.begun" and wrong:
            raise wrong.pop()

    monkeypatch.setattr(fault_points, "hook", full)
    monkeypatch.setattr(worker, "MAX_ATTEMPTS", 2)
    async with gateways.open_gateway(db, ScriptedModel(["Yes."])) as (_, chat):
        await chat.say("Hi", key="1")
        (found,) = await gateways.settled(db, "1")
        assert gateways.texts(await chat.replies(1)) == ["Yes."]
    assert (found.outcome, found.attempts > 2, wrong) == ("answered", True, [])


async def test_a_message_that_the_store_never_takes_is_given_up_in_the_end(
    monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    monkeypatch.setattr(router, "MIN_PAUSE", 0.01)
    monkeypatch.setattr(router, "MAX_PAUSE", 0.01)
    monkeypatch.setattr(router, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(worker, "MAX_HARMLESS", 3)
    wrong = [errors.StoreCorrupt("row 7 is damaged") for _ in range(9)]

    def damaged(point: str) -> None:
        if point == "append.begun" and wrong:
            raise wrong.pop()

    monkeypatch.setattr(fault_points, "hook", damaged)
    monkeypatch.setattr(worker, "MAX_ATTEMPTS", 2)
    async with gateways.open_gateway(db, ScriptedModel(["Yes."])) as (_, chat):
        await chat.say("Hi", key="1")
        (found,) = await gateways.settled(db, "1")
        assert gateways.texts(await chat.replies(1)) == [worker.GAVE_UP.format(count=5)]
    assert (found.outcome, found.attempts) == ("gave_up", 5)


async def test_what_is_given_up_goes_with_the_message_it_became(db: AsyncSessionDB) -> None:
    arrival, _ = await db.mail.add_inbound(new("1", "my password"))
    claim = await db.mail.acquire_chat_lease(f"route:{ROUTE}")
    for _ in range(5):
        await db.mail.begin_inbound(claim, arrival.id, "talk")
    await db.mail.release_chat_lease(claim)
    born = types.NewConversation(source="loopback")
    await db.append_message("talk", role="user", content="my password", uid=worker.uid_of(arrival), create=born)
    async with gateways.open_gateway(db, ScriptedModel()):
        (found,) = await gateways.settled(db, "1")
    assert (found.outcome, found.conversation_id, found.seq) == ("gave_up", "talk", 1)
    await db.redact("talk", 1)
    gone = await db.mail.inbound(arrival.id)
    assert gone is not None
    assert (gone.text, gone.redacted) == ("", True)


class Unwell(AsyncSessionDB):
    """A store that is busy for a moment when it is asked for this."""

    def __init__(self, db: SessionDB, when: str) -> None:
        super().__init__(db)
        self.when = when
        self._renew, self.mail.renew_chat_lease = self.mail.renew_chat_lease, self._renewed

    def reached(self, what: str) -> None:
        if what == self.when:
            self.when = ""
            raise errors.StoreBusy

    async def _renewed(self, claim: types.ChatLease) -> None:
        self.reached("renew")
        await self._renew(claim)


@pytest.mark.parametrize("when", ["may speak", "renew"])
async def test_a_command_is_not_lost_because_of_a_store_that_was_busy_before_it(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "MIN_PAUSE", 0.01)
    monkeypatch.setattr(router, "POLL_SECONDS", 0.02)
    async with Unwell(SessionDB(":memory:"), when) as db, asyncio.timeout(60):

        async def may_speak(_platform: str, _sender: str) -> bool:
            db.reached("may speak")
            return True

        await db.create_session("talk", source="loopback", owner="loopback:local")
        await db.bind_route(ROUTE, "talk", version=0)
        await db.mail.add_inbound(new("1", "/title Hey", at=db.db._clock() - 60))
        async with gateways.open_gateway(db, ScriptedModel(), may_speak=may_speak) as (_, chat):
            (sent,) = await chat.replies(1)
        assert (db.when, sent.text) == ("", "Title: Hey")


async def test_stop_is_not_lost_because_of_a_store_that_is_busy_for_a_moment() -> None:
    async with Unwell(SessionDB(":memory:"), "renew") as db, asyncio.timeout(60):
        stuck = Stuck()
        async with gateways.open_gateway(db, ScriptedModel([calls("wait")]), tools=[tool("wait", stuck)]) as (_, chat):
            await chat.say("Wait", key="1")
            await stuck.reached.wait()
            await chat.say("/stop", key="2")
            (one,) = await gateways.settled(db, "1")
        assert (db.when, one.outcome) == ("", "interrupted")


async def test_who_was_overtaken_after_a_command_was_begun_does_not_carry_it_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = conversations.Clock()

    async with gateways.store(clock=clock) as db:

        def overtaken(point: str) -> None:
            if point == "gateway.begun":
                clock.advance(31)
                db.db.mail.acquire_chat_lease(f"route:{ROUTE}", holder="another")

        async with gateways.open_gateway(db, ScriptedModel(["Hello!"])) as (opened, chat):
            await chat.say("Hi", key="1")
            await gateways.settled(db, "1")
            await gateways.quiet(opened, db)
            before = await db.route(ROUTE)
            monkeypatch.setattr(fault_points, "hook", overtaken)
            await chat.say("/new", key="2")
            await polling.until_async(lambda: _left_alone(db, opened))
            monkeypatch.undo()
            assert await db.route(ROUTE) == before
            assert commands.NEW not in gateways.texts(chat.sent)


async def _left_alone(db: AsyncSessionDB, opened: gateways.gateway.Gateway) -> bool:
    found = await db.mail.inbound_by_key("loopback", "2")
    return found is not None and found.attempts == 1 and not opened.router.active


def test_who_was_denied_while_a_message_waited_is_not_answered() -> None:
    async def denied(_platform: str, sender: str) -> bool:
        return sender != "mallory"

    async def story(db: AsyncSessionDB) -> None:
        for sender in ("mallory", "ann"):
            late = types.NewInboundMessage(
                platform="loopback",
                key=sender,
                route=f"agent:main:loopback:dm:{sender}",
                chat=f"dm:{sender}",
                sender=sender,
                address={"chat": sender},
                text="Hi",
                at=db.db._clock() - 60,
            )
            await db.mail.add_inbound(late)
        async with gateways.open_gateway(db, ScriptedModel(["Yes."] * 2), may_speak=denied) as (_, chat):
            mallory, ann = await gateways.settled(db, "mallory", "ann")
            await chat.replies(1)
            assert (mallory.outcome, ann.outcome) == ("refused", "answered")
            assert [each.address for each in chat.sent] == [{"chat": "ann"}]

    gateways.run(story)
