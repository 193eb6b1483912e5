"""The commands /status, /usage and /model."""

from __future__ import annotations

from holdfast import AIAgent, AsyncSessionDB, events
from holdfast.agent import commands
from holdfast.agent.commands import status, turns
from holdfast.model import ScriptedModel
from holdfast.runtime import runtime
from tests.support import agents
from tests.support.compaction import WINDOW, fill, priced_summarizer
from tests.support.runtimes import answer_text, open_runtime, run_command


async def reply(run: runtime.Runtime, conversation: str = "talk") -> str:
    return (await run.submit(conversation, events.Submit("Who are you?"))).final_response


async def test_known_model_is_used_for_one_conversation_and_its_branches(db: AsyncSessionDB) -> None:
    choice = agents.ModelChoice()

    async def build(conversation_id: str) -> AIAgent:
        return agents.agent(db, choice.of(conversation_id), session_id=conversation_id)

    async with runtime.Runtime(db, build, models=choice) as run:
        assert await reply(run) == "first"
        assert (await answer_text(run, "/model second")).startswith("The model is second now (window ")
        assert await reply(run) == "second"
        assert await reply(run, "other") == "first"
        assert (await answer_text(run, "/model")).splitlines()[-1] == "  first"
        assert [each.model for each in await db.transcript("talk") if each.model] == ["first", "second"]
        assert len(run.agents) == 2
        for wrong in ("third", "second first", "\x1b[2J"):
            refused = await answer_text(run, f"/model {wrong}")
            assert refused.endswith("is not a model name. Available: first, second.")
            assert "\x1b" not in refused
        _, moved = await run_command(run, "/branch")
        assert await reply(run, moved.conversation_id) == "second"
        await answer_text(run, "/model second", "new")  # before its first message
        assert await reply(run, "new") == "second"
        assert (await db.head("new")).model == "second"
        assert [each.value for each in await commands.complete(run, "talk", "/model s")] == ["/model second"]


async def test_running_turn_is_in_the_status_and_prevents_a_change_of_the_model(db: AsyncSessionDB) -> None:
    slow = agents.Trickle("Hm")
    async with open_runtime(db, slow, options={"models": agents.ModelChoice()}) as run:
        before = await answer_text(run, "/status")
        assert "begins with your first message" in before
        assert "turn          none, 0 waiting" in before
        waiting = run.submit("talk", events.Submit("Go"))
        await slow.stuck.reached.wait()
        run.submit("talk", events.Submit("And"))
        assert await answer_text(run, "/model second") == f"error: {turns.RUNNING}"
        assert (await answer_text(run, "/model")).startswith("trickle/model (window 1,000 tokens)")
        during = await answer_text(run, "/status")
        assert "turn          running, 1 waiting" in during
        assert "context       about " in during
        await run.send("talk", events.Command("/queue drop all"))
        await run.send("talk", events.Interrupt())
        await waiting
    async with open_runtime(db) as run:
        assert await answer_text(run, "/model second") == "error: The model cannot be changed here."
        assert await answer_text(run, "/model") == "scripted/model (window 200,000 tokens)"


async def test_usage_shows_summaries_on_their_own_line(db: AsyncSessionDB) -> None:
    await fill(db)
    async with open_runtime(db, ScriptedModel(["ok"], window=WINDOW), summarizer=priced_summarizer()) as run:
        assert await answer_text(run, "/usage") == "No tokens used yet."
        await run_command(run, "/compact")
        await run.submit("talk", events.Submit("Hello"))
        assert (await answer_text(run, "/usage")).splitlines() == [
            "scripted/model: 1 tokens in (0 cached), 1 out, price unknown",
            "summaries: 1,000 tokens in (0 cached), 50 out, about $0.2500",
            f"total: about $0.2500. {status.ESTIMATE}",
        ]
        assert f"session       {(await db.head('talk')).id}" in await answer_text(run, "/status")
