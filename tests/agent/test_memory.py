"""Memory of an agent: notes over a store, their place in the prompt, and `/memory`."""

from __future__ import annotations

import pytest

from holdfast import AIAgent, AsyncSessionDB, errors, events
from holdfast.agent import memory as agent_memory
from holdfast.agent.commands import status
from holdfast.model import ScriptedModel, base
from holdfast.tools import memory
from tests.support import agents
from tests.support.runtimes import answer_text, open_runtime

KEY = "sk-proj-abcdefghijklmnop1234567890"


def remembering_agent(db: AsyncSessionDB, model: base.Model, **given: object) -> AIAgent:
    return agents.agent(db, model, remembers=True, **{"session_id": "talk", **given})


def memory_reply(arguments: str) -> base.Reply:
    return agents.calls(memory.NAME, memory=arguments)


def systems(model: ScriptedModel) -> list[str]:
    return [request.system for request in model.requests]


async def test_note_of_the_model_is_known_in_the_next_conversation_of_its_owner(db: AsyncSessionDB) -> None:
    first = ScriptedModel([memory_reply('{"action": "remember", "text": "Likes tea."}'), "Noted."])
    await remembering_agent(db, first).run_conversation("I like tea")
    (kept,) = await db.memory.all("")
    assert (kept.text, kept.source) == ("Likes tea.", "talk")
    second = ScriptedModel(["Tea?"])
    await remembering_agent(db, second, session_id="other").run_conversation("Hello")
    assert systems(second)[0].endswith(f"# What you remember about the person\n{memory.PREFACE}\n- [1] Likes tea.")
    third = ScriptedModel([memory_reply('{"action": "list"}'), "Hello."])
    await remembering_agent(db, third, session_id="third", owner="bob").run_conversation("Hi")
    assert "Likes tea" not in str(third.requests)


async def test_prompt_stays_the_same_until_a_compaction(db: AsyncSessionDB) -> None:
    noting = memory_reply('{"action": "remember", "text": "Likes tea."}')
    model = ScriptedModel(["One.", noting, "Two.", "Three.", "Four.", "Five."])
    agent = remembering_agent(db, model)
    for text in ("a", "b", "c"):
        await agent.run_conversation(text)
    assert len(set(systems(model))) == 1
    assert "Likes tea." not in systems(model)[0]
    lease = await db.acquire_lease("talk", "compact")
    await db.commit_compaction(lease, summary="So far.", cut_seq=lease.snapshot.last_seq)
    await agent.run_conversation("d")
    await agent.run_conversation("e")
    assert "Likes tea." in systems(model)[-2]
    assert systems(model)[-2] == systems(model)[-1]


async def test_agent_without_memory_has_neither_section_nor_tool_nor_review(db: AsyncSessionDB) -> None:
    await db.memory.add("", "Likes tea.")
    model = ScriptedModel(["Hello."])
    agent = agents.agent(db, model, reviews=True)
    await agent.run_conversation("Hi")
    (request,) = model.requests
    assert "remember about" not in request.system
    assert (request.tools, agent.in_use) == ((), False)


async def test_unreadable_notes_do_not_stop_a_turn(monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB) -> None:
    await db.memory.add("", "Likes tea.")
    agent = remembering_agent(db, model := ScriptedModel(["Hello.", "Tea?"]))
    with monkeypatch.context() as broken:
        broken.setattr(agent_memory.Notes, "memories", agents.failing(errors.StoreBusy()))
        assert (await agent.run_conversation("Hi")).completed
    await agent.run_conversation("Hi again")
    assert ["tea" in system for system in systems(model)] == [False, True]


@pytest.mark.parametrize("hidden", ["", "\u200b", "\u2066"])
async def test_key_is_never_remembered(hidden: str, db: AsyncSessionDB) -> None:
    notes = agent_memory.Notes(db, "")
    made = await notes.remember(f"The key is {KEY[:9]}{hidden}{KEY[9:]} for now.")
    revised = await notes.revise(made.id, f"Now it is {KEY[:9]}{hidden}{KEY[9:]}.")
    for text in (made.text, revised.text, str(await db.memory.all(""))):
        assert "abcdefghijklmnop" not in text
        assert "[redacted]" in text


async def test_memory_command_lists_adds_changes_and_deletes_notes(db: AsyncSessionDB) -> None:
    async with open_runtime(db, remembers=True) as run:
        for line, answer in (
            ("/memory", "No notes."),
            ("/memory add Likes tea.", "Added: [1] Likes tea."),
            (f"/memory add My key is {KEY}", "Added: [2] My key is [redacted]"),
            ("/memory edit 1 Likes  coffee.", "Changed: [1] Likes coffee."),
            ("/memory", "[1] Likes coffee.\n[2] My key is [redacted]"),
            ("/memory forget 2", "Deleted note 2."),
            ("/memory forget 2", "There is no note 2."),
            ("/memory edit 9 Nothing.", "error: There is no memory '9'."),
            ("/memory forget all", "Deleted 1 note."),
            ("/memory list", "No notes."),
        ):
            assert await answer_text(run, line) == answer
        for wrong in ("add", "edit 1", "edit x y", "forget", "forget 1 2", "forget ²", "erase 1", f"forget {9**40}"):
            assert await answer_text(run, f"/memory {wrong}") == f"error: {status.MEMORY_USAGE}"
        assert "1 to 500" in await answer_text(run, f"/memory add {'x' * 600}")


async def test_note_deleted_by_the_user_is_gone_from_the_next_turn(db: AsyncSessionDB) -> None:
    await db.memory.add("", "Likes tea.")
    async with open_runtime(db, model := ScriptedModel(["One.", "Two."]), remembers=True) as run:
        await run.submit("talk", events.Submit("a"))
        await answer_text(run, "/memory forget 1")
        await run.submit("talk", events.Submit("b"))
    assert ["tea" in system for system in systems(model)] == [True, False]
