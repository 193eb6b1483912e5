"""The usage of summaries: the turn it belongs to, and the cost limit it counts against."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import AsyncSessionDB, types
from holdfast.agent import settings, usage
from holdfast.model import ScriptedModel
from tests.support import agents, polling
from tests.support.compaction import SUMMARY_USAGE, WINDOW, compacting_agent, fill, priced_summarizer


@pytest.mark.parametrize(("exchanges", "expected"), [(90, SUMMARY_USAGE), (50, types.Usage())], ids=["hard", "soft"])
async def test_summary_belongs_to_the_waiting_turn(exchanges: int, expected: types.Usage, db: AsyncSessionDB) -> None:
    await fill(db, exchanges)
    agent = compacting_agent(db, priced_summarizer())
    result = await agent.run_conversation("Hello")
    await polling.until_async(lambda: len(db.db.sessions("talk")) == 2)
    assert result.usage == types.Usage(1, 1) + expected
    assert (await agent.run_conversation("Hello")).usage == types.Usage(1, 1)
    await agent.close()
    assert (await usage.read(db, "talk"))[usage.SUMMARIES] == SUMMARY_USAGE


@pytest.mark.parametrize("exchanges", [90, 50], ids=["waited for", "in the background"])
async def test_summary_counts_against_the_cost_limit_of_the_turn(exchanges: int, db: AsyncSessionDB) -> None:
    async def wait_for_compaction(_: dict[str, Any]) -> types.Content:
        await polling.until_async(lambda: not agent.context_window.is_compacting and len(db.db.sessions("talk")) == 2)
        return "seen"

    await fill(db, exchanges)
    agent = compacting_agent(
        db,
        priced_summarizer(),
        model=(model := ScriptedModel([agents.calls("look"), "Never said."], window=WINDOW)),
        tools=[agents.tool("look", wait_for_compaction)],
        limits=settings.Limits(cost=0.2),
    )
    result = await agent.run_conversation("Hello")
    await agent.close()
    assert (result.exit_reason, len(model.requests)) == ("cost", 1)
    assert "$0.25" in result.final_response
