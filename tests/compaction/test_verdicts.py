"""What is not worth a try is not tried, what was committed stays committed, and no part of a secret is stored."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import AsyncSessionDB, errors, types
from holdfast.compaction import base, compress, policy, summary
from holdfast.compaction.base import Outcome
from holdfast.model import tokens
from tests.compaction.test_attempts import Growing
from tests.support.compaction import FakeSummarizer, compacting_agent, fill

TOKEN = "Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z"


async def test_a_context_that_cannot_be_read_after_the_commit_changes_no_outcome(db: AsyncSessionDB) -> None:
    await fill(db)
    one, reads, commits = compacting_agent(db), db.context, db.commit_compaction

    async def unreadable(*_: object) -> Any:
        raise errors.StoreBusy()

    async def commit(*given: Any, **named: Any) -> Any:
        head = await commits(*given, **named)
        db.context = unreadable  # type: ignore[method-assign]
        return head

    db.commit_compaction = commit  # type: ignore[method-assign]
    made = await one.compress_context()
    db.context = reads  # type: ignore[method-assign]
    head, after = await db.head("talk"), await db.context("talk")
    assert (made.outcome, made.session_id, made.model) == (Outcome.COMPACTED, head.id, "writer")
    assert [(each.seq, each.uid, each.role, each.body) for each in made.messages] == [
        (each.seq, each.uid, each.role, each.body) for each in after
    ]
    assert (made.after, made.after < made.before) == (one.compaction_job().size(after), True)
    # It counts as one that was made, and there is no pause.
    assert (await one.compress_context(force=True, keep_exchanges=1)).outcome is Outcome.COMPACTED


@pytest.mark.parametrize("by_hand", [True, False])
async def test_what_the_gate_could_not_let_pass_asks_nobody_and_costs_nothing(
    by_hand: bool, db: AsyncSessionDB
) -> None:
    await fill(db, exchanges=42)
    writer = FakeSummarizer()
    one = compacting_agent(db, writer)
    for _ in range(3):
        made = await one.compress_context(force=by_hand, keep_exchanges=39)
        assert made.outcome is Outcome.NOTHING_TO_DO
    assert writer.requests == []
    assert await db.budget("talk") == (0, {})
    assert compress.plan_cut(one.compaction_job(), await db.context("talk"), 39) is None
    assert (await one.compress_context()).outcome is Outcome.COMPACTED


@pytest.mark.parametrize("room", [0, 5, 15, 30, 45, 60, 90, 200])
async def test_whatever_is_found_worth_a_try_passes_the_gate_in_the_end(room: int, db: AsyncSessionDB) -> None:
    await fill(db)
    context = await db.context("talk")
    work = compacting_agent(db).compaction_job()
    found = compress.plan_cut(work, context)
    assert found is not None
    # So many tokens may the summary have beside its mark.
    left = work.size(found.staying) + tokens.estimate(summary.MARK) + tokens.PER_MESSAGE + room
    wants = policy.CompactionPolicy(least_shrink=1 - left / work.size(context))
    one = compacting_agent(db, FakeSummarizer(lambda _: 1 // 0), compaction_policy=wants)
    worth = compress.plan_cut(one.compaction_job(), context) is not None
    assert worth is (room > 50)
    made = await one.compress_context()
    assert made.outcome is (Outcome.COMPACTED if worth else Outcome.NOTHING_TO_DO), made.reason


@pytest.mark.parametrize("how", ["the commit", "every summary"])
async def test_what_a_person_tried_in_vain_does_not_hold_up_what_is_made_by_itself(
    how: str, db: AsyncSessionDB
) -> None:
    await fill(db)
    works = db.commit_compaction

    async def full(*_: object, **__: object) -> Any:
        raise errors.StoreFull()

    if how == "the commit":
        db.commit_compaction = full  # type: ignore[method-assign]
    one = compacting_agent(db, meter=Growing() if how == "every summary" else None)
    for _ in range(3):
        assert (await one.compress_context(force=True)).outcome is Outcome.FAILED
    db.commit_compaction = works  # type: ignore[method-assign]
    assert (await compacting_agent(db).compress_context()).outcome is Outcome.COMPACTED


async def test_no_part_of_a_secret_is_asked_for_shown_or_stored(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=2)
    for shown in (4, 12, 20, 28):
        # The last so many characters of it are within what is read of the end of a long message.
        tail = " end." * 400
        said = "word " * 1_500 + f" sk-proj-{TOKEN}" + tail[: 2_000 - shown]
        await db.append_message("talk", role="user", content=said)
        call = types.ToolCall(f"c{shown}", "read", {"path": f"/srv/sk-proj-{TOKEN}.txt"})
        await db.append_message("talk", role="assistant", content="Noted.", tool_calls=[call])
    for number in range(12):
        await db.append_message("talk", role="user", content=f"And pier {number}? " + "It is windy. " * 20)
    writer = FakeSummarizer()
    made = await compacting_agent(db, writer).compress_context(force=True, keep_exchanges=1)
    assert made.outcome is Outcome.COMPACTED
    (asked,) = writer.requests
    (kept,) = await db.compactions("talk")
    told = [*asked.must_keep, *(str(each.content) for each in asked.messages), kept.summary, str(kept.ledger)]
    for at in range(len(TOKEN) - 3):
        assert not [text for text in told if TOKEN[at : at + 4] in text]


async def test_secrets_in_an_older_summary_do_not_reach_whoever_updates_it(db: AsyncSessionDB) -> None:
    await fill(db)
    work = await db.snapshot("talk")
    await db.commit_compaction(work, summary=summary.add_mark(f"The key is sk-proj-{TOKEN}."), cut_seq=4)
    seen: list[base.SummaryRequest] = []

    def update(request: base.SummaryRequest) -> str:
        seen.append(request)
        return " ".join(request.must_keep) or "Nothing."

    assert (
        await compacting_agent(db, FakeSummarizer(update)).compress_context(force=True)
    ).outcome is Outcome.COMPACTED
    assert seen[0].previous == "> The key is [redacted]."
