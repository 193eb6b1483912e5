"""One compaction, from the lease to the commit: nothing is lost, forked or leaked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import AsyncSessionDB, content_parts, errors, events, types
from holdfast.compaction import base, compress, policy, speaker, summary
from holdfast.compaction.base import Outcome
from holdfast.model import ScriptedModel
from holdfast.model import base as models
from holdfast.runtime import wording
from tests.support import agents, conversations
from tests.support.compaction import (
    FakeSummarizer,
    append_questions,
    brief_summary,
    compact,
    compacting_agent,
    fill,
)

TOKEN = "Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z"
KEY = f"sk-proj-{TOKEN}"


async def test_compaction_moves_to_a_new_head_with_a_smaller_context(talk: AsyncSessionDB) -> None:
    agent, seen = compacting_agent(talk, writer := FakeSummarizer()), list[events.AnyEvent]()
    before, rows = await agent.context_tokens(), await talk.transcript("talk")
    made = await agent.compress_context("the harbour", emit=seen.append)
    assert made.outcome is Outcome.COMPACTED
    assert (writer.requests[0].focus, writer.requests[0].messages[0].seq) == ("the harbour", 3)
    head = await talk.head("talk")
    assert (made.session_id, agent.session_id) == (head.id, head.id)
    assert await agent.context_tokens() < before / 2
    context = await talk.context("talk")
    assert tuple(made.messages) == context.messages
    assert [each.end_reason for each in await talk.sessions("talk")] == ["compression", None]
    assert isinstance(seen[-1], events.Compacted)
    assert await talk.leases() == []
    assert (context.summary or "").startswith(summary.MARK)
    assert ([*context[:2]], context[-1]) == (rows[:2], rows[-1])
    (kept,) = await talk.compactions("talk")
    assert (kept.ledger["ranges"], kept.ledger["carried"]) == ([[3, made.cut_seq]], [])
    # No row is copied, moved or deleted, also by further compactions.
    for _ in range(3):
        await compact(talk, session_id=(await talk.head("talk")).id, force=True)
    assert await talk.transcript("talk") == rows
    assert (await talk.admin.fsck()).messages == len(rows)


async def test_next_summary_is_made_from_the_previous_one_without_mark_and_secrets(talk: AsyncSessionDB) -> None:
    agent = compacting_agent(talk, writer := FakeSummarizer(lambda request: f"{brief_summary(request)} Key: {KEY}."))
    await agent.compress_context()
    await append_questions(talk)
    assert (await agent.compress_context()).outcome is Outcome.COMPACTED
    before = f"> {brief_summary(writer.requests[0])} Key: [redacted]."
    assert [each.previous for each in writer.requests] == [None, before]


async def test_other_agent_does_not_compact_again(talk: AsyncSessionDB) -> None:
    first, second = compacting_agent(talk), compacting_agent(talk, writer := FakeSummarizer())
    await first.compress_context()
    await append_questions(talk, 60)  # There is enough to compact.
    assert (await second.compress_context()).outcome is Outcome.NOTHING_TO_DO
    assert writer.requests == []
    assert (await second.run_conversation("Go on")).session_id == first.session_id == second.session_id


# --- messages during a compaction ------------------------------------------------------------------------


async def test_messages_written_during_a_compaction_are_not_summarized_and_stay(
    talk: AsyncSessionDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    last, read = (await talk.conversation("talk")).last_seq, talk.context

    async def append_and_read(*given: Any) -> types.Context:
        if (await talk.conversation("talk")).last_seq == last and await talk.leases():
            await append_questions(talk, 60, "Too late {}. ", 40)  # More than the tail.
        return await read(*given)

    async def append_and_summarize(request: base.SummaryRequest) -> str:
        await append_questions(talk, 60, "Meanwhile {}. ", 40)
        return brief_summary(request)

    monkeypatch.setattr(talk, "context", append_and_read)
    made = await compact(talk, writer := FakeSummarizer(append_and_summarize))
    assert made.outcome is Outcome.COMPACTED
    assert made.after < made.before  # Without these messages.
    assert max(each.seq for each in writer.requests[0].messages) < last
    assert made.cut_seq < last
    said = [str(each).split(".")[0] for each in conversations.contents(await talk.context("talk"))[-120:]]
    assert said == [f"{when} {number}" for when in ("Too late", "Meanwhile") for number in range(60)]


# --- manual compactions ------------------------------------------------------------------------------------


async def test_too_short_or_ended_conversation_costs_nothing(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=1)
    writer = FakeSummarizer()
    for keep in (None, 1, 3):
        made = await compact(db, writer, force=True, keep_exchanges=keep)
        assert made.outcome is Outcome.NOTHING_TO_DO
        assert made.reason.startswith("Nothing to compact: the last messages and pinned ones stay verbatim")
    assert (await compact(db, writer)).outcome is Outcome.NOTHING_TO_DO
    await db.end_conversation("talk", "done")
    assert (await compact(db, writer, force=True)).reason == compress.ENDED
    assert writer.requests == []
    assert await db.budget("talk") == (0, {})


@pytest.mark.parametrize(("exchanges", "kept"), [(2, [3, 4]), (3, [1, 2, 5, 6]), (10, [1, 2, 15, 16, 17, 18, 19, 20])])
async def test_manual_compaction_of_short_messages_keeps_the_last_exchange(
    exchanges: int, kept: list[int], db: AsyncSessionDB
) -> None:
    await db.create_session("talk", source="test")
    for number in range(2 * exchanges):
        role: types.Role = "assistant" if number % 2 else "user"
        await db.append_message("talk", role=role, content=f"Line {number}.")
    agent = agents.agent(db, ScriptedModel([], window=200_000), summarizer=FakeSummarizer(), session_id="talk")
    assert (await agent.compress_context()).outcome is Outcome.NOTHING_TO_DO
    made = await agent.compress_context(force=True)
    assert made.outcome is Outcome.COMPACTED
    assert [each.seq for each in made.messages if not speaker.is_summary(each)] == kept
    while (made := await agent.compress_context(force=True)).outcome is Outcome.COMPACTED:
        pass
    assert [each.seq for each in (await db.context("talk")).messages][-2:] == kept[-2:]


@pytest.mark.parametrize("force", [True, False])
async def test_compaction_that_cannot_shrink_enough_is_not_tried(force: bool, db: AsyncSessionDB) -> None:
    await fill(db, exchanges=42)
    agent = compacting_agent(db, writer := FakeSummarizer())
    for _ in range(2):
        made = await agent.compress_context(force=force, keep_exchanges=39)
        assert made.outcome is Outcome.NOTHING_TO_DO
    assert writer.requests == []
    assert await db.budget("talk") == (0, {})
    assert compress.plan_cut(agent.compaction_job(), await db.context("talk"), 39) is None
    assert (await agent.compress_context()).outcome is Outcome.COMPACTED


# --- summarizers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "tries", "reason"),
    [
        (lambda _: None, 1, "returned no text"),
        (lambda _: f"\u202e\x1b\n{summary.MARK}\n\u200b", 1, "returned no text"),
        (lambda request: f"{brief_summary(request)} \ud800", 1, "not valid Unicode"),
        (lambda _: "word " * 50_000, 2, "which saves too little"),
        (lambda _: "short, and everything else is forgotten", 2, "things to keep"),
        (lambda _: 1 // 0, 1, "ZeroDivisionError"),
    ],
    ids=["no text", "invisible text", "unpaired surrogate", "too long", "forgetful", "raising"],
)
async def test_bad_summary_gives_way_to_an_extract_after_few_tries(
    bad: Any, tries: int, reason: str, caplog: pytest.LogCaptureFixture, talk: AsyncSessionDB
) -> None:
    agent, seen, rows = compacting_agent(talk, writer := FakeSummarizer(bad)), list[events.AnyEvent](), []
    before, rows = await agent.context_tokens(), await talk.transcript("talk")
    made = await agent.compress_context("the harbour", emit=seen.append)
    assert (made.outcome, made.model, len(writer.requests)) == (Outcome.COMPACTED, None, tries)
    assert made.after <= 0.9 * before
    shown = " ".join(wording.compacted(each).text for each in seen if isinstance(each, events.Compacted))
    for text in (shown, made.reason):
        assert "The summary is an extract, made without a model: writer: " in text
        assert reason in text
    assert reason in caplog.text
    assert "pier 23" in str((await talk.context("talk")).summary)
    assert await talk.transcript("talk") == rows
    # The second request states the problem of the first.
    for request in writer.requests[1:]:
        assert "the harbour" in str(request.focus)
        assert reason.removeprefix("which ") in str(request.focus)


async def test_next_summarizer_is_asked_and_problems_are_in_the_ledger(talk: AsyncSessionDB) -> None:
    def fail(_: base.SummaryRequest) -> str:
        raise errors.ModelError(f"bad \ud800\nwith {KEY}")

    failing = [FakeSummarizer(fail), FakeSummarizer(lambda _: "forgetful")]
    made = await compact(talk, [*failing, FakeSummarizer()])
    assert (made.outcome, made.model) == (Outcome.COMPACTED, "writer")
    assert [len(each.requests) for each in failing] == [1, 2]
    assert "was rejected: writer: bad ? with [redacted]; writer: it leaves out" in made.remark
    (kept,) = await talk.compactions("talk")
    assert kept.ledger["notes"][0] == "writer: bad ? with [redacted]"
    assert ["leaves out" in note for note in kept.ledger["notes"]] == [False, True, True]


@pytest.mark.parametrize("end", [[models.FinishDelta("length")], []], ids=["no room", "cut"])
async def test_unfinished_summary_of_a_model_is_rejected(end: list[Any], talk: AsyncSessionDB) -> None:
    model = ScriptedModel([[models.ContentDelta("Open asks: send the"), *end]] * 5, window=100_000)
    made = await compact(talk, summary.ModelSummarizer(model))
    assert (made.outcome, made.model, len(model.requests)) == (Outcome.COMPACTED, None, 1)


async def test_summarizer_that_cancels_itself_or_ignores_cancellation_is_left_behind(db: AsyncSessionDB) -> None:
    over = asyncio.Event()

    async def cancel_itself(_: base.SummaryRequest) -> str:
        raise asyncio.CancelledError

    async def ignore_cancellation(_: base.SummaryRequest) -> str:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue
        return ""

    for summarize in (cancel_itself, ignore_cancellation):
        name = summarize.__name__
        await fill(db, name=name)
        hurried = policy.CompactionPolicy(deadline=0.1)
        made = await compact(db, summarize, session_id=name, compaction_policy=hurried)
        assert (made.outcome, made.model) == (Outcome.COMPACTED, None), name
    over.set()


# --- secrets ---------------------------------------------------------------------------------------------


async def test_no_part_of_a_secret_reaches_a_summarizer_or_is_stored(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=2)
    await db.append_message("talk", role="user", content=[{"type": "text", "text": f"My key is {KEY}, keep it."}])
    for shown in (4, 12, 20, 28):
        # The last characters of the key are within the part that is read of the end of a long message.
        text = "word " * 1_500 + f" {KEY}" + (" end." * 400)[: 2_000 - shown]
        await db.append_message("talk", role="user", content=text)
        call = types.ToolCall(f"c{shown}", "read", {"path": f"/srv/{KEY}.txt", "command": "x" * 480 + f" {KEY}"})
        await db.append_message("talk", role="assistant", content="Noted.", tool_calls=[call])
        await db.append_message("talk", role="tool", tool_call_id=f"c{shown}", content=f"used {KEY}")
    await append_questions(db, 12)
    model = ScriptedModel(["too short"] * 9, window=100_000)
    writers = [summary.ModelSummarizer(model), writer := FakeSummarizer()]
    made = await compact(db, writers, force=True, keep_exchanges=1)
    assert (made.outcome, made.model) == (Outcome.COMPACTED, "writer")
    (request,), (kept,) = writer.requests, await db.compactions("talk")
    sent = [content_parts.text(each.content) for each in model.requests[0].messages]
    given = [str((each.content, each.tool_calls)) for each in request.messages]
    texts = [*sent, *given, *request.must_keep, kept.summary, str(kept.ledger)]
    assert any("keep it" in text for text in given)
    for at in range(len(TOKEN) - 3):
        assert not [text for text in texts if TOKEN[at : at + 4] in text]
