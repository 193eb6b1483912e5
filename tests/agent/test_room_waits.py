"""Whoever waits for room: for how long, what is looked at again afterwards, and how often people hear of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import AIAgent, AsyncSessionDB, errors, events, types
from holdfast.agent import agent_cache, context_window
from holdfast.compaction import base as compaction
from holdfast.compaction import hooks as telling
from holdfast.compaction import policy
from holdfast.model import ScriptedModel, tokens
from tests.support import agents as stage
from tests.support.compaction import WINDOW, FakeSummarizer, blocked_summary, fill

LONG = "The tide is coming in now, and nobody knows why. " * 200
LEFT_OUT = "characters left out; recall message"


def notices(seen: list[events.AnyEvent]) -> list[str]:
    return [event.text for event in seen if isinstance(event, events.Notice) and event.level == "warning"]


# --- for how long --------------------------------------------------------------------------------------


async def test_a_compaction_beside_that_never_ends_is_waited_for_no_longer_than_a_summary_may_take(
    db: AsyncSessionDB,
) -> None:
    await fill(db, exchanges=50)
    stuck = stage.Stuck()
    model = ScriptedModel(["ok"] * 3, window=WINDOW)
    agent = stage.agent(
        db,
        model,
        session_id="talk",
        summarizer=FakeSummarizer(),
        hooks=telling.Hooks(before=(stuck,)),
        compaction_policy=policy.CompactionPolicy(deadline=0.2),
    )
    assert (await agent.run_conversation("one")).completed
    await stuck.reached.wait()
    assert (await agent.run_conversation(LONG)).completed
    assert agent.context_window.is_compacting
    assert len(model.requests) == 2
    await agent.close()
    assert stuck.cancelled
    assert len(await db.sessions("talk")) == 1


async def test_turn_does_not_wait_for_hooks_of_a_compaction_that_overtook_it(
    caplog: pytest.LogCaptureFixture, db: AsyncSessionDB
) -> None:
    await fill(db, exchanges=90)
    lease, works = await db.acquire_lease("talk", "compact", "elsewhere", 600.0), db.begin_compaction

    async def overtaken(*given: Any) -> Any:
        await db.commit_compaction(lease, summary="What they wrote.", cut_seq=170, keep_lease=True)
        return await works(*given)

    db.begin_compaction = overtaken  # type: ignore[method-assign]
    model = ScriptedModel(["ok"], window=WINDOW)
    agent = stage.agent(
        db,
        model,
        session_id="talk",
        summarizer=FakeSummarizer(),
        compaction_policy=policy.CompactionPolicy(deadline=30.0),
    )
    assert (await agent.run_conversation("Hello")).completed
    assert stage.shape(model.requests[0].messages)[0] == ("user", "What they wrote.")
    assert await db.release_lease(lease)
    assert "did not finish in time" not in caplog.text


@pytest.mark.parametrize("hooks_run", [False, True])
async def test_a_turn_asks_nothing_until_the_compaction_elsewhere_stands(hooks_run: bool, db: AsyncSessionDB) -> None:
    await fill(db, exchanges=90)
    lease, works, polls = await db.acquire_lease("talk", "compact", "elsewhere"), db.get_compression_lock_holder, 0

    async def polled(conversation_id: str) -> str | None:
        nonlocal polls
        polls += 1
        return await works(conversation_id)

    db.get_compression_lock_holder = polled  # type: ignore[method-assign]
    model = ScriptedModel(["ok"], window=WINDOW)
    agent = stage.agent(db, model, session_id="talk", summarizer=FakeSummarizer())
    turn = asyncio.create_task(agent.run_conversation("Hello"))
    while polls < 3:
        assert not turn.done()
        await asyncio.sleep(0.01)
    assert model.requests == []
    theirs = {"cut_seq": 170, "child_id": "theirs", "keep_lease": hooks_run}
    await db.commit_compaction(lease, summary="What they wrote.", **theirs)
    assert (await turn).session_id == "theirs"
    await agent.close()
    assert stage.shape(model.requests[0].messages)[0] == ("user", "What they wrote.")
    assert await db.release_lease(lease) is hooks_run


async def test_a_lock_nobody_can_look_at_does_not_stop_the_turn(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=90)
    lease = await db.acquire_lease("talk", "compact", "elsewhere")

    async def unreadable(_: str) -> str | None:
        raise errors.StoreBusy()

    works, db.get_compression_lock_holder = db.get_compression_lock_holder, unreadable  # type: ignore[method-assign]
    model = ScriptedModel(["ok"], window=WINDOW)
    agent = stage.agent(db, model, session_id="talk", summarizer=FakeSummarizer())
    assert (await agent.run_conversation("Hello")).completed
    await agent.close()
    db.get_compression_lock_holder = works  # type: ignore[method-assign]
    await db.release_lease(lease)


async def test_a_compaction_by_hand_comes_after_the_one_beside_the_turns(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=50)
    slow, reached, go = blocked_summary()
    agent = stage.agent(db, ScriptedModel(["ok"], window=WINDOW), session_id="talk", summarizer=FakeSummarizer(slow))
    await agent.run_conversation("one")
    await reached.wait()
    by_hand = asyncio.create_task(agent.compress_context(force=True))
    while not (go.is_set() or by_hand.done()):
        await asyncio.sleep(0.05)
        go.set()
    made = await by_hand
    # Had it not waited, the lock would have been another's.
    assert made.outcome is compaction.Outcome.NOTHING_TO_DO
    assert len(await db.sessions("talk")) == 2
    await agent.close()


async def test_how_far_a_compaction_is_is_never_how_far_another_one_was(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=50)
    slow, reached, go = blocked_summary()
    agent = stage.agent(db, ScriptedModel([], window=WINDOW), session_id="talk", summarizer=FakeSummarizer(slow))
    first = asyncio.create_task(agent.compress_context(force=True))
    await reached.wait()
    second = asyncio.create_task(agent.compress_context(force=True))
    await asyncio.sleep(0)
    assert agent.context_window.progress is not None
    assert agent.context_window.progress.stage == "summing up"
    go.set()
    assert [(await each).outcome.value for each in (first, second)] == ["compacted", "nothing_to_do"]
    agent.context_window.start_background(lambda _: None)
    assert (agent.context_window.is_compacting, agent.context_window.progress) == (True, None)
    await agent.close()


async def test_an_agent_is_kept_while_it_compacts_beside_the_turns(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=50, name="a")
    stuck = stage.Stuck()

    async def build(name: str) -> Any:
        writer = FakeSummarizer(lambda _: stuck())
        return stage.agent(db, ScriptedModel(["ok"], window=WINDOW), session_id=name, summarizer=writer)

    agents = agent_cache.AgentCache(build, size=1)
    compacting = await agents.get("a")
    await compacting.run_conversation("Hello")
    await stuck.reached.wait()
    assert not compacting.busy
    await agents.get("b")
    assert agents.peek("a") is compacting
    await compacting.close()
    await agents.get("c")
    assert (agents.peek("a"), len(agents)) == (None, 1)


async def test_a_second_turn_begins_no_second_compaction_beside_the_first(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=50)
    stuck, seen = stage.Stuck(), list[events.AnyEvent]()
    writer = FakeSummarizer(lambda _: stuck())
    agent = stage.agent(db, ScriptedModel(["ok"] * 3, window=WINDOW), session_id="talk", summarizer=writer)
    for text in ("one", "two", "three"):
        assert (await agent.run_conversation(text, emit=seen.append)).completed
        await stuck.reached.wait()
    await agent.close()
    assert (len(writer.requests), stuck.cancelled) == (1, True)
    assert not any(isinstance(event, events.Notice) for event in seen)
    assert await db.leases() == []


async def test_after_an_undo_an_agent_that_compacted_beside_its_turns_waits_for_the_hard_threshold(
    db: AsyncSessionDB,
) -> None:
    await fill(db, exchanges=50)
    writer = FakeSummarizer()
    agent = stage.agent(db, ScriptedModel(["ok"] * 5, window=WINDOW), session_id="talk", summarizer=writer)
    await agent.run_conversation("one")
    while agent.context_window.is_compacting:
        await asyncio.sleep(0.01)
    assert len(await db.sessions("talk")) == 2
    await db.undo_compaction("talk")
    for text in ("two", "three"):
        assert (await agent.run_conversation(text)).completed
        assert not agent.context_window.is_compacting
    await agent.close()
    assert len(writer.requests) == 1


# --- between the hard threshold and the end of the window ------------------------------------------------


def filling(agent: AIAgent, messages: Sequence[types.Message], share: float) -> str:
    """A text with which the conversation takes this share of what messages may take."""
    work = agent.compaction_job()
    missing = int(work.usable * share) - work.size(messages)
    return "word " * (missing - 20)


@pytest.mark.parametrize("first", ["compacted", "failed"])
async def test_a_turn_that_waited_goes_on_with_what_the_compaction_beside_it_left(
    first: str, db: AsyncSessionDB
) -> None:
    await fill(db, exchanges=50)
    reached, go, works = asyncio.Event(), asyncio.Event(), db.commit_compaction

    async def slow(request: compaction.SummaryRequest) -> str:
        reached.set()
        await go.wait()
        return "In short. " + " ".join(request.must_keep)

    async def fails_once(*_: object, **__: object) -> Any:
        db.commit_compaction = works  # type: ignore[method-assign]
        raise errors.StoreBusy()

    if first == "failed":
        db.commit_compaction = fails_once  # type: ignore[method-assign]
    model, at_once = ScriptedModel(["ok"] * 3, window=WINDOW), policy.CompactionPolicy(cooldowns=(0.0, 30.0))
    agent = stage.agent(db, model, session_id="talk", summarizer=FakeSummarizer(slow), compaction_policy=at_once)
    await agent.run_conversation("one")
    await reached.wait()
    # Too short to be shortened, beyond the hard threshold, within the window: only a summary helps.
    text = filling(agent, await agent.context_cache.messages(), 0.96)
    turn = asyncio.create_task(agent.run_conversation(text))
    while (await db.conversation("talk")).last_seq < 103:
        await asyncio.sleep(0.01)
    go.set()
    assert (await turn).completed
    await agent.close()
    assert len(await db.sessions("talk")) == 2
    assert any(each.uid.startswith("summary:") for each in model.requests[-1].messages)


async def test_where_a_model_may_not_sum_up_the_extract_makes_room_within_the_turn(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=90)  # beyond the window, and too short to be shortened
    version, _ = await db.budget("talk")
    assert await db.update_budget("talk", version, {"failures": 3, "cool_until": time.time() + 500})
    model, writer = ScriptedModel(["ok"], window=WINDOW), FakeSummarizer()
    agent = stage.agent(db, model, session_id="talk", summarizer=writer)
    result = await agent.run_conversation("Hello")
    await agent.close()
    assert (result.completed, writer.requests) == (True, [])
    assert result.session_id == (await db.head("talk")).id != "talk"
    shown = model.requests[0].messages
    assert any(each.uid.startswith("summary:") for each in shown)
    # By a meter that has learnt nothing from the reply.
    assert tokens.Meter().count(agent.prompt.text, (), shown) < WINDOW


async def test_a_front_end_that_fails_beside_the_turns_does_not_fail_the_turn_that_waits(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=50)
    slow, reached, go = blocked_summary()

    def broken(event: events.AnyEvent) -> None:
        if isinstance(event, events.Compacted):
            raise BrokenPipeError

    model = ScriptedModel(["ok"] * 3, window=WINDOW)
    agent = stage.agent(db, model, session_id="talk", summarizer=FakeSummarizer(slow))
    await agent.run_conversation("one", emit=broken)
    await reached.wait()
    turn = asyncio.create_task(agent.run_conversation(filling(agent, await agent.context_cache.messages(), 0.96)))
    while (await db.conversation("talk")).last_seq < 103:
        await asyncio.sleep(0.01)
    go.set()
    assert (await turn).completed
    await agent.close()
    assert any(each.uid.startswith("summary:") for each in model.requests[-1].messages)


# --- what a provider says of its window ----------------------------------------------------------------


async def test_what_was_shown_shortened_in_one_turn_is_whole_again_in_the_next(db: AsyncSessionDB) -> None:
    model = ScriptedModel([errors.ContextOverflow(), "ok", "ok"], window=200_000)
    agent = stage.agent(db, model, session_id="talk", summarizer=FakeSummarizer(), background=False)
    assert (await agent.run_conversation(LONG)).completed
    assert (await agent.run_conversation("And?")).completed
    await agent.close()
    shown = [str(request.messages[0].content) for request in model.requests]
    assert [LEFT_OUT in each for each in shown] == [False, True, False]


async def test_a_provider_that_never_has_enough_room_is_asked_a_few_times_only(db: AsyncSessionDB) -> None:
    model = ScriptedModel([errors.ContextOverflow()] * 50, window=200_000)
    agent = stage.agent(db, model, session_id="talk", summarizer=FakeSummarizer())
    result = await agent.run_conversation(LONG * 10)
    await agent.close()
    assert result.exit_reason == "overflow"
    assert len(model.requests) == 1 + context_window.MAX_OVERFLOWS
    sizes = [agent.meter.count("", (), request.messages) for request in model.requests]
    assert sizes == sorted(set(sizes), reverse=True)


# --- what people hear of it ----------------------------------------------------------------------------


async def test_people_hear_of_a_pause_once_until_a_compaction_succeeds(db: AsyncSessionDB) -> None:
    await fill(db)
    agent = stage.agent(db, ScriptedModel(["ok"], window=WINDOW), session_id="talk", summarizer=FakeSummarizer())

    async def paused() -> list[str]:
        version, _ = await db.budget("talk")
        assert await db.update_budget("talk", version, {"failures": 1, "cool_until": time.time() + 25})
        seen: list[events.AnyEvent] = []
        for _ in range(3):
            made = await agent.compress_context(emit=seen.append)
            assert made.outcome is compaction.Outcome.COOLING_DOWN
        return notices(seen)

    assert len(await paused()) == 1
    assert (await agent.compress_context(force=True)).outcome is compaction.Outcome.COMPACTED
    for number in range(40):
        await db.append_message("talk", role="user", content=f"And dock {number}? " + "It is windy there. " * 12)
    agent.context_cache.invalidate()
    assert len(await paused()) == 1


async def test_who_asks_by_hand_hears_why_not_every_time(db: AsyncSessionDB) -> None:
    await fill(db)
    agent = stage.agent(db, ScriptedModel(["ok"], window=WINDOW), session_id="talk", summarizer=FakeSummarizer())
    lease: types.Lease = await db.acquire_lease("talk", "compact", "elsewhere")
    for _ in range(2):
        seen: list[events.AnyEvent] = []
        made = await agent.compress_context(force=True, emit=seen.append)
        assert made.outcome is compaction.Outcome.BUSY
        assert notices(seen) == [made.reason]
    await db.release_lease(lease)
