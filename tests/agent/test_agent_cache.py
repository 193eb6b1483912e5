"""The agent cache: agents are built once per conversation and reload only after another writer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import AIAgent, AsyncSessionDB, errors
from holdfast.agent import agent_cache
from holdfast.compaction import hooks
from holdfast.model import ScriptedModel
from tests.support import agents, conversations, polling
from tests.support.compaction import FakeSummarizer, blocked_summary, compacting_agent, fill


class Builder:
    """Builds agents, and records which were built and which called their closing hooks."""

    def __init__(self, db: AsyncSessionDB, **given: Any) -> None:
        self.db, self.given = db, given
        self.built: list[str] = []
        self.closed: list[str] = []
        self.failing = False

    async def __call__(self, conversation_id: str) -> AIAgent:
        self.built.append(conversation_id)
        await asyncio.sleep(0)
        if self.failing:
            raise errors.StoreBusy()
        given = {"model": ScriptedModel(["ok"] * 99), "hooks": hooks.Hooks(closing=(self._closing,)), **self.given}
        return agents.agent(self.db, given.pop("model"), session_id=conversation_id, **given)

    async def _closing(self, session_id: str) -> None:
        self.closed.append(session_id)


async def test_conversation_is_reloaded_only_after_a_write_of_another_process(
    caplog: pytest.LogCaptureFixture, db: AsyncSessionDB
) -> None:
    cache = agent_cache.AgentCache(builder := Builder(db))
    assert await cache.get("talk") is await cache.get("talk")  # without messages there is nothing to compare
    for _ in range(3):
        for name in ("talk", "other"):
            await (await cache.get(name)).run_conversation("Hello")
    agent, other = await cache.get("talk"), await cache.get("other")
    assert (builder.built, agent.context_cache.loads, other.context_cache.loads) == (["talk", "other"], 1, 1)
    await db.append_message("talk", role="user", content="From elsewhere.")
    assert await cache.get("talk") is agent
    assert (await cache.get("other")).context_cache.mark is not None
    assert agent.context_cache.mark is None
    await agent.run_conversation("And?")
    assert ("user", "From elsewhere.") in agents.shape(agent.model.requests[-1].messages)
    assert (agent.context_cache.loads, caplog.messages) == (2, [])


async def test_concurrent_callers_share_a_build_even_if_one_is_cancelled(db: AsyncSessionDB) -> None:
    cache = agent_cache.AgentCache(builder := Builder(db))
    calls = [asyncio.create_task(cache.get("talk")) for _ in range(8)]
    await asyncio.sleep(0)
    calls[0].cancel()
    assert len({id(agent) for agent in await asyncio.gather(*calls[1:])}) == 1
    assert builder.built == ["talk"]


async def test_failed_build_is_tried_again_by_the_next_caller(db: AsyncSessionDB) -> None:
    cache = agent_cache.AgentCache(builder := Builder(db))
    builder.failing = True
    outcomes = await asyncio.gather(*(cache.get("talk") for _ in range(3)), return_exceptions=True)
    assert all(isinstance(outcome, errors.StoreBusy) for outcome in outcomes)
    builder.failing = False
    assert (await cache.get("talk")).conversation_id == "talk"


@pytest.mark.parametrize("error", [errors.StoreBusy(), AttributeError("snapshot")])
async def test_agent_is_used_as_it_is_while_the_store_cannot_be_read(
    error: Exception, db: AsyncSessionDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = agent_cache.AgentCache(Builder(db))
    agent = await cache.get("talk")
    await agent.run_conversation("Hello")
    mark = agent.context_cache.mark
    monkeypatch.setattr(db, "snapshot", agents.failing(error))
    assert await cache.get("talk") is agent
    assert agent.context_cache.mark == mark


async def test_least_recently_used_agents_are_dropped_but_none_in_use(db: AsyncSessionDB) -> None:
    await fill(db, exchanges=50, name="compacting")
    slow, reached, go = blocked_summary()
    clock, given = conversations.Clock(), {"model": agents.Trickle("Hm")}
    cache = agent_cache.AgentCache(builder := Builder(db, **given), size=1, clock=clock)
    busy = await cache.get("busy")
    turn = await polling.start(busy.run_conversation("Hello"), given["model"].stuck.reached)
    builder.given = {"model": ScriptedModel(["ok"], window=8_000), "summarizer": FakeSummarizer(slow)}
    compacting = await cache.get("compacting")
    await compacting.run_conversation("Hello")
    await reached.wait()
    assert not compacting.busy
    for name in ("a", "b", "c"):
        await cache.get(name)
    assert [cache.peek(name) for name in ("busy", "compacting", "a", "b")] == [busy, compacting, None, None]
    assert (len(cache), cache.peek("c") is None) == (3, False)
    go.set()
    await compacting.close()
    busy.interrupt()
    await turn
    clock.advance(3601)
    await cache.get("new")
    assert (len(cache), cache.peek("c")) == (1, None)


async def test_dropped_agents_call_their_closing_hooks(db: AsyncSessionDB) -> None:
    cache = agent_cache.AgentCache(builder := Builder(db), size=2)
    await cache.get("without messages")
    for name in ("a", "b", "c", "d"):
        await (await cache.get(name)).run_conversation("Hello")
    cache.forget("c")
    await db.delete_conversation("d")
    await cache.close()
    assert sorted(builder.closed) == ["a", "b", "c", "d"]
    assert builder.closed[-1] == "d"


async def test_agent_dropped_during_a_turn_finishes_it_before_its_hooks(db: AsyncSessionDB) -> None:
    gate, model = agents.Gate(), ScriptedModel([agents.calls("wait"), "Done."])
    cache = agent_cache.AgentCache(builder := Builder(db, model=model, tools=[agents.tool("wait", gate)]))
    turn = await polling.start((await cache.get("a")).run_conversation("Hello"), gate.reached)
    cache.forget("a")
    await cache.close()
    assert builder.closed == []
    gate.go.set()
    assert (await turn).completed
    assert builder.closed == ["a"]


async def test_close_stops_the_compaction_of_a_dropped_agent(db: AsyncSessionDB) -> None:
    slow, reached, _ = blocked_summary()
    await fill(db)

    async def build(_: str) -> AIAgent:
        return compacting_agent(db, FakeSummarizer(slow))

    cache = agent_cache.AgentCache(build)
    one = await cache.get("talk")
    compaction = await polling.start(one.compress_context(force=True), reached)
    cache.forget("talk")
    assert await cache.get("talk") is not one
    await cache.close()
    assert not one.in_use
    await asyncio.wait([compaction])
    assert await db.leases() == []
