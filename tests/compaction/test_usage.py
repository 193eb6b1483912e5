"""The usage of summaries is recorded once, however an attempt ends, and for all processes together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from holdfast import AsyncSessionDB, content_parts, types
from holdfast.agent import usage
from holdfast.compaction import base, budget, policy, summary
from holdfast.compaction.base import Outcome
from holdfast.model import ScriptedModel
from holdfast.model import base as models
from tests.support import agents
from tests.support.compaction import SUMMARY_USAGE, FakeSummarizer, GrowingMeter, brief_summary, compact


def reply(text: str) -> models.Reply:
    return models.Reply((content_parts.Text(text),), usage=SUMMARY_USAGE)


def reply_in_short(request: models.Request) -> models.Reply:
    """Return a summary with all texts to keep."""
    asked = content_parts.text(request.messages[0].content)
    return reply("In short.\n" + asked.partition("word for word:\n")[2].partition("\n\n")[0])


def summarizer(*script: Any) -> summary.ModelSummarizer:
    return summary.ModelSummarizer(ScriptedModel(script, name="small/model", window=100_000))


async def recorded(db: AsyncSessionDB) -> types.Usage:
    return (await usage.read(db, "talk")).get(usage.SUMMARIES, types.Usage())


class EndlessModel:
    """A model that reports its usage and then hangs."""

    name = "endless/model"
    window = 100_000

    def __init__(self) -> None:
        self.stuck = agents.Stuck()

    async def stream(self, request: models.Request) -> AsyncGenerator[models.Delta, None]:
        yield models.UsageDelta(SUMMARY_USAGE)
        await self.stuck()

    async def close(self) -> None:
        pass


BROKEN = [models.UsageDelta(SUMMARY_USAGE), models.ContentDelta("In sh"), ConnectionError("gone")]
HURRIED = policy.CompactionPolicy(deadline=0.05)


@pytest.mark.parametrize(
    ("summarizers", "given", "outcome", "calls"),
    [
        ([summarizer(reply_in_short)], {}, Outcome.COMPACTED, 1),
        ([summarizer(reply("a"), reply("b")), summarizer(reply_in_short)], {}, Outcome.COMPACTED, 3),
        ([summarizer(BROKEN)], {}, Outcome.COMPACTED, 1),
        ([summary.ModelSummarizer(EndlessModel())], {"compaction_policy": HURRIED}, Outcome.COMPACTED, 1),
        ([summarizer(reply("a"), reply("b"))], {"meter": GrowingMeter()}, Outcome.FAILED, 2),
        ([FakeSummarizer()], {}, Outcome.COMPACTED, 0),
    ],
    ids=["accepted", "rejected tries", "broken call", "deadline", "failed", "no usage reported"],
)
async def test_usage_of_every_call_is_reported_and_recorded(
    summarizers: list[Any], given: dict[str, Any], outcome: Outcome, calls: int, talk: AsyncSessionDB
) -> None:
    made = await compact(talk, summarizers, **given)
    expected = sum([SUMMARY_USAGE] * calls, types.Usage())
    assert (made.outcome, made.usage, await recorded(talk)) == (outcome, expected, expected)
    assert ("usage" in (await talk.budget("talk"))[1]) is (calls > 0)


async def test_cancelled_attempt_is_recorded_and_counts_as_failed(talk: AsyncSessionDB) -> None:
    model = EndlessModel()
    attempt = asyncio.create_task(compact(talk, summary.ModelSummarizer(model)))
    await model.stuck.reached.wait()
    attempt.cancel()
    await asyncio.wait([attempt])
    assert attempt.cancelled()
    assert await recorded(talk) == SUMMARY_USAGE
    assert await talk.get_compression_lock_holder("talk") is None
    assert (await compact(talk)).outcome is Outcome.COOLING_DOWN
    assert await recorded(talk) == SUMMARY_USAGE


async def test_budget_of_an_older_version_is_read(talk: AsyncSessionDB) -> None:
    assert await talk.update_budget("talk", 0, {"failures": 2, "attempts": 1, "turn": "t"})
    assert budget.parse((await talk.budget("talk"))[1]) == budget.Budget(failures=2)
    assert await recorded(talk) == types.Usage()
    await compact(talk, summarizer(reply_in_short))
    assert await recorded(talk) == SUMMARY_USAGE


@pytest.mark.parametrize(
    "reported",
    [
        None,
        types.Usage(-5),
        types.Usage(1, cost=float("nan")),
        types.Usage(1, cost=-1.0),
        types.Usage("many"),  # type: ignore[arg-type]
    ],
)
async def test_implausible_usage_is_ignored(reported: Any, talk: AsyncSessionDB) -> None:
    def summarize(request: base.SummaryRequest) -> str:
        request.spent(reported)
        return brief_summary(request)

    made = await compact(talk, summarize)
    assert (made.outcome, made.model, made.usage) == (Outcome.COMPACTED, "writer", types.Usage())
    assert await recorded(talk) == types.Usage()
