"""The current session: always the head of the conversation that the code works for."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import AsyncSessionDB, SessionDB, current_session, current_session_id
from holdfast.agent import current_session as agent_current_session
from holdfast.model import ScriptedModel
from tests.support import agents, conversations


def test_current_session_is_the_head_after_a_compaction() -> None:
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


def test_environment_variable_counts_only_outside_of_a_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SESSION_ID", "from-outside")
    assert current_session_id() == "from-outside"
    with SessionDB(":memory:") as db, current_session("not-yet", db):
        assert current_session_id() == "not-yet"
    monkeypatch.setenv("HOLDFAST_SESSION_ID", "")
    assert current_session_id() is None


async def test_concurrent_turns_see_their_own_conversation(db: AsyncSessionDB) -> None:
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
