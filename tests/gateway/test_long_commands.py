"""Commands that take their time: one that is compacting can be stopped, and one that asks the model again is finished
by whoever comes next."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from holdfast import AsyncSessionDB
from holdfast.gateway import commands
from holdfast.model import ScriptedModel
from tests.support import gateways
from tests.support.agents import shape
from tests.support.compaction import WINDOW, FakeSummarizer, blocked_summary, fill

ROUTE = "agent:main:loopback:dm:local"


async def test_stop_ends_a_compaction_and_nothing_is_changed_by_it(db: AsyncSessionDB) -> None:
    await fill(db)
    await db.bind_route(ROUTE, "talk", version=0)
    slow, reached, _ = blocked_summary()
    model = ScriptedModel(["ok"], window=WINDOW)
    async with gateways.open_gateway(db, model, summarizer=FakeSummarizer(slow)) as (opened, chat):
        await chat.say("/compact", key="1")
        await reached.wait()
        await chat.say("After it", key="2")
        await chat.say("/stop", key="3")
        said = {each.inbound_id: each.text for each in await chat.replies(3)}
        one, two, three = await gateways.settled(db, "1", "2", "3")
        await gateways.quiet(opened, db)
    assert said[one.id].endswith("\nThe compaction was stopped.")
    assert [said[two.id], said[three.id]] == ["ok", commands.DONE]
    assert [each.outcome for each in (one, two, three)] == ["command", "answered", "command"]
    assert [each.end_reason for each in await db.sessions("talk")] == [None]


async def test_the_turn_of_a_retry_that_was_broken_off_is_finished_by_the_next_gateway(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async with gateways.store(str(tmp_path / "store.db")) as db:

        class Hangs(ScriptedModel):
            async def stream(self, request: Any) -> Any:
                if len(self.requests) == 1:
                    begun.set()
                    await asyncio.Event().wait()
                async for each in super().stream(request):
                    yield each

        async with gateways.open_gateway(db, Hangs(["First."])) as (_, chat):
            await chat.say("Hi", key="1")
            await chat.replies(1)
            await chat.say("/retry", key="2")
            await begun.wait()
    async with gateways.store(str(tmp_path / "store.db")) as db:
        async with gateways.open_gateway(db, ScriptedModel(["Second."])) as (opened, chat):
            assert gateways.texts(await chat.replies(1)) == ["Second."]
            (found,) = await gateways.settled(db, "2")
            await gateways.quiet(opened, db)
        assert (found.outcome, found.seq, found.attempts) == ("answered", 3, 2)
        said = shape(await db.transcript(found.conversation_id or ""))
        assert [role for role, _ in said] == ["user", "assistant", "user", "assistant"]
        assert [each.role for each in await db.context(found.conversation_id or "")] == ["user", "assistant"]
