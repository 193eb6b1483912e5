"""A single turn: it waits for a compaction that follows it, unless it is stopped."""

from __future__ import annotations

import asyncio

from holdfast import AIAgent, AsyncSessionDB, events
from holdfast.model import ScriptedModel
from holdfast.runtime import runtime, single_turn
from tests.support import agents
from tests.support.compaction import WINDOW, FakeSummarizer, fill


async def test_stop_ends_the_wait_for_a_compaction_and_keeps_the_reply(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=50)
    stuck, seen = agents.Stuck(), list[events.AnyEvent]()

    async def build(session_id: str) -> AIAgent:
        model = ScriptedModel(["ok"], window=WINDOW)
        return agents.agent(db, model, session_id=session_id, summarizer=FakeSummarizer(lambda _: stuck()))

    async with runtime.Runtime(db, build) as running_runtime:
        turn = single_turn.SingleTurn(running_runtime, "talk", seen.append)
        running = asyncio.create_task(turn.run("one"))
        while events.Notice(single_turn.COMPACTING) not in seen:
            await asyncio.sleep(0)
        await stuck.reached.wait()
        assert not running.done()
        turn.stop()
        result = await running
        assert result is not None
        assert result.completed
    assert stuck.cancelled
    assert len(await db.sessions("talk")) == 1
