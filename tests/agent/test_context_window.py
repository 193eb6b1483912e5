"""Space in the context window: background compaction, its costs, waiting at the hard threshold, and overflow."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from holdfast import AIAgent, AsyncSessionDB, content_parts, errors, events, types
from holdfast.agent import context_window, settings, usage
from holdfast.compaction import base, hooks, policy
from holdfast.model import ScriptedModel, tokens
from holdfast.model import base as models
from tests.support import agents, compaction, messages, polling

LONG = "The tide is coming in now, and the ferry is late. " * 200
LEFT_OUT = "characters left out; recall message"
NOT_IN_TIME = "another compaction did not finish in time; the turn continues without it"
STEPS = 4
SOFT, HARD = 50, 90  # exchanges beyond the soft threshold, and beyond the window but too short to be shortened


def requests(agent: AIAgent) -> list[models.Request]:
    return agent.model.requests


def notices(seen: list[events.AnyEvent]) -> list[str]:
    return [event.text for event in seen if isinstance(event, events.Notice)]


def has_summary(request: models.Request) -> bool:
    return any(each.uid.startswith("summary:") for each in request.messages)


async def idle(agent: AIAgent) -> None:
    """Wait until no background compaction runs."""
    await polling.until_async(lambda: not agent.context_window.is_compacting)


async def text_filling(agent: AIAgent, share: float) -> str:
    """Return a text with which the conversation takes this share of the space for messages."""
    job = agent.compaction_job()
    missing = int(job.usable * share) - job.size(await agent.context_cache.messages())
    return "word " * (missing - 20)


def stepping_model(*before: str) -> ScriptedModel:
    """Return a model that takes some steps and reports no usage, so that the meter learns nothing."""
    looks = (models.Reply(calls=(types.ToolCall(f"c{number}", "look", "{}"),)) for number in range(STEPS - 1))
    return ScriptedModel([*before, *looks, "Done.", "Again."], window=compaction.WINDOW)


@pytest.mark.parametrize(("exchanges", "background"), [(5, True), (SOFT, False)])
async def test_small_context_is_not_compacted(exchanges: int, background: bool, db: AsyncSessionDB) -> None:
    await compaction.fill(db, exchanges)
    agent = compaction.compacting_agent(db, writer := compaction.FakeSummarizer(), background=background)
    assert (await agent.run_conversation("Hello")).completed
    assert not agent.in_use
    await agent.close()
    assert (writer.requests, await db.budget("talk")) == ([], (0, {}))


async def test_turns_do_not_wait_for_a_background_compaction(db: AsyncSessionDB) -> None:
    await compaction.fill(db, SOFT)
    slow, reached, go = compaction.blocked_summary()
    agent = compaction.compacting_agent(db, writer := compaction.FakeSummarizer(slow))
    for text in ("a", "b"):
        assert (await agent.run_conversation(text)).completed
        await reached.wait()
    go.set()
    await idle(agent)
    assert len(writer.requests) == 1
    assert agent.session_id == (await db.head("talk")).id != "talk"
    assert tuple(await agent.context_cache.messages()) == (await db.context("talk")).messages
    result = await agent.run_conversation("c")
    assert (result.completed, result.session_id) == (True, agent.session_id)
    assert len(requests(agent)[2].messages) < len(requests(agent)[1].messages)
    assert [each.content for each in requests(agent)[2].messages if each.role == "user"][-2:] == ["b", "c"]
    await agent.close()


async def test_after_an_undo_background_compaction_waits_for_the_hard_threshold(db: AsyncSessionDB) -> None:
    await compaction.fill(db, SOFT)
    agent = compaction.compacting_agent(db, writer := compaction.FakeSummarizer())
    await agent.run_conversation("one")
    await idle(agent)
    assert len(await db.sessions("talk")) == 2
    await db.undo_compaction("talk")
    for text in ("two", "three"):
        assert (await agent.run_conversation(text)).completed
        assert not agent.context_window.is_compacting
    await agent.close()
    assert len(writer.requests) == 1


@pytest.mark.parametrize("exchanges", [SOFT, HARD], ids=["in the background", "by a waiting turn"])
async def test_requested_compaction_starts_after_the_running_one(exchanges: int, db: AsyncSessionDB) -> None:
    await compaction.fill(db, exchanges)
    slow, reached, go = compaction.blocked_summary()
    agent, seen = compaction.compacting_agent(db, compaction.FakeSummarizer(slow)), list[events.AnyEvent]()
    turn = await polling.start(agent.run_conversation("Hello"), reached)
    requested = await polling.start(agent.compress_context(force=True, emit=seen.append), lambda: seen)
    assert notices(seen) == ["Another compaction is running; this one starts after it …"]
    go.set()
    assert (await turn).completed
    # Without waiting, the lock would have been held: BUSY.
    assert (await requested).outcome in (base.Outcome.COMPACTED, base.Outcome.NOTHING_TO_DO)
    await agent.close()


@pytest.mark.parametrize(("failing", "sessions"), [("", 2), ("commit", 2), ("subscriber", 3)])
async def test_turn_that_waited_for_compaction_sees_a_summary(failing: str, sessions: int, db: AsyncSessionDB) -> None:
    await compaction.fill(db, SOFT)
    slow, reached, go = compaction.blocked_summary()
    works = db.commit_compaction

    async def fail_once(*_: object, **__: object) -> Any:
        db.commit_compaction = works  # type: ignore[method-assign]
        raise errors.StoreBusy()

    def emit(event: events.AnyEvent) -> None:
        if failing == "subscriber" and isinstance(event, events.Compacted):
            raise BrokenPipeError

    if failing == "commit":
        db.commit_compaction = fail_once  # type: ignore[method-assign]
    without_pause = policy.CompactionPolicy(cooldowns=(0.0, 30.0))
    agent = compaction.compacting_agent(db, compaction.FakeSummarizer(slow), compaction_policy=without_pause)
    await agent.run_conversation("one", emit=emit)
    await reached.wait()
    # Too short to be shortened, beyond the hard threshold, within the window: only a summary helps.
    turn = asyncio.create_task(agent.run_conversation(await text_filling(agent, 0.96)))
    await polling.until_async(lambda: db.db.conversation("talk").last_seq == 103)
    assert not turn.done()
    go.set()
    assert (await turn).completed
    await agent.close()
    assert len(await db.sessions("talk")) == sessions
    assert has_summary(requests(agent)[-1])


@pytest.mark.parametrize("hooks_run", [False, True])
async def test_turn_waits_for_a_compaction_of_another_process_and_uses_it(hooks_run: bool, db: AsyncSessionDB) -> None:
    await compaction.fill(db, HARD)
    lease, works, polls = await db.acquire_lease("talk", "compact", "elsewhere"), db.get_compression_lock_holder, 0

    async def count_polls(conversation_id: str) -> str | None:
        nonlocal polls
        polls += 1
        return await works(conversation_id)

    db.get_compression_lock_holder = count_polls  # type: ignore[method-assign]
    agent, seen = compaction.compacting_agent(db, writer := compaction.FakeSummarizer()), list[events.AnyEvent]()
    turn = await polling.start(agent.run_conversation("Hello", emit=seen.append), lambda: polls >= 3)
    assert (turn.done(), requests(agent)) == (False, [])
    await db.commit_compaction(lease, summary="Their summary.", cut_seq=170, child_id="theirs", keep_lease=hooks_run)
    assert (await turn).session_id == "theirs"
    await agent.close()
    assert agents.shape(requests(agent)[0].messages)[0] == ("user", "Their summary.")
    assert (writer.requests, len(notices(seen))) == ([], 1)
    assert await db.release_lease(lease) is hooks_run


async def test_turn_waits_once_for_another_process(caplog: pytest.LogCaptureFixture, db: AsyncSessionDB) -> None:
    await compaction.fill(db, HARD)
    await db.acquire_lease("talk", "compact", "elsewhere")
    model, hurried = stepping_model(), policy.CompactionPolicy(deadline=0.1)
    agent = compaction.compacting_agent(db, model=model, compaction_policy=hurried, tools=[agents.says("look")])
    for turn, (steps, said) in enumerate([(STEPS, 1), (1, 0)], 1):  # the second turn waits again and says nothing new
        seen: list[events.AnyEvent] = []
        assert (await agent.run_conversation("Hello", emit=seen.append)).api_calls == steps
        assert len(notices(seen)) == said
        assert caplog.messages == [NOT_IN_TIME] * turn
    await agent.close()


@pytest.mark.parametrize("share", [0.96, 1.05], ids=["within the window", "beyond it"])
async def test_own_compaction_is_awaited(share: float, caplog: pytest.LogCaptureFixture, db: AsyncSessionDB) -> None:
    await compaction.fill(db, SOFT)
    stuck, seen = agents.Stuck(), list[events.AnyEvent]()
    agent = compaction.compacting_agent(
        db,
        model=stepping_model("ok"),
        hooks=hooks.Hooks(before=(stuck,), limit=60.0),
        compaction_policy=policy.CompactionPolicy(deadline=0.1),
        tools=[agents.says("look")],
    )
    await agent.run_conversation("one", emit=seen.append)
    await stuck.reached.wait()
    assert (await agent.run_conversation(await text_filling(agent, share), emit=seen.append)).api_calls == STEPS
    assert agent.context_window.is_compacting
    progress = agent.context_window.progress
    assert (progress.stage, progress.messages > 0, progress.tokens > 0) == ("summing up", True, True)
    await agent.close()
    assert (stuck.cancelled, agent.context_window.progress, len(await db.sessions("talk"))) == (True, None, 1)
    assert (agent.in_use, await db.leases()) == (False, [])
    assert notices(seen) == []  # no other process compacts
    assert caplog.messages == [NOT_IN_TIME]


async def test_extract_makes_space_while_models_are_paused(db: AsyncSessionDB) -> None:
    await compaction.fill(db, HARD)
    assert await db.update_budget("talk", 0, {"failures": 3, "cool_until": time.time() + 500})
    agent = compaction.compacting_agent(db, writer := compaction.FakeSummarizer())
    for text in ("Hello", "Go on"):
        result = await agent.run_conversation(text)
        assert result.completed
        assert result.session_id == (await db.head("talk")).id != "talk"
        assert has_summary(requests(agent)[-1])
        # By a meter that has learnt nothing from the reply.
        assert tokens.Meter().count(agent.prompt.text, (), requests(agent)[-1].messages) < compaction.WINDOW
    await agent.close()
    assert writer.requests == []


async def test_concurrent_reader_of_the_context_does_not_lose_a_message(db: AsyncSessionDB) -> None:
    await compaction.fill(db, exchanges=3)
    works, read, release = db.context, asyncio.Event(), asyncio.Event()

    async def look(_: dict[str, Any]) -> str:
        async def read_slowly(*given: Any) -> Any:
            found = await works(*given)
            read.set()
            await release.wait()
            return found

        agent.context_cache.invalidate()
        db.context = read_slowly  # type: ignore[method-assign,assignment]
        looking.append(asyncio.create_task(agent.context_tokens()))
        await read.wait()
        db.context = works  # type: ignore[method-assign]
        asyncio.get_running_loop().call_later(0.05, release.set)
        return "seen"

    looking: list[asyncio.Task[int]] = []
    model = ScriptedModel([agents.calls("look"), "Done."], window=compaction.WINDOW)
    agent = compaction.compacting_agent(db, model=model, tools=[agents.tool("look", look)])
    assert (await agent.run_conversation("Look")).completed
    await looking[0]
    assert messages.order_errors(model.requests[1].messages) == []
    assert ("tool", "seen") in agents.shape(model.requests[1].messages)
    assert messages.order_errors(await agent.context_cache.messages()) == []


async def test_message_larger_than_the_window_is_reported_with_the_part_that_was_sent(db: AsyncSessionDB) -> None:
    model, seen = ScriptedModel([agents.calls("look"), "ok", "ok"], window=compaction.WINDOW), list[events.AnyEvent]()
    agent = agents.agent(db, model, session_id="talk", summarizer=[], tools=[agents.says("look")])
    pasted = "The quick brown fox jumps over the lazy dog. " * 5_267
    result = await agent.run_conversation(pasted, emit=seen.append)
    assert result.completed
    assert (result.truncated.characters, result.truncated.images) == (len(pasted), 0)
    first, last = (len(content_parts.text(request.messages[0].content)) for request in model.requests)
    assert result.truncated.sent == last < len(pasted) / 10
    (notice,) = (each for each in seen if isinstance(each, events.Notice) and "of your message" in each.text)
    assert f"{first:,} of the {len(pasted):,} characters" in notice.text
    assert (notice.level, notice.to_chats) == ("warning", True)
    assert 0 < await agent.context_tokens() <= compaction.WINDOW
    assert (await agent.run_conversation("And now?")).truncated is None
    await agent.close()


@pytest.mark.parametrize("overflow", [errors.ContextOverflow(), RuntimeError("context length exceeded")])
async def test_request_is_shortened_after_an_overflow_this_turn_only(overflow: Exception, db: AsyncSessionDB) -> None:
    # A window so much larger than the truth leaves nothing to cut by tokens: the messages are shortened instead.
    model = ScriptedModel([overflow, "ok", "ok"], window=200_000)
    agent = compaction.compacting_agent(db, model=model, background=False)
    assert (await agent.run_conversation(LONG)).completed
    assert (await agent.run_conversation("And?")).completed
    await agent.close()
    shown = [str(request.messages[0].content) for request in model.requests]
    assert [LEFT_OUT in each for each in shown] == [False, True, False]


async def test_repeated_overflows_end_the_turn_after_a_few_ever_smaller_requests(db: AsyncSessionDB) -> None:
    model = ScriptedModel([RuntimeError("Maximum context exceeded.")] * 50, window=200_000)
    agent = compaction.compacting_agent(db, model=model)
    result = await agent.run_conversation(LONG * 10)
    await agent.close()
    assert (result.exit_reason, result.failed) == ("overflow", True)
    assert "Type /compact" in (result.error or "")
    assert len(model.requests) == 1 + context_window.MAX_OVERFLOWS
    sizes = [agent.meter.count("", (), request.messages) for request in model.requests]
    assert sizes == sorted(set(sizes), reverse=True)


async def test_overflow_after_the_answer_has_begun_ends_the_turn(db: AsyncSessionDB) -> None:
    begun = [models.ContentDelta("It is"), RuntimeError("Maximum context exceeded.")]
    model = ScriptedModel([begun, "ok"], window=200_000)
    agent = compaction.compacting_agent(db, model=model)
    result = await agent.run_conversation(LONG)
    await agent.close()
    assert (result.exit_reason, len(model.requests)) == ("overflow", 1)
    assert result.final_response.startswith("It is")


async def test_compaction_that_is_being_committed_is_not_stopped(db: AsyncSessionDB) -> None:
    await compaction.fill(db)
    agent, commits, stopped = compaction.compacting_agent(db), db.commit_compaction, list[bool]()

    async def commit(*args: Any, **more: Any) -> types.Session:
        stopped.append(agent.context_window.stop())
        return await commits(*args, **more)

    db.commit_compaction = commit  # type: ignore[method-assign]
    made = await agent.compress_context(force=True)
    await agent.close()
    assert (made.outcome, stopped) == (base.Outcome.COMPACTED, [False])


@pytest.mark.parametrize("quiet", [False, True])
async def test_compaction_is_announced_and_its_refusal_explained_unless_quiet(quiet: bool, db: AsyncSessionDB) -> None:
    await compaction.fill(db, HARD)
    agent, seen = compaction.compacting_agent(db, quiet=quiet), list[events.AnyEvent]()
    assert (await agent.run_conversation("Hello", emit=seen.append)).completed
    assert ("Compacted" in agents.kinds(seen)) is not quiet
    await db.acquire_lease("talk", "compact", "elsewhere")
    seen.clear()
    made = await agent.compress_context(force=True, emit=seen.append)
    assert (made.outcome, notices(seen)) == (base.Outcome.BUSY, [] if quiet else [made.reason])
    await agent.close()


@pytest.mark.parametrize(
    ("exchanges", "expected"), [(HARD, compaction.SUMMARY_USAGE), (SOFT, types.Usage())], ids=["hard", "soft"]
)
async def test_summary_belongs_to_the_waiting_turn(exchanges: int, expected: types.Usage, db: AsyncSessionDB) -> None:
    await compaction.fill(db, exchanges)
    agent = compaction.compacting_agent(db, compaction.priced_summarizer())
    result = await agent.run_conversation("Hello")
    await polling.until_async(lambda: len(db.db.sessions("talk")) == 2)
    assert result.usage == types.Usage(1, 1) + expected
    assert (await agent.run_conversation("Hello")).usage == types.Usage(1, 1)
    await agent.close()
    assert (await usage.read(db, "talk"))[usage.SUMMARIES] == compaction.SUMMARY_USAGE


@pytest.mark.parametrize("exchanges", [HARD, SOFT], ids=["waited for", "in the background"])
async def test_summary_counts_against_the_cost_limit_of_the_turn(exchanges: int, db: AsyncSessionDB) -> None:
    async def wait_for_compaction(_: dict[str, Any]) -> types.Content:
        await polling.until_async(lambda: not agent.context_window.is_compacting and len(db.db.sessions("talk")) == 2)
        return "seen"

    await compaction.fill(db, exchanges)
    agent = compaction.compacting_agent(
        db,
        compaction.priced_summarizer(),
        model=(model := ScriptedModel([agents.calls("look"), "Never said."], window=compaction.WINDOW)),
        tools=[agents.tool("look", wait_for_compaction)],
        limits=settings.Limits(cost=0.2),
    )
    result = await agent.run_conversation("Hello")
    await agent.close()
    assert (result.exit_reason, len(model.requests)) == ("cost", 1)
    assert "$0.25" in result.final_response
