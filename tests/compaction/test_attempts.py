"""An attempt among others: what it is given, what it holds, what it leaves, and what may fail around it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast import AsyncSessionDB, errors, types
from holdfast.compaction import base, budget, compress, hooks, policy, summary
from holdfast.compaction.base import Outcome
from holdfast.model import ScriptedModel, tokens
from tests.support import agents, conversations
from tests.support.compaction import WINDOW, FakeSummarizer, compacting_agent, fill


def brief(request: base.SummaryRequest) -> str:
    return "In short. " + " ".join(request.must_keep)


async def busy(*_: object, **__: object) -> Any:
    raise errors.StoreBusy()


# --- what it is given ----------------------------------------------------------------------------------


async def test_what_came_after_the_lease_is_not_summed_up_and_stays_in_the_context(db: AsyncSessionDB) -> None:
    await fill(db)
    last, works, said = (await db.conversation("talk")).last_seq, db.context, list[str]()

    async def late(*given: Any) -> types.Context:
        if not said and await db.leases():
            for number in range(60):  # far more than a tail
                said.append(f"Too late {number}. " + "It is windy. " * 40)
                await db.append_message("talk", role="user", content=said[-1])
        return await works(*given)

    db.context = late  # type: ignore[method-assign]
    made = await compacting_agent(db, writer := FakeSummarizer()).compress_context()
    db.context = works  # type: ignore[method-assign]
    assert (made.outcome, len(said)) == (Outcome.COMPACTED, 60)
    assert max(each.seq for each in writer.requests[0].messages) < last
    assert made.cut_seq is not None
    assert made.cut_seq < last
    assert conversations.contents(await db.context("talk"))[-60:] == said


async def test_the_next_summary_is_made_from_the_one_before_without_its_mark(db: AsyncSessionDB) -> None:
    await fill(db)
    one = compacting_agent(db, writer := FakeSummarizer())
    await one.compress_context()
    for number in range(40):
        await db.append_message("talk", role="user", content=f"And dock {number}? " + "It is windy there. " * 12)
    assert (await one.compress_context()).outcome is Outcome.COMPACTED
    assert [request.previous for request in writer.requests] == [None, f"> {brief(writer.requests[0])}"]


async def test_secrets_in_the_parts_of_a_message_do_not_reach_whoever_writes_the_summary(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=3)
    key = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"
    said: types.Content = [{"type": "text", "text": f"My key is {key}, keep it."}]
    await db.append_message("talk", role="user", content=said)
    await fill(db, name="more")
    for message in await db.transcript("more"):
        await db.append_message("talk", role=message.role, content=message.content)
    made = await compacting_agent(db, writer := FakeSummarizer()).compress_context()
    assert made.outcome is Outcome.COMPACTED
    (given,) = [each for each in writer.requests[0].messages if each.seq == 7]
    assert key not in str(given.content)
    assert "keep it" in str(given.content)


async def test_what_was_wrong_with_other_summaries_is_in_the_ledger(db: AsyncSessionDB) -> None:
    await fill(db)
    broken, forgetful = FakeSummarizer(lambda _: 1 // 0), FakeSummarizer(lambda _: "forgetful")
    await compacting_agent(db, [broken, forgetful]).compress_context()
    (kept,) = await db.compactions("talk")
    notes = kept.ledger["notes"]
    assert notes[0] == "writer: ZeroDivisionError"
    assert ["leaves out" in note for note in notes] == [False, True, True]


# --- what it holds -------------------------------------------------------------------------------------


async def test_a_renewal_that_fails_stops_nothing_and_is_made_again() -> None:
    async with agents.store(clock=conversations.Clock()) as db:
        await fill(db)
        works, renewed, lived = db.renew_lease, list[bool](), asyncio.Event()

        async def hardly(lease: types.Lease) -> types.Lease:
            renewed.append(True)
            if len(renewed) == 1:
                raise errors.StoreBusy()
            lived.set()
            return await works(lease)

        async def waits(request: base.SummaryRequest) -> str:
            await lived.wait()
            return brief(request)

        db.renew_lease = hardly  # type: ignore[method-assign,assignment]
        made = await compacting_agent(db, FakeSummarizer(waits), lease_ttl=0.3).compress_context()
        assert (made.outcome, made.model) == (Outcome.COMPACTED, "writer")
        assert await db.leases() == []


async def test_when_an_attempt_has_ended_nothing_of_it_runs_any_more() -> None:
    async with agents.store(clock=conversations.Clock()) as db:
        await fill(db)
        reached, tidied = asyncio.Event(), list[bool]()

        async def slow_to_leave(_: base.SummaryRequest) -> str:
            reached.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.2)  # longer than it takes to give the lease back
                tidied.append(True)
            return ""

        attempt = asyncio.create_task(
            compacting_agent(db, FakeSummarizer(slow_to_leave), lease_ttl=0.3).compress_context()
        )
        await reached.wait()
        (held,) = await db.leases()
        await db.acquire_lease("talk", "compact", held.holder)
        assert (await attempt).outcome is Outcome.BUSY
        assert tidied == [True]


async def test_who_is_cancelled_again_while_letting_go_still_lets_go(db: AsyncSessionDB) -> None:
    await fill(db)
    stuck, works, releasing, go = agents.Stuck(), db.release_lease, asyncio.Event(), asyncio.Event()

    async def slowly(lease: types.Lease) -> None:
        releasing.set()
        await go.wait()
        await works(lease)

    db.release_lease = slowly  # type: ignore[method-assign]
    attempt = asyncio.create_task(compacting_agent(db, FakeSummarizer(lambda _: stuck())).compress_context())
    await stuck.reached.wait()
    attempt.cancel()
    await releasing.wait()
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    go.set()
    while await db.leases():
        await asyncio.sleep(0.01)


# --- what may fail around it ---------------------------------------------------------------------------


async def test_a_store_that_cannot_begin_is_an_outcome_and_nothing_is_asked(db: AsyncSessionDB) -> None:
    await fill(db)
    one, works, looks = compacting_agent(db, writer := FakeSummarizer()), db.begin_compaction, db.snapshot
    db.begin_compaction = db.snapshot = busy  # type: ignore[method-assign]
    made = await one.compress_context()
    assert (made.outcome, made.session_id) == (Outcome.FAILED, "talk")
    assert tuple(made.messages) == (await db.context("talk")).messages
    assert writer.requests == []
    db.begin_compaction, db.snapshot = works, looks  # type: ignore[method-assign]
    assert (await one.compress_context()).outcome is Outcome.COMPACTED


async def test_a_lock_that_cannot_be_let_go_changes_no_outcome_and_is_said_once(
    caplog: pytest.LogCaptureFixture, db: AsyncSessionDB
) -> None:
    await fill(db)
    works, db.release_lease = db.release_lease, busy  # type: ignore[method-assign]
    one = compacting_agent(db)
    assert (await one.compress_context()).outcome is Outcome.COMPACTED
    assert (await one.compress_context()).outcome is Outcome.NOTHING_TO_DO
    db.release_lease = works  # type: ignore[method-assign]
    assert len(caplog.records) == 1


async def test_an_account_that_cannot_be_closed_changes_no_outcome(db: AsyncSessionDB) -> None:
    await fill(db)
    works = db.update_budget

    async def once(*given: Any) -> bool:
        db.update_budget = busy  # type: ignore[method-assign]
        return await works(*given)

    db.update_budget = once  # type: ignore[method-assign]
    assert (await compacting_agent(db).compress_context()).outcome is Outcome.COMPACTED
    db.update_budget = works  # type: ignore[method-assign]


async def test_failing_callback_after_the_commit_leaves_the_outcome_compacted(db: AsyncSessionDB) -> None:
    await fill(db)

    def fail_to_follow(_: str) -> None:
        raise KeyError("a cache")

    job = msgspec.structs.replace(compacting_agent(db).compaction_job(), moved=fail_to_follow)
    made = await compress.compress(job, compress.CompactionRequest(force=True))
    assert (made.outcome, made.session_id) == (Outcome.COMPACTED, (await db.head("talk")).id)


async def test_messages_of_a_compaction_are_complete_although_they_cannot_be_read_after_the_commit(
    db: AsyncSessionDB,
) -> None:
    await fill(db)
    await db.pin("talk", 3)

    async def fail_to_read(*_: object) -> Any:
        raise RuntimeError("a reader")

    async def break_reading(_: str) -> None:
        db.context = fail_to_read  # type: ignore[method-assign]

    one, works = compacting_agent(db, hooks=hooks.Hooks(after=(break_reading,))), db.context
    made = await one.compress_context(force=True)
    db.context = works  # type: ignore[method-assign]
    assert (made.outcome, made.session_id) == (Outcome.COMPACTED, (await db.head("talk")).id)
    kept = (await db.context("talk")).messages
    assert [(each.seq, each.uid, each.body) for each in made.messages] == [
        (each.seq, each.uid, each.body) for each in kept
    ]


async def test_what_another_wrote_into_the_budget_meanwhile_is_read_before_it_is_counted(db: AsyncSessionDB) -> None:
    await fill(db)
    works, clock = db.update_budget, conversations.Clock()

    async def overtaken(*given: Any) -> bool:
        db.update_budget = works  # type: ignore[method-assign]
        version, _ = await db.budget("talk")
        assert await works("talk", version, {"failures": 1, "cool_until": clock() + 20})
        return await works(*given)

    db.update_budget = overtaken  # type: ignore[method-assign]
    made = await compacting_agent(db, writer := FakeSummarizer(), clock=clock).compress_context()
    assert (made.outcome, made.retry_in) == (Outcome.COOLING_DOWN, 20)
    assert writer.requests == []


async def test_a_success_is_noted_also_where_another_wrote_into_the_budget_meanwhile(db: AsyncSessionDB) -> None:
    await fill(db)
    works, clock, counted = db.update_budget, conversations.Clock(), list[int]()

    async def overtaken(*given: Any) -> bool:
        counted.append(1)
        if len(counted) == 2:  # the first counts the attempt, the second how it ended
            version, body = await db.budget("talk")
            assert await works("talk", version, {**body, "reviews": {"input": 7}})
        return await works(*given)

    db.update_budget = overtaken  # type: ignore[method-assign]
    assert (await compacting_agent(db, clock=clock).compress_context()).outcome is Outcome.COMPACTED
    found = budget.parse((await db.budget("talk"))[1])
    assert (found.recent, found.begun, found.reviews.input) == ((clock(),), 0.0, 7)


class Growing(tokens.Meter):
    """A meter to which every summary is too long: what seemed worth a try was not."""

    def of(self, message: types.Message) -> int:
        written = message.uid == "summary" and message.content != summary.MARK
        return 10**6 if written else super().of(message)


@pytest.mark.parametrize("how", ["the commit", "every summary"])
async def test_the_pause_after_a_failure_begins_when_it_failed(how: str, db: AsyncSessionDB) -> None:
    await fill(db)
    clock = conversations.Clock()

    def slow(request: base.SummaryRequest) -> str:
        clock.advance(20)
        return brief(request)

    meter = Growing() if how == "every summary" else None
    works = db.commit_compaction
    if how == "the commit":
        db.commit_compaction = busy  # type: ignore[method-assign]
    before = tuple((await db.context("talk")).messages)
    one = compacting_agent(db, FakeSummarizer(slow), clock=clock, meter=meter)
    made = await one.compress_context()
    assert (made.outcome, made.session_id, tuple(made.messages)) == (Outcome.FAILED, "talk", before)
    if how == "every summary":
        assert made.reason.startswith("No summary was accepted: writer: the context would have")
    waits = await one.compress_context()
    assert (waits.outcome, waits.retry_in) == (Outcome.COOLING_DOWN, policy.CompactionPolicy().cooldowns[0])
    clock.advance(policy.CompactionPolicy().cooldowns[0])
    db.commit_compaction = works  # type: ignore[method-assign]
    assert (await compacting_agent(db, clock=clock).compress_context()).outcome is Outcome.COMPACTED


@pytest.mark.parametrize("cause", ["hidden messages", "a lost lease", "another compaction"])
async def test_paid_attempt_that_compacted_nothing_starts_a_cooldown(cause: str, db: AsyncSessionDB) -> None:
    """Every step of a turn would pay for another summary otherwise."""

    async def meanwhile(request: base.SummaryRequest) -> str:
        request.spent(types.Usage(900, 20))
        if cause == "hidden messages":
            await db.hide("talk", (await db.conversation("talk")).last_seq)
        elif cause == "a lost lease":
            (held,) = await db.leases()
            await db.acquire_lease("talk", "compact", held.holder)
        else:
            await db.commit_compaction(await db.snapshot("talk"), summary="Theirs.", cut_seq=20)
        return brief(request)

    await fill(db)
    clock = conversations.Clock()
    one = compacting_agent(db, writer := FakeSummarizer(meanwhile), clock=clock)
    assert (await one.compress_context()).outcome is Outcome.BUSY
    is_cooling_down = (await one.compress_context()).outcome is Outcome.COOLING_DOWN
    assert (is_cooling_down, len(writer.requests)) == (cause != "another compaction", 1)
    clock.advance(policy.CompactionPolicy().cooldowns[0])
    assert (await compacting_agent(db, clock=clock).compress_context()).outcome is not Outcome.COOLING_DOWN


async def test_no_summary_is_requested_after_the_lease_was_lost() -> None:
    async with agents.store(clock=conversations.Clock()) as db:
        await fill(db)
        works = db.pins

        async def lose(*given: Any) -> Any:
            (found,) = await db.leases()
            await db.acquire_lease("talk", "compact", found.holder)
            await asyncio.sleep(0.3)  # until a renewal finds out
            return await works(*given)

        db.pins = lose  # type: ignore[method-assign]
        made = await compacting_agent(db, writer := FakeSummarizer(), lease_ttl=0.3).compress_context()
        assert (made.outcome, writer.requests) == (Outcome.BUSY, [])


# --- what people are told ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("an undo", "The context was changed meanwhile, so nothing was compacted."),
        ("another commit", "Another process compacted the conversation first."),
        ("the lock taken", "The compaction lost its lease, so nothing was compacted."),
    ],
)
async def test_who_was_overtaken_says_by_what(what: str, reason: str, db: AsyncSessionDB) -> None:
    async def meanwhile(request: base.SummaryRequest) -> str:
        if what == "an undo":
            await db.undo_compaction("talk")
        elif what == "another commit":
            await db.commit_compaction(await db.snapshot("talk"), summary="Theirs.", cut_seq=74)
        else:
            (held,) = await db.leases()
            await db.acquire_lease("talk", "compact", held.holder)
        return brief(request)

    await fill(db)
    assert (await compacting_agent(db).compress_context()).outcome is Outcome.COMPACTED
    made = await compacting_agent(db, FakeSummarizer(meanwhile)).compress_context(force=True, keep_exchanges=2)
    assert (made.outcome, made.reason) == (Outcome.BUSY, reason)


async def test_another_process_is_named_only_where_it_is_one(db: AsyncSessionDB) -> None:
    await fill(db)
    stuck = agents.Stuck()
    first = asyncio.create_task(compacting_agent(db, FakeSummarizer(lambda _: stuck())).compress_context())
    await stuck.reached.wait()
    made = await compacting_agent(db).compress_context()
    assert (made.outcome, made.reason) == (
        Outcome.BUSY,
        "This process is already compacting this conversation.",
    )
    first.cancel()
    await asyncio.wait([first])
    await db.acquire_lease("talk", "compact", "elsewhere:17:abc")
    made = await compacting_agent(db).compress_context(force=True)
    assert (made.outcome, made.reason) == (Outcome.BUSY, "Another process is already compacting this conversation.")


async def test_during_a_pause_nobody_takes_the_lease_or_reads_the_context(db: AsyncSessionDB) -> None:
    await fill(db)
    clock, one = conversations.Clock(), compacting_agent(db, writer := FakeSummarizer(), clock=conversations.Clock())
    version, _ = await db.budget("talk")
    assert await db.update_budget("talk", version, {"failures": 1, "cool_until": clock() + 20})
    await one.context_cache.messages()
    begins, reads = db.begin_compaction, db.context
    db.begin_compaction = db.context = busy  # type: ignore[method-assign]
    made = await one.compress_context()
    assert (made.outcome, made.retry_in, writer.requests) == (Outcome.COOLING_DOWN, 20, [])
    db.begin_compaction, db.context = begins, reads  # type: ignore[method-assign]
    assert (await one.compress_context(force=True)).outcome is Outcome.COMPACTED


async def test_without_summarizers_the_extract_is_made_and_no_model_asked(db: AsyncSessionDB) -> None:
    await fill(db)
    model = ScriptedModel(["never"], window=WINDOW)
    made = await agents.agent(db, model, session_id="talk", summarizer=[]).compress_context()
    assert (made.outcome, made.model, model.requests) == (Outcome.COMPACTED, None, [])
