"""A fork of a session: what was said, a life of its own, and nothing where it is refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from holdfast import AsyncSessionDB, errors
from holdfast.acp import server
from holdfast.model import ScriptedModel
from tests.support import acp_editor, agents


async def test_a_fork_has_what_was_said_and_a_life_of_its_own() -> None:
    async with acp_editor.editor(["A"]) as editor:
        db = editor.program.db
        session = await editor.new()
        await editor.prompt(session, "one")
        await editor.ask("session/set_config_option", sessionId=session, configId="model", value="other/model")
        made = await editor.ask("session/fork", sessionId=session, cwd="/", mcpServers=[])
        assert made["configOptions"][1]["currentValue"] == "other/model"
        fork = made["sessionId"]
        await editor.prompt(fork, "two")
        assert len(await db.transcript(session)) == 2
        assert len(await db.transcript(fork)) == 4


async def test_a_fork_in_the_middle_of_a_turn_is_refused() -> None:
    model = agents.Trickle("so far ")

    async with acp_editor.editor(model=model) as editor:
        session = await editor.new()
        prompting = editor.prompting(session, "one")
        await model.stuck.reached.wait()
        refused = await acp_editor.refusal(editor.ask("session/fork", sessionId=session, cwd="/", mcpServers=[]))
        assert refused.code == -32001
        editor.tell("session/cancel", sessionId=session)
        await prompting


async def test_a_fork_that_is_refused_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    monkeypatch.setattr(server, "MAX_SESSIONS", 2)

    class Full(acp_editor.House):
        async def models(self) -> Sequence[str]:
            if len(self.doors) > 1:
                raise errors.SettingInvalid("There are no more models.")
            return await super().models()

    async with acp_editor.seated(Full(db, ScriptedModel(["A"]))) as editor:
        session = await editor.new()
        await editor.prompt(session, "one")
        fork = {"sessionId": session, "cwd": "/", "mcpServers": []}
        # There is room for it, and it cannot be opened all the same.
        assert (await acp_editor.refusal(editor.ask("session/fork", **fork))).code == -32603
        assert [each["sessionId"] for each in (await editor.ask("session/list"))["sessions"]] == [session]
        monkeypatch.setattr(server, "MAX_SESSIONS", 1)
        assert (await acp_editor.refusal(editor.ask("session/fork", **fork))).code == -32600
        assert [each["sessionId"] for each in (await editor.ask("session/list"))["sessions"]] == [session]
        assert await db.branches(session) == []


async def test_a_branch_is_made_when_it_can_be_opened(db: AsyncSessionDB) -> None:
    class Watching(acp_editor.House):
        async def models(self) -> Sequence[str]:
            seen.append([each.id for each in await self.db.list_sessions()])
            return await super().models()

    seen = list[list[str]]()

    async with acp_editor.seated(Watching(db, ScriptedModel(["A"]))) as editor:
        session = await editor.new()
        await editor.prompt(session, "one")
        await editor.ask("session/fork", sessionId=session, cwd="/", mcpServers=[])
        # Whoever sees it may write to it, and nobody could take it back any more.
        assert seen == [[], [session]]
        assert len(await db.branches(session)) == 1


async def test_a_fork_has_the_last_place_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_SESSIONS", 2)

    async with acp_editor.editor(["A"]) as editor:
        session = await editor.new()
        await editor.prompt(session, "one")
        await editor.ask("session/fork", sessionId=session, cwd="/", mcpServers=[])
