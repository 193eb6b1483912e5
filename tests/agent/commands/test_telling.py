"""How things stand is told, and the model is another when a person says so."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from holdfast import AIAgent, AsyncSessionDB, errors, events
from holdfast.agent import commands
from holdfast.agent.commands import turns
from holdfast.model import ScriptedModel, base
from holdfast.runtime import runtime
from tests.support import agents, slash_commands
from tests.support.runtimes import run_command
from tests.support.slash_commands import said


class Shelf:
    """Two models; every conversation is answered by the first until somebody says otherwise."""

    def __init__(self) -> None:
        self.models = {name: ScriptedModel([name] * 9, name=name) for name in ("first", "second")}
        self.chosen: dict[str, str] = {}

    def of(self, conversation_id: str) -> base.Model:
        return self.models[self.chosen.get(conversation_id, "first")]

    async def listed(self) -> Sequence[str]:
        return list(self.models)

    async def choose(self, conversation_id: str, name: str) -> base.Model:
        if name not in self.models:
            raise errors.SettingInvalid(f"{errors.quote(name)} is not a model name.")
        self.chosen[conversation_id] = name
        return self.models[name]

    def follow(self, conversation_id: str, origin: str) -> None:
        if origin in self.chosen:
            self.chosen[conversation_id] = self.chosen[origin]


def house(db: AsyncSessionDB, shelf: Shelf) -> runtime.Runtime:
    async def build(conversation_id: str) -> AIAgent:
        return agents.agent(db, shelf.of(conversation_id), session_id=conversation_id)

    return runtime.Runtime(db, build, models=shelf)


async def answer(run: runtime.Runtime, conversation: str = "talk") -> str:
    return (await run.submit(conversation, events.Submit("Who are you?"))).final_response


async def test_the_model_of_one_conversation_is_changed_and_of_no_other(db: AsyncSessionDB) -> None:
    async with house(db, Shelf()) as run:
        assert await answer(run) == "first"
        assert (await said(run, "/model second")).startswith("The model is second now (window ")
        assert await answer(run) == "second"
        assert await answer(run, "other") == "first"
        assert (await said(run, "/model")).splitlines()[-1] == "  first"
        assert [each.model for each in await db.transcript("talk") if each.model] == ["first", "second"]
        assert len(run.agents) == 2


async def test_the_model_can_be_chosen_before_the_first_message_and_a_branch_keeps_it(db: AsyncSessionDB) -> None:
    async with house(db, Shelf()) as run:
        await said(run, "/model second")
        assert await answer(run) == "second"
        assert (await db.head("talk")).model == "second"
        _, moved = await run_command(run, "/branch")
        assert isinstance(moved, events.Moved)
        assert await answer(run, moved.conversation_id) == "second"


@pytest.mark.parametrize("wrong", ["third", "second first", "-x", "\x1b[2J"])
async def test_an_unknown_model_is_answered_with_those_that_can_be_had_and_changes_nothing(
    wrong: str, db: AsyncSessionDB
) -> None:
    async with house(db, Shelf()) as run:
        refused = await said(run, f"/model {wrong}")
        assert refused.endswith("is not a model name. Available: first, second.")
        assert "\x1b" not in refused
        assert await answer(run) == "first"


async def test_the_model_is_not_changed_while_a_turn_runs_or_where_there_is_no_choice(db: AsyncSessionDB) -> None:
    slow = agents.Trickle("Hm")
    async with slash_commands.door(db, slow, models=Shelf()) as run:
        waiting = run.submit("talk", events.Submit("Go"))
        await slow.stuck.reached.wait()
        assert await said(run, "/model second") == f"error: {turns.RUNNING}"
        assert (await said(run, "/model")).startswith("trickle/model (window 1,000 tokens)")
        await run.send("talk", events.Interrupt())
        await waiting
    async with slash_commands.door(db) as bare:
        assert await said(bare, "/model second") == "error: The model cannot be changed here."
        assert await said(bare, "/model") == "scripted/model (window 200,000 tokens)"


async def test_models_are_offered_for_completion(db: AsyncSessionDB) -> None:
    async with house(db, Shelf()) as run:
        assert [each.value for each in await commands.complete(run, "talk", "/model s")] == ["/model second"]


async def test_status_tells_of_a_turn_that_runs_what_waits_and_how_full_the_context_is(db: AsyncSessionDB) -> None:
    slow = agents.Trickle("Hm")
    async with slash_commands.door(db, slow) as run:
        assert "turn          none, 0 waiting" in await said(run, "/status")
        waiting = run.submit("talk", events.Submit("Go"))
        await slow.stuck.reached.wait()
        run.submit("talk", events.Submit("And"))
        status = await said(run, "/status")
        assert "turn          running, 1 waiting" in status
        assert "context       about " in status
        await run.send("talk", events.Command("/queue drop all"))
        await run.send("talk", events.Interrupt())
        await waiting


async def test_status_and_usage_after_a_compaction_are_of_the_whole_conversation(db: AsyncSessionDB) -> None:
    async with slash_commands.door(db) as run:
        await run.submit("talk", events.Submit("Hello"))
        before = await said(run, "/usage")
        await slash_commands.compacted(db, 2)
        assert await said(run, "/usage") == before
        status = await said(run, "/status")
        assert "messages      2" in status
        assert f"session       {(await db.head('talk')).id}" in status
