"""Which session the code at hand works for: always the head of its conversation."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import AsyncSessionDB, SessionDB, current_session, current_session_id
from holdfast.agent import current_session as agent_current_session
from holdfast.model import ScriptedModel
from tests.support import agents, conversations


def test_the_current_session_is_the_head_also_after_a_rotation() -> None:
    with SessionDB(":memory:") as db:
        conversations.begin(db, "talk", "one")
        with current_session("talk", db):
            assert current_session_id() == "talk"
            child = conversations.compact(db, "talk", 1)
            assert current_session_id() == child.id
            with current_session(child.id, AsyncSessionDB(db)):
                assert conversations.compact(db, "talk", 1).id == current_session_id()
                assert agent_current_session.current_conversation_id() == "talk"
        assert agent_current_session.current_conversation_id() is None


def test_the_environment_is_asked_only_where_no_conversation_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SESSION_ID", "from-outside")
    assert current_session_id() == "from-outside"
    with SessionDB(":memory:") as db, current_session("not-yet", db):
        assert current_session_id() == "not-yet"
    monkeypatch.setenv("HOLDFAST_SESSION_ID", "")
    assert current_session_id() is None


async def test_lease_of_a_turn_or_a_compaction_names_its_agent(db: AsyncSessionDB) -> None:
    async def look(_: object) -> str:
        (lease,) = await db.leases()
        return lease.agent

    model = ScriptedModel([agents.calls("look"), "Done.", agents.calls("look"), "Done."])
    agent = agents.agent(db, model, source="desk", session_id="talk", tools=[agents.tool("look", look)])
    for _ in range(2):  # the one that begins the conversation, and another
        result = await agent.run_conversation("Who?")
        assert (result.completed, result.messages[2].content) == (True, agent.name)
    assert agent.name.startswith("desk#")


async def test_two_tasks_do_not_see_each_others_conversation(db: AsyncSessionDB) -> None:
    seen: dict[str, str | None] = {}

    async def look(_: object) -> str:
        await asyncio.sleep(0)
        here = agent_current_session.current_conversation_id()
        seen[str(here)] = await asyncio.to_thread(current_session_id)
        return "ok"

    async def turn(name: str) -> None:
        model = ScriptedModel([agents.calls("look"), "Done."])
        await agents.agent(db, model, session_id=name, tools=[agents.tool("look", look)]).run_conversation("Go")

    await asyncio.gather(turn("one"), turn("two"))
    assert seen == {"one": "one", "two": "two"}
