"""The router gives each chat its turn, stops cleanly, and gives up no message without cause."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from holdfast import AsyncSessionDB, errors, fault_points, types
from holdfast.gateway import commands, metrics, router, settings, worker
from holdfast.model import ScriptedModel
from tests.support import conversations, gateways
from tests.support.gateways import (
    ROUTE,
    intercept,
    new_inbound,
    open_gateway,
    open_turn,
    texts,
    wait_idle,
    wait_settled,
)
from tests.support.polling import until_async


async def test_chats_take_turns_if_there_are_not_enough_slots(db: AsyncSessionDB) -> None:
    every = [f"{chat}{number}" for chat in "abc" for number in range(3)]
    for key in every:
        await db.mail.add_inbound(new_inbound(key, "Hi", route=f"agent:main:loopback:dm:{key[0]}", sender=key[0]))
    async with open_gateway(db, ScriptedModel(["Yes."] * 9), settings=settings.GatewaySettings(chats=1)):
        found = await wait_settled(db, *every)
    assert [each.sender for each in sorted(found, key=lambda each: each.settled_at or 0.0)] == list("abc" * 3)


async def test_chats_of_another_process_are_not_polled_in_a_loop(
    monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    monkeypatch.setattr(router, "POLL_SECONDS", 60.0)
    asked, begin_next = Counter[str](), db.mail.begin_next_inbound

    async def count(route: str, *args: Any, **given: Any) -> types.NextInbound:
        asked[route] += 1
        return await begin_next(route, *args, **given)

    db.mail.begin_next_inbound = count  # type: ignore[method-assign]
    for chat in "abc":
        route = f"agent:main:loopback:dm:{chat}"
        await db.mail.add_inbound(new_inbound(chat, "Hi", route=route, sender=chat))
        await db.mail.acquire_chat_lease(f"route:{route}", holder="another")
    async with open_gateway(db, ScriptedModel(), settings=settings.GatewaySettings(chats=2)):
        await until_async(lambda: asked.total() >= 2)
        for _ in range(50):  # Each read gives the router time for another attempt.
            await db.contacts.all()
        assert max(asked.values()) <= 2


async def test_stopping_gateway_begins_nothing_and_the_next_one_continues(db: AsyncSessionDB) -> None:
    async with open_turn(db, ["Done."], grace=20.0) as turn:
        await turn.chat.say("/title Another", key="2")
        stops = asyncio.create_task(turn.gateway.stop())
        await until_async(lambda: turn.gateway.router._worker.stopping)
        turn.gate.go.set()
        await stops
        assert texts(turn.chat.sent) == ["Done."]
    (left,) = await db.mail.open_inbound(ROUTE)
    assert (left.key, left.attempts) == ("2", 0)
    async with open_gateway(db, ScriptedModel()) as (opened, chat):
        (found,) = await wait_settled(db, "2")
        await wait_idle(opened, db)
        assert not any("begun before" in text for text in texts(chat.sent))
    assert (await db.conversation(found.conversation_id or "")).title == "Another"


async def test_gateway_stops_although_the_store_fails(db: AsyncSessionDB) -> None:
    failing = asyncio.Event()

    async def fail() -> None:
        if failing.is_set():
            raise errors.StoreBusy

    intercept(db.mail, "due_outgoing", fail)
    async with open_gateway(db, ScriptedModel(["Yes."]), grace=0.2) as (opened, chat):
        before = asyncio.all_tasks()
        await chat.say("Hi", key="1")
        await wait_settled(db, "1")
        await wait_idle(opened, db)
        failing.set()
        await opened.stop()
        assert len(opened.runtimes) == 0
        assert asyncio.all_tasks() < before


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize(
    ("failure", "count", "outcome", "attempts"),
    [(errors.StoreFull(), 4, "answered", 5), (errors.StoreCorrupt("row 7 is damaged"), 9, "gave_up", 5)],
)
async def test_message_outlives_a_failing_store_for_a_limited_number_of_attempts(
    failure: Exception,
    count: int,
    outcome: str,
    attempts: int,
    monkeypatch: pytest.MonkeyPatch,
    db: AsyncSessionDB,
) -> None:
    failures = [failure] * count

    def fail(point: str) -> None:
        if point == "append.begun" and failures:
            raise failures.pop()

    monkeypatch.setattr(worker, "MAX_ATTEMPTS", 2)
    monkeypatch.setattr(worker, "MAX_HARMLESS", 50 if outcome == "answered" else 3)
    monkeypatch.setattr(fault_points, "hook", fail)
    async with open_gateway(db, ScriptedModel(["Yes."])) as (_, chat):
        await chat.say("Hi", key="1")
        (found,) = await wait_settled(db, "1")
        said = "Yes." if outcome == "answered" else worker.GAVE_UP.format(count=5)
        assert texts(await chat.replies(1)) == [said]
    assert (found.outcome, found.attempts) == (outcome, attempts)


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("failing", ["permission check", "lease"])
async def test_command_survives_a_store_that_is_busy_before_it(failing: str, db: AsyncSessionDB) -> None:
    failures = [errors.StoreBusy()]

    async def fail() -> None:
        if failures:
            raise failures.pop()

    async def may_speak(_platform: str, _sender: str) -> bool:
        if failing == "permission check":
            await fail()
        return True

    if failing == "lease":
        intercept(db.mail, "renew_chat_lease", fail)
    await db.create_session("talk", source="loopback", owner="loopback:local")
    await db.bind_route(ROUTE, "talk", version=0)
    await db.mail.add_inbound(new_inbound("1", "/title Hey", at=db.db._clock() - 60))
    async with open_gateway(db, ScriptedModel(), may_speak=may_speak) as (_, chat):
        (sent,) = await chat.replies(1)
    assert (failures, sent.text) == ([], "Title: Hey")


async def test_command_is_not_run_by_a_worker_that_lost_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = conversations.Clock()
    async with gateways.store(clock=clock) as db:

        def overtake(point: str) -> None:
            if point == "gateway.begun":
                clock.advance(31)
                db.db.mail.acquire_chat_lease(f"route:{ROUTE}", holder="another")

        async with open_gateway(db, ScriptedModel(["Hello!"])) as (opened, chat):
            await chat.say("Hi", key="1")
            await wait_settled(db, "1")
            await wait_idle(opened, db)
            before = await db.route(ROUTE)
            monkeypatch.setattr(fault_points, "hook", overtake)
            await chat.say("/new", key="2")
            await gateways.wait_begun(db, "2")
            await until_async(lambda: not opened.router.active)
            monkeypatch.undo()
            assert await db.route(ROUTE) == before
            assert commands.NEW not in texts(chat.sent)


async def test_sender_denied_while_a_message_waited_is_not_answered(db: AsyncSessionDB) -> None:
    async def may_speak(_platform: str, sender: str) -> bool:
        return sender != "mallory"

    for sender in ("mallory", "ann"):
        place = {"route": f"agent:main:loopback:dm:{sender}", "chat": f"dm:{sender}", "address": {"chat": sender}}
        await db.mail.add_inbound(new_inbound(sender, "Hi", sender=sender, at=db.db._clock() - 60, **place))
    async with open_gateway(db, ScriptedModel(["Yes."] * 2), may_speak=may_speak) as (_, chat):
        mallory, ann = await wait_settled(db, "mallory", "ann")
        await chat.replies(1)
        assert (mallory.outcome, ann.outcome) == ("refused", "answered")
        assert [each.address for each in chat.sent] == [{"chat": "ann"}]


def test_metrics_are_in_the_text_format_of_prometheus() -> None:
    meter = metrics.GatewayMetrics()
    for seconds in (0.1, 0.2, 45.0, 9_999.0):
        meter.observe_turn(seconds)
    meter.count_attempt(1)
    meter.count_attempt(2)
    meter.count_inbound('a"b\\c\nd')
    meter.count_outcome("http", "failed")
    lines = meter.render({"outgoing_open": 3, "something_else": 1}).decode().splitlines()
    assert set(lines) >= {
        'holdfast_turn_seconds_bucket{le="0.1"} 1.0',
        'holdfast_turn_seconds_bucket{le="60.0"} 3.0',
        'holdfast_turn_seconds_bucket{le="+Inf"} 4.0',
        "holdfast_resumed_total 1.0",
        "holdfast_outbox_depth 3.0",
        'holdfast_inbound_total{platform="a\\"b\\\\c\\nd"} 1.0',
        'holdfast_outcomes_total{outcome="failed",platform="http"} 1.0',
    }
    assert not any("something_else" in line for line in lines)
