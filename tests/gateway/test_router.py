"""The router gives each chat its turn, stops cleanly, and gives up no message without cause."""

from __future__ import annotations

import asyncio
import time

import pytest

from holdfast import AsyncSessionDB, errors, fault_points
from holdfast.gateway import commands, settings, worker
from holdfast.model import ScriptedModel
from tests.support import conversations, gateways
from tests.support.polling import until_async


async def test_chats_take_turns_if_there_are_not_enough_slots(db: AsyncSessionDB) -> None:
    every = [f"{chat}{number}" for chat in "abc" for number in range(3)]
    for key in every:
        route = f"agent:main:loopback:dm:{key[0]}"
        await db.mail.add_inbound(gateways.new_inbound(key, "Hi", route=route, sender=key[0]))
    async with gateways.open_gateway(db, ScriptedModel(["Yes."] * 9), settings=settings.GatewaySettings(chats=1)):
        found = await gateways.wait_settled(db, *every)
    assert [each.sender for each in sorted(found, key=lambda each: each.settled_at or 0.0)] == list("abc" * 3)


async def test_stopping_gateway_begins_nothing_and_the_next_one_continues(db: AsyncSessionDB) -> None:
    async with gateways.open_turn(db, ["Done."], grace=20.0) as turn:
        await turn.chat.say("/title Another", key="2")
        stops = asyncio.create_task(turn.gateway.stop())
        await until_async(lambda: turn.gateway.router._worker.stopping)
        turn.gate.go.set()
        await stops
        assert gateways.texts(turn.chat.sent) == ["Done."]
    (left,) = await db.mail.open_inbound(gateways.ROUTE)
    assert (left.key, left.attempts) == ("2", 0)
    async with gateways.open_gateway(db, ScriptedModel()) as (opened, chat):
        (found,) = await gateways.wait_settled(db, "2")
        await gateways.wait_idle(opened, db)
        assert not any("begun before" in text for text in gateways.texts(chat.sent))
    assert (await db.conversation(found.conversation_id or "")).title == "Another"


async def test_gateway_stops_although_the_store_fails(db: AsyncSessionDB) -> None:
    failing = asyncio.Event()

    async def fail() -> None:
        if failing.is_set():
            raise errors.StoreBusy

    gateways.intercept(db.mail, "due_outgoing", fail)
    async with gateways.open_gateway(db, ScriptedModel(["Yes."]), grace=0.2) as (opened, chat):
        before = asyncio.all_tasks()
        await gateways.settle(db, chat, "Hi", key="1")
        await gateways.wait_idle(opened, db)
        failing.set()
        await opened.stop()
        assert len(opened.runtimes) == 0
        assert asyncio.all_tasks() < before


@pytest.mark.parametrize(
    ("failure", "count", "outcome"),
    [(errors.StoreFull(), 4, "answered"), (errors.StoreCorrupt("row 7 is damaged"), 9, "gave_up")],
)
async def test_message_outlives_a_failing_store_for_a_limited_number_of_attempts(
    failure: Exception, count: int, outcome: str, monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    failures = [failure] * count

    def fail(point: str) -> None:
        if point == "append.begun" and failures:
            raise failures.pop()

    monkeypatch.setattr(worker, "MAX_ATTEMPTS", 2)
    monkeypatch.setattr(worker, "MAX_HARMLESS", 50 if outcome == "answered" else 3)
    monkeypatch.setattr(fault_points, "hook", fail)
    async with gateways.open_gateway(db, ScriptedModel(["Yes."])) as (_, chat):
        found = await gateways.settle(db, chat, "Hi", key="1")
        said = "Yes." if outcome == "answered" else worker.GAVE_UP.format(count=5)
        assert gateways.texts(await chat.replies(1)) == [said]
    assert (found.outcome, found.attempts) == (outcome, 5)


async def test_command_is_not_run_by_a_worker_that_lost_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = conversations.Clock()
    async with gateways.store(clock=clock) as db:

        def overtake(point: str) -> None:
            if point == "gateway.begun":
                clock.advance(31)
                db.db.mail.acquire_chat_lease(f"route:{gateways.ROUTE}", holder="another")

        async with gateways.open_gateway(db, ScriptedModel(["Hello!"])) as (opened, chat):
            await gateways.settle(db, chat, "Hi", key="1")
            await gateways.wait_idle(opened, db)
            before = await db.route(gateways.ROUTE)
            monkeypatch.setattr(fault_points, "hook", overtake)
            await chat.say("/new", key="2")
            await gateways.wait_begun(db, "2")
            await until_async(lambda: not opened.router.active)
            monkeypatch.undo()
            assert await db.route(gateways.ROUTE) == before
            assert commands.NEW not in gateways.texts(chat.sent)


async def test_sender_denied_while_a_message_waited_is_not_answered(db: AsyncSessionDB) -> None:
    async def may_speak(_platform: str, sender: str) -> bool:
        return sender != "mallory"

    for sender in ("mallory", "ann"):
        place = {"route": f"agent:main:loopback:dm:{sender}", "chat": f"dm:{sender}", "address": {"chat": sender}}
        await db.mail.add_inbound(gateways.new_inbound(sender, "Hi", sender=sender, at=time.time() - 60, **place))
    async with gateways.open_gateway(db, ScriptedModel(["Yes."] * 2), may_speak=may_speak) as (_, chat):
        mallory, ann = await gateways.wait_settled(db, "mallory", "ann")
        await chat.replies(1)
        assert (mallory.outcome, ann.outcome) == ("refused", "answered")
        assert [each.address for each in chat.sent] == [{"chat": "ann"}]
