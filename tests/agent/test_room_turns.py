"""A turn of many steps and the room it needs: it waits once, says so once, works off the loop, and knows its head."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import AsyncSessionDB, events, types
from holdfast.agent import context_window
from holdfast.compaction import base as compaction
from holdfast.compaction import excerpts, policy
from holdfast.compaction import hooks as telling
from holdfast.model import ScriptedModel
from holdfast.model import base as models
from tests.agent.test_room_waits import filling
from tests.support import agents
from tests.support.compaction import WINDOW, FakeSummarizer, fill

STEPS = 4
IN_VAIN = "another compaction did not finish in time; the turn continues without it"


def steps() -> list[Any]:
    """Replies that say nothing of what they used, so that the meter learns nothing from them."""
    looks = (models.Reply(calls=(types.ToolCall(f"c{number}", "look", "{}"),)) for number in range(STEPS - 1))
    return [*looks, "Done."]


def remarks(seen: Sequence[events.AnyEvent]) -> list[str]:
    return [event.text for event in seen if isinstance(event, events.Notice)]


# --- waiting -------------------------------------------------------------------------------------------


async def test_a_turn_of_many_steps_waits_for_a_compaction_elsewhere_once_and_says_so_once(
    caplog: pytest.LogCaptureFixture, db: AsyncSessionDB
) -> None:
    await fill(db, exchanges=90)  # beyond the window, and too short to be shortened
    await db.acquire_lease("talk", "compact", "elsewhere")
    script, works, late = [*steps(), "Again."], db.get_compression_lock_holder, list[int]()
    model = ScriptedModel(script, window=WINDOW)

    async def polled(conversation_id: str) -> str | None:
        late.extend([1] if model.requests else [])
        return await works(conversation_id)

    db.get_compression_lock_holder = polled  # type: ignore[method-assign]
    hurried = policy.CompactionPolicy(deadline=0.2)
    agent = agents.agent(
        db,
        model,
        session_id="talk",
        summarizer=FakeSummarizer(),
        compaction_policy=hurried,
        tools=[agents.says("look")],
    )
    # The second turn has a patience of its own, and nothing new to say.
    for turn, (asked, told) in enumerate([(STEPS, 1), (1, 0)], 1):
        seen: list[events.AnyEvent] = []
        assert (await agent.run_conversation("Hello", emit=seen.append)).api_calls == asked
        assert len(remarks(seen)) == told
        assert [record.message for record in caplog.records] == [IN_VAIN] * turn
        assert late == []
        model.requests.clear()
    await agent.close()


@pytest.mark.parametrize("share", [0.96, 1.05], ids=["within the window", "beyond it"])
async def test_a_turn_of_many_steps_waits_for_its_own_compaction_once(
    share: float, caplog: pytest.LogCaptureFixture, db: AsyncSessionDB
) -> None:
    await fill(db, exchanges=50)
    stuck, seen = agents.Stuck(), list[events.AnyEvent]()
    model = ScriptedModel(["ok", *steps()], window=WINDOW)
    agent = agents.agent(
        db,
        model,
        session_id="talk",
        summarizer=FakeSummarizer(),
        hooks=telling.Hooks(before=(stuck,), limit=60.0),
        compaction_policy=policy.CompactionPolicy(deadline=0.2),
        tools=[agents.says("look")],
    )
    await agent.run_conversation("one", emit=seen.append)
    await stuck.reached.wait()
    text = filling(agent, await agent.context_cache.messages(), share)
    assert (await agent.run_conversation(text, emit=seen.append)).api_calls == STEPS
    assert agent.context_window.is_compacting  # nobody's prompt has stopped it
    reached = agent.context_window.progress
    assert reached is not None
    assert (reached.stage, reached.messages > 0, reached.tokens > 0) == ("summing up", True, True)
    await agent.close()
    assert agent.context_window.progress is None
    # Nobody else is at it, so nobody is told that another process was.
    assert remarks(seen) == []
    assert [record.message for record in caplog.records] == [IN_VAIN]


async def test_a_turn_waits_a_little_longer_than_models_may_take(
    monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    monkeypatch.setattr(context_window, "WAIT_FACTOR", 1_000 * context_window.WAIT_FACTOR)

    await fill(db, exchanges=50)
    stuck, works, hurried = agents.Stuck(), db.commit_compaction, policy.CompactionPolicy(deadline=0.05)

    async def slowly(*given: Any, **named: Any) -> types.Session:
        await asyncio.sleep(4 * hurried.deadline)  # the extract took the place of the model, and takes its time
        return await works(*given, **named)

    db.commit_compaction = slowly  # type: ignore[method-assign]
    model, writer = ScriptedModel(["ok"] * 2, window=WINDOW), FakeSummarizer(lambda _: stuck())
    agent = agents.agent(db, model, session_id="talk", summarizer=writer, compaction_policy=hurried)
    await agent.run_conversation("one")
    assert (await agent.run_conversation(filling(agent, await agent.context_cache.messages(), 0.96))).completed
    await agent.close()
    assert (len(await db.sessions("talk")), len(writer.requests)) == (2, 1)
    assert any(each.uid.startswith("summary:") for each in model.requests[-1].messages)


async def test_a_compaction_by_hand_comes_after_the_one_a_turn_waits_for(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=90)
    reached, go, seen = asyncio.Event(), asyncio.Event(), list[events.AnyEvent]()

    async def slow(request: compaction.SummaryRequest) -> str:
        reached.set()
        await go.wait()
        return "In short. " + " ".join(request.must_keep)

    agent = agents.agent(db, ScriptedModel(["ok"], window=WINDOW), session_id="talk", summarizer=FakeSummarizer(slow))
    turn = asyncio.create_task(agent.run_conversation("Hello"))
    await reached.wait()
    by_hand = asyncio.create_task(agent.compress_context(force=True, keep_exchanges=1, emit=seen.append))
    while not seen:
        await asyncio.sleep(0.01)
    assert remarks(seen) == ["Another compaction is running; this one starts after it …"]
    go.set()
    assert (await turn).completed
    assert (await by_hand).outcome in (compaction.Outcome.COMPACTED, compaction.Outcome.NOTHING_TO_DO)
    await agent.close()


async def test_closing_an_agent_stops_what_was_asked_for_by_hand(db: AsyncSessionDB) -> None:
    await fill(db)
    stuck = agents.Stuck()
    writer = FakeSummarizer(lambda _: stuck())
    agent = agents.agent(db, ScriptedModel([], window=WINDOW), session_id="talk", summarizer=writer)
    first = asyncio.create_task(agent.compress_context(force=True))
    await stuck.reached.wait()
    assert agent.in_use
    second = asyncio.create_task(agent.compress_context(force=True))
    await asyncio.sleep(0)
    await agent.close()
    for made in (await first, await second):
        assert (made.outcome, made.session_id) == (compaction.Outcome.FAILED, "talk")
        assert made.reason == "The compaction was stopped."
    assert (await db.leases(), len(writer.requests), agent.in_use) == ([], 1, False)
    assert len(await db.sessions("talk")) == 1


# --- showing less --------------------------------------------------------------------------------------


async def test_what_is_shown_is_shortened_off_the_loop_and_once_for_each_step(
    monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    works, threads = excerpts.shorten_all, list[int]()

    def watched(*given: Any) -> list[types.Message]:
        threads.append(threading.get_ident())
        return works(*given)

    monkeypatch.setattr(excerpts, "shorten_all", watched)
    await fill(db, exchanges=50)
    version, _ = await db.budget("talk")
    assert await db.update_budget("talk", version, {"failures": 3, "cool_until": time.time() + 500})
    model = ScriptedModel(steps(), window=WINDOW)
    agent = agents.agent(db, model, session_id="talk", summarizer=FakeSummarizer(), tools=[agents.says("look")])
    # Beyond the hard threshold, within the window, and nobody may compact: it is looked at twice in each step.
    text = filling(agent, await agent.context_cache.messages(), 0.95)
    assert (await agent.run_conversation(text)).api_calls == STEPS
    await agent.close()
    assert len(threads) == STEPS
    assert threading.get_ident() not in threads


# --- whose session it is -------------------------------------------------------------------------------


async def test_who_compacted_beside_its_turns_is_at_the_new_head(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=50)
    agent = agents.agent(db, ScriptedModel(["ok"], window=WINDOW), session_id="talk", summarizer=FakeSummarizer())
    await agent.run_conversation("Hello")
    while agent.context_window.is_compacting:
        await asyncio.sleep(0.01)
    assert agent.session_id == (await db.head("talk")).id != "talk"
    assert tuple(await agent.context_cache.messages()) == (await db.context("talk")).messages
    for number in range(40):
        await db.append_message("talk", role="user", content=f"And dock {number}? " + "It is windy there. " * 12)
    assert (await agent.compress_context()).outcome is compaction.Outcome.COMPACTED
    await agent.close()


async def test_a_turn_that_was_overtaken_by_its_own_compaction_after_its_last_word_ends_at_the_new_head(
    db: AsyncSessionDB,
) -> None:
    await fill(db, exchanges=50)
    go, works = asyncio.Event(), db.release_lease

    async def slow(request: compaction.SummaryRequest) -> str:
        await go.wait()
        return "In short. " + " ".join(request.must_keep)

    async def meanwhile(lease: types.Lease) -> None:
        if lease.purpose == "turn":
            go.set()
            while agent.context_window.is_compacting:
                await asyncio.sleep(0.01)
        await works(lease)

    db.release_lease = meanwhile  # type: ignore[method-assign]
    agent = agents.agent(db, ScriptedModel(["ok"], window=WINDOW), session_id="talk", summarizer=FakeSummarizer(slow))
    result = await agent.run_conversation("Hello")
    head = (await db.head("talk")).id
    assert (result.session_id, agent.session_id) == (head, head)
    assert head != "talk"
    await agent.close()
