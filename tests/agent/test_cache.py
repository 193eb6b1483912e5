"""Built agents: kept by conversation, reloaded when somebody else wrote, built once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import AIAgent, AsyncSessionDB, errors, types
from holdfast.agent import agent_cache
from holdfast.compaction import hooks as telling
from holdfast.model import ScriptedModel
from tests.support import agents as stage
from tests.support import conversations
from tests.support.compaction import WINDOW, FakeSummarizer, blocked_summary, fill


class Builder:
    """Builds agents, and counts."""

    def __init__(self, db: AsyncSessionDB) -> None:
        self.db = db
        self.built: list[str] = []
        self.closed: list[str] = []
        """The sessions that hooks were told the end of."""

    async def __call__(self, conversation_id: str) -> AIAgent:
        self.built.append(conversation_id)
        await asyncio.sleep(0)
        hooks = telling.Hooks(closing=(self._closing,))
        return stage.agent(self.db, ScriptedModel(["ok"] * 99), session_id=conversation_id, hooks=hooks)

    async def _closing(self, session_id: str) -> None:
        self.closed.append(session_id)


async def test_switching_between_two_conversations_rebuilds_and_reloads_nothing(db: AsyncSessionDB) -> None:
    builder = Builder(db)
    agents = agent_cache.AgentCache(builder)
    for _ in range(5):
        for name in ("one", "two"):
            await (await agents.get(name)).run_conversation("Hello")
    assert builder.built == ["one", "two"]
    assert [(await agents.get(name)).context_cache.loads for name in ("one", "two")] == [1, 1]


async def test_conversation_without_messages_logs_no_warning(
    caplog: pytest.LogCaptureFixture, db: AsyncSessionDB
) -> None:
    agents = agent_cache.AgentCache(Builder(db))
    assert await agents.get("new") is await agents.get("new")
    assert caplog.messages == []


async def test_a_foreign_write_reloads_and_own_turns_do_not(db: AsyncSessionDB) -> None:
    agents = agent_cache.AgentCache(Builder(db))
    agent = await agents.get("talk")
    await agent.run_conversation("Hello")
    await agent.run_conversation("Hello")
    assert agent.context_cache.loads == 1
    await db.append_message("talk", role="user", content="From elsewhere.")
    again = await agents.get("talk")
    assert again is agent
    assert agent.context_cache.mark is None
    await again.run_conversation("And?")
    model = agent.model
    assert isinstance(model, ScriptedModel)
    assert ("user", "From elsewhere.") in stage.shape(model.requests[-1].messages)
    assert agent.context_cache.loads == 2


async def test_a_write_to_another_conversation_reloads_nothing(db: AsyncSessionDB) -> None:
    agents = agent_cache.AgentCache(Builder(db))
    await (await agents.get("one")).run_conversation("Hello")
    await (await agents.get("two")).run_conversation("Hello")
    await db.append_message("two", role="user", content="More.")
    agent = await agents.get("one")
    await agent.run_conversation("Again")
    assert agent.context_cache.loads == 1


async def test_concurrent_first_turns_build_once(db: AsyncSessionDB) -> None:
    builder = Builder(db)
    agents = agent_cache.AgentCache(builder)
    got = await asyncio.gather(*(agents.get("talk") for _ in range(8)))
    assert len({id(agent) for agent in got}) == 1
    assert builder.built == ["talk"]


async def test_a_build_that_failed_is_tried_again_by_the_next(db: AsyncSessionDB) -> None:
    builder, fails = Builder(db), [True]

    async def build(name: str) -> AIAgent:
        if fails.pop() if fails else False:
            raise errors.StoreBusy()
        return await builder(name)

    agents = agent_cache.AgentCache(build)
    outcomes = await asyncio.gather(*(agents.get("talk") for _ in range(3)), return_exceptions=True)
    assert all(isinstance(outcome, errors.StoreBusy) for outcome in outcomes)
    assert (await agents.get("talk")).conversation_id == "talk"


async def test_whoever_stops_waiting_for_a_build_leaves_it_to_the_others(db: AsyncSessionDB) -> None:
    builder = Builder(db)
    agents = agent_cache.AgentCache(builder)
    hasty = asyncio.create_task(agents.get("talk"))
    patient = asyncio.create_task(agents.get("talk"))
    await asyncio.sleep(0)
    hasty.cancel()
    assert (await patient).conversation_id == "talk"
    assert builder.built == ["talk"]


@pytest.mark.parametrize("error", [errors.StoreBusy(), AttributeError("snapshot"), KeyError("x")])
async def test_an_unreadable_state_uses_the_agent_as_it_is(error: Exception, db: AsyncSessionDB) -> None:
    agents = agent_cache.AgentCache(Builder(db))
    agent = await agents.get("talk")
    await agent.run_conversation("Hello")
    mark, works = agent.context_cache.mark, db.snapshot

    async def fails(_: str) -> types.Snapshot:
        raise error

    db.snapshot = fails  # type: ignore[method-assign,assignment]
    assert await agents.get("talk") is agent
    assert agent.context_cache.mark == mark
    db.snapshot = works  # type: ignore[method-assign]


async def test_the_longest_unused_goes_when_there_are_too_many_and_none_in_a_turn(db: AsyncSessionDB) -> None:
    builder = Builder(db)
    agents = agent_cache.AgentCache(builder, size=2)
    busy = await agents.get("busy")
    await busy._lock.acquire()
    for name in ("a", "b", "c"):
        await agents.get(name)
    assert len(agents) == 2
    assert agents.peek("busy") is busy
    assert agents.peek("c") is not None
    busy._lock.release()


async def test_what_is_unused_for_an_hour_goes(db: AsyncSessionDB) -> None:
    clock = conversations.Clock()
    agents = agent_cache.AgentCache(Builder(db), clock=clock)
    await agents.get("old")
    clock.advance(3601)
    await agents.get("new")
    assert (agents.peek("old"), len(agents)) == (None, 1)


async def test_whoever_wants_to_hear_of_the_end_hears_of_agents_that_are_dropped(db: AsyncSessionDB) -> None:
    builder = Builder(db)
    agents = agent_cache.AgentCache(builder, size=2)
    for name in ("a", "b", "c", "d"):
        await (await agents.get(name)).run_conversation("Hello")
    agents.forget("c")
    await agents.close()
    assert sorted(builder.closed) == ["a", "b", "c", "d"]
    assert builder.closed[-1] == "d"


async def test_an_agent_dropped_in_the_middle_of_a_turn_is_not_stopped_and_told_of_afterwards(
    db: AsyncSessionDB,
) -> None:
    reached, go, closed = asyncio.Event(), asyncio.Event(), list[str]()

    async def wait(_: dict[str, Any]) -> str:
        reached.set()
        await go.wait()
        return "waited"

    async def closing(session_id: str) -> None:
        closed.append(session_id)

    async def build(name: str) -> AIAgent:
        model, tools = ScriptedModel([stage.calls("wait"), "Done."]), [stage.tool("wait", wait)]
        return stage.agent(db, model, session_id=name, tools=tools, hooks=telling.Hooks(closing=(closing,)))

    agents = agent_cache.AgentCache(build)
    turn = asyncio.create_task((await agents.get("a")).run_conversation("Hello"))
    await reached.wait()
    agents.forget("a")
    await agents.close()
    assert closed == []
    go.set()
    assert (await turn).completed
    assert closed == ["a"]


async def test_nothing_is_told_of_a_conversation_that_never_began(db: AsyncSessionDB) -> None:
    builder = Builder(db)
    agents = agent_cache.AgentCache(builder, size=1)
    await agents.get("a")
    agent = await agents.get("b")
    await agents.close()
    assert builder.closed == []
    # It is told once something was said.
    await agent.run_conversation("Hello")
    await agent.close()
    assert builder.closed == ["b"]


async def test_the_end_of_a_deleted_conversation_is_told_with_the_session_that_was_known(db: AsyncSessionDB) -> None:
    builder = Builder(db)
    agents = agent_cache.AgentCache(builder)
    await (await agents.get("a")).run_conversation("Hello")
    await db.delete_conversation("a")
    await agents.close()
    assert builder.closed == ["a"]


async def test_a_compaction_beside_the_turns_of_an_agent_that_was_forgotten_is_stopped_with_the_others(
    db: AsyncSessionDB,
) -> None:
    slow, reached, _ = blocked_summary()
    await fill(db)

    async def build(name: str) -> AIAgent:
        model = ScriptedModel([], window=WINDOW)
        return stage.agent(db, model, session_id=name, summarizer=FakeSummarizer(slow))

    agents = agent_cache.AgentCache(build)
    one = await agents.get("talk")
    beside = asyncio.create_task(one.compress_context(force=True))
    await reached.wait()
    agents.forget("talk")
    assert await agents.get("talk") is not one
    await agents.close()
    assert not one.in_use
    await asyncio.wait([beside])
    assert await db.leases() == []
