"""The usage of summaries is recorded once, however an attempt ends, and for all processes together."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import AsyncSessionDB, content_parts, types
from holdfast.agent import usage
from holdfast.compaction import base, policy, summary
from holdfast.compaction.base import Outcome
from holdfast.model import base as models
from tests.support import agents, compaction, polling


async def recorded(db: AsyncSessionDB) -> types.Usage:
    return (await usage.read(db, "talk")).get(usage.SUMMARIES, types.Usage())


def endless_model() -> agents.Trickle:
    """Return a model that reports its usage and then hangs."""
    return agents.Trickle(models.UsageDelta(compaction.SUMMARY_USAGE), window=100_000)


BROKEN = [models.UsageDelta(compaction.SUMMARY_USAGE), models.ContentDelta("In sh"), ConnectionError("gone")]
REJECTED = [models.Reply((content_parts.Text(text),), usage=compaction.SUMMARY_USAGE) for text in "ab"]
HURRIED = policy.CompactionPolicy(deadline=0.05)


@pytest.mark.parametrize(
    ("summarizers", "given", "outcome", "calls"),
    [
        ([compaction.priced_summarizer()], {}, Outcome.COMPACTED, 1),
        ([compaction.priced_summarizer(*REJECTED), compaction.priced_summarizer()], {}, Outcome.COMPACTED, 3),
        ([compaction.priced_summarizer(BROKEN)], {}, Outcome.COMPACTED, 1),
        ([summary.ModelSummarizer(endless_model())], {"compaction_policy": HURRIED}, Outcome.COMPACTED, 1),
        ([compaction.priced_summarizer(*REJECTED)], {"meter": compaction.GrowingMeter()}, Outcome.FAILED, 2),
        ([compaction.FakeSummarizer()], {}, Outcome.COMPACTED, 0),
    ],
    ids=["accepted", "rejected tries", "broken call", "deadline", "failed", "no usage reported"],
)
async def test_usage_of_every_call_is_reported_and_recorded(
    summarizers: list[Any], given: dict[str, Any], outcome: Outcome, calls: int, talk: AsyncSessionDB
) -> None:
    made = await compaction.compact(talk, summarizers, **given)
    expected = sum([compaction.SUMMARY_USAGE] * calls, types.Usage())
    assert (made.outcome, made.usage, await recorded(talk)) == (outcome, expected, expected)
    assert ("usage" in (await talk.budget("talk"))[1]) is (calls > 0)


async def test_cancelled_attempt_is_recorded_and_counts_as_failed(talk: AsyncSessionDB) -> None:
    model = endless_model()
    work = compaction.compact(talk, summary.ModelSummarizer(model))
    await polling.cancel(await polling.start(work, model.stuck.reached))
    assert await recorded(talk) == compaction.SUMMARY_USAGE
    assert await talk.get_compression_lock_holder("talk") is None
    assert (await compaction.compact(talk)).outcome is Outcome.COOLING_DOWN
    assert await recorded(talk) == compaction.SUMMARY_USAGE


@pytest.mark.parametrize("reported", [None, types.Usage(-5), types.Usage(1, cost=float("nan"))])
async def test_implausible_usage_is_ignored(reported: Any, talk: AsyncSessionDB) -> None:
    def summarize(request: base.SummaryRequest) -> str:
        request.spent(reported)
        return compaction.brief_summary(request)

    made = await compaction.compact(talk, summarize)
    assert (made.outcome, made.model, made.usage) == (Outcome.COMPACTED, "writer", types.Usage())
    assert await recorded(talk) == types.Usage()
