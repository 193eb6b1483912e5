"""Room in the window: beside the turns from the soft threshold, within a turn at the hard one, and on overflow."""

from __future__ import annotations

import asyncio

from holdfast import AsyncSessionDB, errors, events
from holdfast.compaction import port as compaction
from holdfast.model import ScriptedModel
from tests.agent import stage
from tests.compaction.test_compress import WINDOW, Writer, filled


def test_below_the_soft_threshold_nothing_happens() -> None:
    async def story(db: AsyncSessionDB) -> None:
        await filled(db, exchanges=5)
        writer = Writer()
        agent = stage.agent(db, ScriptedModel(["ok"], window=WINDOW), session_id="talk", summarizer=writer)
        assert (await agent.run_conversation("Hello")).completed
        await agent.close()
        assert writer.requests == []

    stage.run(story)


def test_a_turn_does_not_wait_for_a_compaction_beside_it() -> None:
    async def story(db: AsyncSessionDB) -> None:
        await filled(db, exchanges=50)
        reached, go = asyncio.Event(), asyncio.Event()

        async def slow(request: compaction.SummaryRequest) -> str:
            reached.set()
            await go.wait()
            return "In short. " + " ".join(request.must_keep)

        model = ScriptedModel(["One.", "Two.", "Three."], window=WINDOW)
        agent = stage.agent(db, model, session_id="talk", summarizer=Writer(slow))
        assert (await agent.run_conversation("a")).completed
        await reached.wait()
        assert (await agent.run_conversation("b")).completed
        seen: list[events.AnyEvent] = []
        go.set()
        while len(await db.sessions("talk")) == 1:
            await asyncio.sleep(0.01)
        result = await agent.run_conversation("c", emit=seen.append)
        assert result.completed
        assert result.session_id != "talk"
        assert len(model.requests[2].messages) < len(model.requests[1].messages)
        assert [each.content for each in model.requests[2].messages if each.role == "user"][-2:] == ["b", "c"]
        await agent.close()

    stage.run(story)


def test_at_the_hard_threshold_the_turn_waits_and_goes_on_with_less() -> None:
    async def story(db: AsyncSessionDB) -> None:
        await filled(db, exchanges=90)
        model = ScriptedModel(["ok"], window=WINDOW)
        agent = stage.agent(db, model, session_id="talk", summarizer=Writer())
        result = await agent.run_conversation("Hello")
        assert result.completed
        assert agent.meter.count(agent.system, (), model.requests[0].messages) < WINDOW
        assert model.requests[0].messages[-1].content == "Hello"
        assert len(await db.sessions("talk")) == 2
        await agent.close()

    stage.run(story)


def test_an_overflow_is_believed_compacted_away_and_asked_again() -> None:
    async def story(db: AsyncSessionDB) -> None:
        await filled(db, exchanges=40)
        model = ScriptedModel([errors.ContextOverflow(), "Now it fits."], window=200_000)
        agent = stage.agent(db, model, session_id="talk", summarizer=Writer())
        result = await agent.run_conversation("Hello")
        await agent.close()
        assert (result.completed, result.final_response) == (True, "Now it fits.")

    # A window so much larger than the truth leaves nothing to cut by tokens: the view is shortened instead.
    stage.run(story)


def test_an_overflow_that_nothing_helps_against_ends_after_a_few_calls() -> None:
    async def story(db: AsyncSessionDB) -> None:
        await filled(db, exchanges=40)
        model = ScriptedModel([errors.ContextOverflow()] * 50, window=WINDOW)
        agent = stage.agent(db, model, session_id="talk", summarizer=Writer())
        result = await agent.run_conversation("Hello")
        await agent.close()
        assert (result.exit_reason, result.failed) == ("overflow", True)
        assert len(model.requests) <= 6

    stage.run(story)


def test_after_an_undo_the_automatic_one_waits_for_the_hard_threshold() -> None:
    async def story(db: AsyncSessionDB) -> None:
        await filled(db, exchanges=50)
        writer = Writer()
        agent = stage.agent(db, ScriptedModel(["ok"] * 5, window=WINDOW), session_id="talk", summarizer=writer)
        await agent.compress_context(force=True)
        await db.undo_compaction("talk")
        await agent.run_conversation("Hello")
        await agent.close()
        assert len(writer.requests) == 1

    stage.run(story)
