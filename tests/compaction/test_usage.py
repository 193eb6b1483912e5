"""What summaries cost: counted however an attempt ends, once, and for all processes together."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncSessionDB, content_parts, types
from holdfast.agent import usage
from holdfast.compaction import base, budget, policy, summary
from holdfast.compaction import hooks as telling
from holdfast.compaction.base import Outcome
from holdfast.model import ScriptedModel
from holdfast.model import base as models
from tests.compaction import test_attempts
from tests.support import agents
from tests.support.compaction import FakeSummarizer, compacting_agent, fill

COST = types.Usage(1_000, 50, cost=0.25)


def record(request: models.Request) -> models.Reply:
    """A summary that has all it must have, of a model that says what it used."""
    asked = content_parts.text(request.messages[0].content)
    kept = asked.partition("word for word:\n")[2].partition("\n\n")[0]
    return reply(f"In short.\n{kept}")


def reply(text: str) -> models.Reply:
    return models.Reply((content_parts.Text(text),), usage=COST)


def asking(*script: Any) -> summary.ModelSummarizer:
    return summary.ModelSummarizer(ScriptedModel(script, name="small/model", window=100_000))


async def used(db: AsyncSessionDB) -> types.Usage:
    return (await usage.read(db, "talk")).get(usage.SUMMARIES, types.Usage())


async def test_what_a_summary_used_is_in_the_outcome_and_in_the_store(db: AsyncSessionDB) -> None:
    await fill(db)
    made = await compacting_agent(db, asking(record)).compress_context()
    assert (made.outcome, made.model, made.usage) == (Outcome.COMPACTED, "small/model", COST)
    assert await used(db) == COST


async def test_tries_the_gate_refused_are_counted(db: AsyncSessionDB) -> None:
    await fill(db)
    made = await compacting_agent(db, [asking(reply("short"), reply("short")), asking(record)]).compress_context()
    assert (made.outcome, made.usage) == (Outcome.COMPACTED, COST + COST + COST)
    assert await used(db) == made.usage


async def test_a_call_that_broke_off_is_counted_as_far_as_it_said(db: AsyncSessionDB) -> None:
    await fill(db)
    begun = types.Usage(900)
    broken = asking([models.UsageDelta(begun), models.ContentDelta("In sh"), ConnectionError("gone")])
    made = await compacting_agent(db, broken).compress_context()
    assert (made.outcome, made.model, made.usage) == (Outcome.COMPACTED, None, begun)
    assert await used(db) == begun


class Endless:
    """A model that says what the request had, and then nothing more."""

    name = "endless/model"
    window = 100_000

    def __init__(self) -> None:
        self.stuck = agents.Stuck()

    async def stream(self, request: models.Request) -> AsyncGenerator[models.Delta, None]:
        yield models.UsageDelta(COST)
        await self.stuck()

    async def close(self) -> None:
        pass


async def test_an_attempt_that_was_cancelled_is_counted_and_still_counts_as_failed(db: AsyncSessionDB) -> None:
    await fill(db)
    model = Endless()
    attempt = asyncio.create_task(compacting_agent(db, summary.ModelSummarizer(model)).compress_context())
    await model.stuck.reached.wait()
    attempt.cancel()
    await asyncio.wait([attempt])
    assert attempt.cancelled()
    assert await used(db) == COST
    assert await db.get_compression_lock_holder("talk") is None
    assert (await compacting_agent(db).compress_context()).outcome is Outcome.COOLING_DOWN
    assert await used(db) == COST


async def test_an_attempt_that_was_cancelled_after_its_commit_is_counted_once(db: AsyncSessionDB) -> None:
    await fill(db)
    stuck = agents.Stuck()
    one = compacting_agent(db, asking(record), hooks=telling.Hooks(after=(stuck,)))
    attempt = asyncio.create_task(one.compress_context())
    await stuck.reached.wait()
    attempt.cancel()
    await asyncio.wait([attempt])
    assert attempt.cancelled()
    assert len(await db.sessions("talk")) == 2
    assert await used(db) == COST


async def test_a_summary_that_was_not_done_in_time_is_counted(db: AsyncSessionDB) -> None:
    await fill(db)
    hurried = policy.CompactionPolicy(deadline=0.05)
    one = compacting_agent(db, summary.ModelSummarizer(Endless()), compaction_policy=hurried)
    made = await one.compress_context()
    assert (made.outcome, made.model, made.usage) == (Outcome.COMPACTED, None, COST)
    assert await used(db) == COST


async def test_who_loses_to_another_has_paid_all_the_same(db: AsyncSessionDB) -> None:
    await fill(db)

    class Overtaken:
        async def summarize(self, request: base.SummaryRequest) -> str:
            request.spent(COST)
            await db.undo_compaction("talk")  # the view has changed: what was read is old
            return "In short. " + " ".join(request.must_keep)

    assert (await compacting_agent(db).compress_context()).outcome is Outcome.COMPACTED
    made = await compacting_agent(db, Overtaken()).compress_context(force=True, keep_exchanges=2)
    assert (made.outcome, made.usage) == (Outcome.BUSY, COST)
    assert await used(db) == COST


async def test_an_attempt_that_fails_has_cost_what_it_cost(db: AsyncSessionDB) -> None:
    await fill(db)
    one = compacting_agent(db, asking(reply("a"), reply("b")), meter=test_attempts.Growing())
    made = await one.compress_context()
    assert (made.outcome, made.usage) == (Outcome.FAILED, COST + COST)
    assert await used(db) == COST + COST


_ELSEWHERE = """
import asyncio, sys
from holdfast import AsyncSessionDB, SessionDB
from tests.compaction import test_usage
from tests.support import compaction

