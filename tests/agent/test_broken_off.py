"""Turns that are broken off: before they have begun, between two tools, in the middle of a word."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import AsyncSessionDB, errors, events, types
from holdfast.model import ScriptedModel, base
from tests.support import agents


async def test_an_interrupt_just_before_the_model_is_asked_is_not_lost(db: AsyncSessionDB) -> None:
    model = ScriptedModel(["never", "now"])
    agent = agents.agent(db, model, session_id="t")

    def stop(event: events.AnyEvent) -> None:
        if isinstance(event, events.TurnStarted):
            assert agent.interrupt()

    result = await agent.run_conversation("Go", emit=stop)
    assert (result.exit_reason, result.api_calls, model.requests) == ("interrupted", 0, [])
    assert [each.role for each in result.messages] == ["user"]
    assert await db.leases() == []
    assert (await agent.run_conversation("And now?")).final_response == "never"


async def test_what_a_broken_off_turn_has_used_is_in_its_result_and_in_the_log(db: AsyncSessionDB) -> None:
    first = agents.calls("look")
    cut = [base.ContentDelta("Well"), base.UsageDelta(types.Usage(700, 3)), errors.ModelCut()]
    agent = agents.agent(db, ScriptedModel([first, cut]), session_id="t", tools=[agents.says("look")])
    result = await agent.run_conversation("Go")
    assert (result.exit_reason, result.partial) == ("cut", True)
    assert result.usage == first.usage + types.Usage(700, 3)
    used = (await db.usage("t"))["scripted/model"]
    assert (used.input, used.output) == (result.usage.input, result.usage.output)


async def test_where_one_call_cannot_be_recorded_those_beside_it_are_stopped_and_waited_for(db: AsyncSessionDB) -> None:
    works, reached, tidied = db.append_messages, asyncio.Event(), list[bool]()

    async def slow_to_leave(_: dict[str, Any]) -> str:
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(20):
                await asyncio.sleep(0)
            tidied.append(True)
        return ""

    async def full(*_: object, **__: object) -> Any:
        raise errors.StoreFull()

    async def fills(_: dict[str, Any]) -> str:
        await reached.wait()
        db.append_messages = full  # type: ignore[method-assign]
        return "done"

    tools = [agents.tool("slow", slow_to_leave), agents.tool("fills", fills)]
    agent = agents.agent(db, ScriptedModel([agents.calls("slow", "fills"), "ok"]), session_id="t", tools=tools)
    result = await agent.run_conversation("Go")
    assert (result.exit_reason, tidied) == ("store", [True])
    assert await db.leases() == []
    db.append_messages = works  # type: ignore[method-assign]
