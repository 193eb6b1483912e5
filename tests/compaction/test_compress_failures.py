"""Failures around a compaction: the store, the lease, the budget, hooks and cancellations."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest

from holdfast import AsyncSessionDB, errors, types
from holdfast.agent import usage
from holdfast.compaction import base, compress, hooks, policy
from holdfast.compaction.base import Outcome
from tests.support import agents, compaction, conversations, polling

COOLDOWN = policy.CompactionPolicy().cooldowns[0]
fail_busy = agents.failing(errors.StoreBusy())


# --- the store -------------------------------------------------------------------------------------------


async def test_store_that_cannot_begin_is_a_failure_without_a_summary(
    talk: AsyncSessionDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = compaction.compacting_agent(talk, writer := compaction.FakeSummarizer())
    with monkeypatch.context() as patched:
        patched.setattr(talk, "begin_compaction", fail_busy)
        patched.setattr(talk, "snapshot", fail_busy)
        made = await agent.compress_context()
    assert (made.outcome, made.session_id) == (Outcome.FAILED, "talk")
    assert tuple(made.messages) == (await talk.context("talk")).messages
    assert writer.requests == []
    assert (await agent.compress_context()).outcome is Outcome.COMPACTED


@pytest.mark.parametrize("how", ["the commit", "every summary"])
async def test_failure_changes_nothing_and_starts_a_cooldown_at_its_end(
    how: str, talk: AsyncSessionDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = conversations.Clock()

    def summarize_slowly(request: base.SummaryRequest) -> str:
        clock.advance(20)
        return compaction.brief_summary(request)

    before = tuple((await talk.context("talk")).messages)
    meter = compaction.GrowingMeter() if how == "every summary" else None
    agent = compaction.compacting_agent(talk, compaction.FakeSummarizer(summarize_slowly), clock=clock, meter=meter)
    with monkeypatch.context() as patched:
        if how == "the commit":
            patched.setattr(talk, "commit_compaction", fail_busy)
        # A failed manual compaction starts no cooldown.
        assert (await agent.compress_context(force=True)).outcome is Outcome.FAILED
        made = await agent.compress_context()
    assert (made.outcome, made.session_id, tuple(made.messages)) == (Outcome.FAILED, "talk", before)
    if how == "every summary":
        assert made.reason.startswith("No summary was accepted: writer: the context would have")
    cooling = await agent.compress_context()
    assert (cooling.outcome, cooling.retry_in) == (Outcome.COOLING_DOWN, COOLDOWN)
    clock.advance(COOLDOWN)
    assert (await compaction.compact(talk, clock=clock)).outcome is Outcome.COMPACTED


async def test_errors_after_the_commit_leave_the_outcome_compacted(
    talk: AsyncSessionDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    await talk.pin("talk", 3)
    commit = talk.commit_compaction

    async def commit_and_break(*given: Any, **named: Any) -> Any:
        head = await commit(*given, **named)
        monkeypatch.setattr(talk, "context", fail_busy)
        monkeypatch.setattr(talk, "update_budget", fail_busy)
        return head

    def fail_to_follow(_: str) -> None:
        raise KeyError("a cache")

    agent = compaction.compacting_agent(talk)
    monkeypatch.setattr(talk, "commit_compaction", commit_and_break)
    job = msgspec.structs.replace(agent.compaction_job(), moved=fail_to_follow)
    made = await compress.compress(job, compress.CompactionRequest(force=True))
    monkeypatch.undo()
    after = await talk.context("talk")
    head = (await talk.head("talk")).id
    assert (made.outcome, made.session_id, made.model) == (Outcome.COMPACTED, head, "writer")
    assert [(each.seq, each.uid, each.body) for each in made.messages] == [(m.seq, m.uid, m.body) for m in after]
    assert (made.after, made.after < made.before) == (agent.compaction_job().size(after), True)


# --- the lease -------------------------------------------------------------------------------------------


async def test_lost_lease_cancels_the_summary_and_waits_for_its_end(still_talk: AsyncSessionDB) -> None:
    reached, ended = asyncio.Event(), list[bool]()

    async def end_slowly(_: base.SummaryRequest) -> str:
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.1)  # Longer than it takes to release the lease.
            ended.append(True)
        return ""

    attempt = await polling.start(compaction.compact(still_talk, end_slowly, lease_ttl=0.1), reached)
    await compaction.steal_lease(still_talk)
    assert (await attempt).outcome is Outcome.BUSY
    assert ended == [True]
    assert len(await still_talk.sessions("talk")) == 1


async def test_lease_is_released_although_the_caller_is_cancelled_twice(
    talk: AsyncSessionDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, release, releasing, go = agents.Stuck(), talk.release_lease, asyncio.Event(), asyncio.Event()

    async def release_slowly(lease: types.Lease) -> None:
        releasing.set()
        await go.wait()
        await release(lease)

    async def is_released() -> bool:
        return await talk.leases() == []

    monkeypatch.setattr(talk, "release_lease", release_slowly)
    work = compaction.compact(talk, compaction.FakeSummarizer(lambda _: stuck()))
    attempt = await polling.start(work, stuck.reached)
    attempt.cancel()
    await releasing.wait()
    await polling.cancel(attempt)
    go.set()
    await polling.until_async(is_released)


OVERTAKEN = {
    "an undo": "The context was changed meanwhile, so nothing was compacted.",
    "another commit": "Another process compacted the conversation first.",
    "a lost lease": "The compaction lost its lease, so nothing was compacted.",
}


@pytest.mark.parametrize("paid", [True, False], ids=["paid", "free"])
@pytest.mark.parametrize("cause", OVERTAKEN)
async def test_overtaken_attempt_names_the_cause_and_cools_down_if_it_was_paid(
    cause: str, paid: bool, talk: AsyncSessionDB
) -> None:
    async def summarize(request: base.SummaryRequest) -> str:
        request.spent(types.Usage(900, 20) if paid else types.Usage())
        if cause == "an undo":
            await talk.undo_compaction("talk")
        elif cause == "another commit":
            await talk.commit_compaction(await talk.snapshot("talk"), summary="Theirs.", cut_seq=74)
        else:
            await compaction.steal_lease(talk)
        return compaction.brief_summary(request)

    clock = conversations.Clock()
    await talk.commit_compaction(await talk.snapshot("talk"), summary="First.", cut_seq=4)
    head = (await talk.head("talk")).id
    agent = compaction.compacting_agent(
        talk, writer := compaction.FakeSummarizer(summarize), clock=clock, session_id=head
    )
    made = await agent.compress_context()
    assert (made.outcome, made.reason, made.usage.input) == (Outcome.BUSY, OVERTAKEN[cause], 900 if paid else 0)
    again = await compaction.compact(talk, clock=clock, session_id=(await talk.head("talk")).id)
    is_cooling_down = paid and cause != "another commit"
    assert (again.outcome is Outcome.COOLING_DOWN, len(writer.requests)) == (is_cooling_down, 1)


# --- the budget ------------------------------------------------------------------------------------------


async def test_budget_that_another_process_changed_is_read_again(
    talk: AsyncSessionDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, clock = talk.update_budget, conversations.Clock()

    async def overtake(*given: Any) -> bool:
        monkeypatch.undo()
        version, _ = await talk.budget("talk")
        assert await write("talk", version, {"failures": 1, "cool_until": clock() + 20})
        return await write(*given)

    monkeypatch.setattr(talk, "update_budget", overtake)
    made = await compaction.compact(talk, writer := compaction.FakeSummarizer(), clock=clock)
    assert (made.outcome, made.retry_in, writer.requests) == (Outcome.COOLING_DOWN, 20, [])


# --- hooks -----------------------------------------------------------------------------------------------


async def ignore_cancellation(_: str) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    await asyncio.sleep(1)


@pytest.mark.parametrize("when", ["before", "after", "closing"])
@pytest.mark.parametrize(
    ("bad", "logged"),
    [
        (agents.failing(ValueError("a bad plug-in")), "a compaction hook failed"),
        (agents.failing(asyncio.CancelledError()), "a compaction hook cancelled itself"),
        (agents.Stuck(), "was cancelled after 0.05 s"),
        (ignore_cancellation, "was cancelled after 0.05 s"),
    ],
)
async def test_bad_hook_stops_neither_the_compaction_nor_the_next_hook(
    when: str,
    bad: hooks.Hook,
    logged: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    talk: AsyncSessionDB,
) -> None:
    monkeypatch.setattr(hooks, "CANCEL_TIMEOUT", 0.05)
    order: list[str] = []

    async def record(session_id: str) -> None:
        order.append(session_id)

    def summarize(request: base.SummaryRequest) -> str:
        order.append("summary")
        return compaction.brief_summary(request)

    chosen = hooks.Hooks(**{when: (bad, record)}, limit=0.05 if "after" in logged else 10)
    agent = compaction.compacting_agent(talk, compaction.FakeSummarizer(summarize), hooks=chosen)
    made = await agent.compress_context()
    assert (made.outcome, agent.session_id) == (Outcome.COMPACTED, made.session_id)
    await agent.close()
    await agent.close()
    assert order == (["talk", "summary"] if when == "before" else ["summary", made.session_id])
    assert logged in caplog.text


async def test_lease_lost_during_a_hook_cancels_it_and_requests_no_summary(still_talk: AsyncSessionDB) -> None:
    stuck, writer = agents.Stuck(), compaction.FakeSummarizer()
    waiting = hooks.Hooks(before=(stuck,), limit=60.0)
    attempt = await polling.start(compaction.compact(still_talk, writer, hooks=waiting, lease_ttl=0.1), stuck.reached)
    await compaction.steal_lease(still_talk)
    assert (await attempt).outcome is Outcome.BUSY
    assert (stuck.cancelled, writer.requests) == (True, [])


async def test_agent_follows_the_new_head_although_it_is_cancelled_after_the_commit(talk: AsyncSessionDB) -> None:
    stuck = agents.Stuck()
    agent = compaction.compacting_agent(talk, compaction.priced_summarizer(), hooks=hooks.Hooks(after=(stuck,)))
    await polling.cancel(await polling.start(agent.compress_context(), stuck.reached))
    assert stuck.cancelled
    assert agent.session_id == (await talk.head("talk")).id != "talk"
    assert tuple(await agent.context_cache.messages()) == (await talk.context("talk")).messages
    assert (await usage.read(talk, "talk"))[usage.SUMMARIES] == compaction.SUMMARY_USAGE
