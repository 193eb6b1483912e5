"""A turn that is left to another process: nothing is written about it, and the other goes on where it stands."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import AIAgent, AsyncSessionDB, content_parts, errors, events, types
from holdfast.agent import loop
from holdfast.model import ScriptedModel
from holdfast.runtime import runtime
from tests.support import agents
from tests.support.runtimes import events_until, open_runtime


async def test_a_turn_that_is_abandoned_leaves_the_log_as_a_death_would_and_another_goes_on(db: AsyncSessionDB) -> None:
    stuck = agents.Stuck()
    one = agents.agent(db, ScriptedModel([agents.calls("wait")]), session_id="t", tools=[agents.tool("wait", stuck)])
    turn = asyncio.create_task(one.run_conversation("Go", uid="u"))
    await stuck.reached.wait()
    assert one.abandon()
    assert (await turn).interrupted
    assert [each.role for each in await db.transcript("t")] == ["user", "assistant"]
    assert await db.leases() == []
    other = await agents.agent(db, ScriptedModel(["Done."]), session_id="t").run_conversation("Go", uid="u")
    assert (other.final_response, other.completed) == ("Done.", True)


async def test_an_agent_can_be_abandoned_only_in_a_turn_and_takes_the_next_as_ever(db: AsyncSessionDB) -> None:
    model = agents.Trickle("Half")
    agent = agents.agent(db, model, session_id="t")
    assert not agent.abandon()
    turn = asyncio.create_task(agent.run_conversation("Go"))
    await model.stuck.reached.wait()
    agent.interrupt()
    await turn
    assert content_parts.is_cut((await db.transcript("t"))[-1].content)


async def test_a_runtime_that_abandons_refuses_what_waits_and_settles_no_notice(db: AsyncSessionDB) -> None:
    model = agents.Trickle("Half")
    await db.create_session("talk", source="test")
    await db.mail.add_inbox_entry("talk", "n", "It ended.")
    async with open_runtime(db, model) as run:
        await run.deliver("talk")
        await model.stuck.reached.wait()
        waiting = run.submit("talk", events.Submit("Hello"))
        run.abandon()
        await run.wait_idle("talk")
        assert waiting.cancelled()
    assert len(await db.mail.inbox_entries("talk")) == 1
    assert [each.role for each in await db.transcript("talk")] == ["user"]


async def test_what_becomes_of_a_notice_can_be_written_down_by_the_front_end(db: AsyncSessionDB) -> None:
    noted: list[tuple[str, str, int | None]] = []

    async def note(
        inbound: types.InboxEntry, result: events.TurnResult | None, outcome: str, seq: int | None
    ) -> object:
        noted.append((result.final_response if result else "", outcome, seq))
        return await db.mail.settle_inbox_entry(inbound.id, outcome, seq)

    await db.create_session("talk", source="test")
    await db.mail.add_inbox_entry("talk", "n", "It ended.")
    async with open_runtime(db, ScriptedModel(["I see."])) as run:
        run.settle_entry = note
        await run.deliver("talk")
        await run.wait_idle("talk")
    assert noted == [("I see.", "completed", 1)]
    assert await db.mail.inbox_entries("talk") == []


# --- what a front end says with a message --------------------------------------------------------------


async def test_a_conversation_that_begins_with_a_message_is_bound_to_its_route_and_one_that_has_begun_is_not(
    db: AsyncSessionDB,
) -> None:
    async with open_runtime(db, ScriptedModel(["a", "b"])) as run:
        await run.submit("talk", events.Submit("Hello", route="chat:1"))
        await run.submit("talk", events.Submit("Again", route="chat:2"))
    assert (await db.route("chat:1")).conversation_id == "talk"
    assert (await db.route("chat:2")).version == 0


async def test_a_route_that_names_another_conversation_by_then_is_not_taken_and_nothing_is_stored(
    db: AsyncSessionDB,
) -> None:
    await db.create_session("other", source="test")
    await db.bind_route("chat:1", "other", version=0)
    async with open_runtime(db, ScriptedModel(["a"])) as run:
        result = await run.submit("talk", events.Submit("Hello", route="chat:1"))
    assert (result.failed, result.messages) == (True, ())
    with pytest.raises(errors.NoSuchSession):
        await db.snapshot("talk")


@pytest.mark.parametrize("uid", ["u1", "u" * 200])
async def test_what_a_turn_is_told_twice_under_one_uid_is_told_once(uid: str, db: AsyncSessionDB) -> None:
    async def look(_: object) -> types.Content:
        for _ in range(2):
            await run.send("talk", events.Steer("Quickly.", uid))
        return "ok"

    async def build(conversation_id: str) -> AIAgent:
        return agents.agent(db, model, session_id=conversation_id, tools=[agents.tool("look", look)])

    model = ScriptedModel([agents.calls("look"), "Here."])
    async with runtime.Runtime(db, build) as run:
        with run.subscribe("talk") as listening:
            run.submit("talk", events.Submit("Look"))
            await events_until(listening, events.TurnFinished)
    said = await db.transcript("talk")
    assert [each.uid for each in said if content_parts.text(each.content) == "Quickly."] == [loop.steering_uid(uid)]