async def main():
    async with AsyncSessionDB(SessionDB(sys.argv[1])) as db:
        one = compaction.compacting_agent(db, test_usage.asking(test_usage.record))
        made = await one.compress_context(force=True, keep_exchanges=int(sys.argv[2]))
        print(made.outcome, end="")

asyncio.run(main())
"""


def test_the_sum_survives_restarts_and_is_one_for_all_processes(tmp_path: Path) -> None:
    target = str(tmp_path / "store.db")
    agents.run(fill, target)
    for keep in ("20", "2"):
        command = [sys.executable, "-c", _ELSEWHERE, target, keep]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60)
        assert done.stdout == "compacted"
    assert agents.run(used, target) == COST + COST


async def test_a_budget_from_before_there_was_a_sum_is_read_and_goes_on(db: AsyncSessionDB) -> None:
    await fill(db)
    assert await db.update_budget("talk", 0, {"failures": 2, "attempts": 1, "turn": "t"})
    assert budget.parse((await db.budget("talk"))[1]) == budget.Budget(failures=2)
    assert await used(db) == types.Usage()
    await compacting_agent(db, asking(record)).compress_context()
    assert await used(db) == COST


async def test_a_summarizer_that_says_nothing_of_its_cost_is_fine(db: AsyncSessionDB) -> None:
    await fill(db)
    made = await compacting_agent(db, FakeSummarizer()).compress_context()
    assert (made.outcome, made.usage) == (Outcome.COMPACTED, types.Usage())
    assert "usage" not in (await db.budget("talk"))[1]


@pytest.mark.parametrize(
    "reported",
    [
        None,
        "a lot",
        types.Usage(-5),
        types.Usage(10**30),
        types.Usage(1, cost=float("nan")),
        types.Usage(1, cost=float("inf")),
        types.Usage(1, cost=-1.0),
        types.Usage("many"),  # type: ignore[arg-type]
        types.Usage(1, cost="dear"),  # type: ignore[arg-type]
    ],
)
async def test_implausible_usage_of_a_summarizer_is_ignored(reported: Any, db: AsyncSessionDB) -> None:
    await fill(db)

    class CustomWriter(FakeSummarizer):
        async def summarize(self, request: base.SummaryRequest) -> str:
            request.spent(reported)
            return await super().summarize(request)

    made = await compacting_agent(db, CustomWriter()).compress_context()
    assert (made.outcome, made.model, made.usage) == (Outcome.COMPACTED, "writer", types.Usage())
    assert await used(db) == types.Usage()
