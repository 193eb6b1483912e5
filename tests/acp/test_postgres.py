"""Two editors on PostgreSQL share one conversation."""

from __future__ import annotations

import pytest

from holdfast import AsyncSessionDB, SessionDB
from holdfast.model import ScriptedModel
from holdfast.runtime import subscriptions
from tests.support import acp_editor, agents, polling, postgres

LONG = "word " * 400


async def test_two_editors_on_postgresql_share_one_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "POLL_SECONDS", 0.05)
    dsn = postgres.fresh()

    async with agents.store(dsn) as db:
        script = [f"Answer {number}. {LONG}" for number in range(1, 7)]
        async with (
            AsyncSessionDB(SessionDB(dsn)) as elsewhere,
            acp_editor.connect(acp_editor.Program(db, ScriptedModel([*script, "The summary."]))) as one,
            acp_editor.connect(acp_editor.Program(elsewhere, ScriptedModel(["From two."]))) as other,
        ):
            here = await one.new()
            for number in range(1, 5):
                await one.prompt(here, f"Question {number}. {LONG}")
            await other.ask("session/load", sessionId=here, cwd="/", mcpServers=[])
            assert other.text() == one.text()
            await one.prompt(here, "Question 5.")
            await polling.until_async(lambda: "Answer 5." in other.text())
            assert await one.prompt(here, "/compact here 1") == "end_turn"
            assert (await db.conversation(here)).compaction_epoch is not None
            assert await other.prompt(here, "And you?") == "end_turn"
            await polling.until_async(lambda: "From two." in one.text())

            fork = (await other.ask("session/fork", sessionId=here, cwd="/", mcpServers=[]))["sessionId"]
            listed = (await one.ask("session/list", cwd="/"))["sessions"]
            assert {each["sessionId"] for each in listed} == {here, fork}
            before = len(one.received("user_message_chunk"))
            await one.ask("session/load", sessionId=here, cwd="/", mcpServers=[])
            assert len(one.received("user_message_chunk")) == before + 6
