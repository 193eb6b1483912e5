"""What an agent remembers about the person, over a store: notes, their place in the prompt, and `/memory`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from holdfast import AIAgent, AsyncSessionDB, errors, events, types
from holdfast.agent import memory as agent_memory
from holdfast.agent.commands import status
from holdfast.model import OfflineModel, ScriptedModel, base
from holdfast.runtime import runtime
from holdfast.tools import memory
from tests.support import agents
from tests.support.runtimes import run_command

KEY = "sk-proj-abcdefghijklmnop1234567890"


def remembering(db: AsyncSessionDB, model: base.Model, **given: object) -> AIAgent:
    return agents.agent(db, model, session_id="talk", remembers=True, **given)


def calls_memory(arguments: str) -> base.Reply:
    return agents.calls(memory.NAME, memory=arguments)


def systems(model: ScriptedModel) -> list[str]:
    return [request.system for request in model.requests]


async def test_what_the_model_notes_is_known_in_the_next_conversation(db: AsyncSessionDB) -> None:
    first = ScriptedModel([calls_memory('{"action": "remember", "text": "Likes tea."}'), "Noted."])
    await remembering(db, first).run_conversation("I like tea")
    (kept,) = await db.memory.all("")
    assert (kept.text, kept.source) == ("Likes tea.", "talk")
    second = ScriptedModel(["Tea?"])
    await agents.agent(db, second, session_id="other", remembers=True).run_conversation("Hello")
    assert systems(second)[0].endswith(f"# What you remember about the person\n{memory.PREFACE}\n- [1] Likes tea.")


async def test_user_is_notified_when_the_model_changes_memory(db: AsyncSessionDB) -> None:
    actions = (
        '{"action": "remember", "text": "Likes tea."}',
        '{"action": "revise", "id": 1, "text": "Likes coffee."}',
        '{"action": "list"}',
        '{"action": "forget", "id": 1}',
        '{"action": "forget", "id": 1}',
    )
    seen = list[events.AnyEvent]()
    agent = remembering(db, ScriptedModel([*map(calls_memory, actions), "Done."]))
    await agent.run_conversation("I like tea", emit=seen.append)
    notices = [each for each in seen if isinstance(each, events.Notice)]
    assert all(each.to_chats for each in notices)
    assert [each.text for each in notices] == [
        "Added to memory: [1] Likes tea. (/memory forget 1 removes it.)",
        "Changed in memory: [1] Likes coffee. (/memory forget 1 removes it.)",
        "Removed from memory: note 1.",
    ]


async def test_the_prompt_is_the_same_bytes_until_a_compaction(db: AsyncSessionDB) -> None:
    model = ScriptedModel(
        ["One.", calls_memory('{"action": "remember", "text": "Likes tea."}'), "Two.", "Three.", "Four.", "Five."]
    )
    agent = remembering(db, model)
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


async def test_the_offline_model_answers_from_what_is_remembered(db: AsyncSessionDB) -> None:
    await db.memory.add("", "The dentist is Doctor Vogel in Bern.")
    result = await remembering(db, OfflineModel()).run_conversation("Who is my dentist?")
    assert "Doctor Vogel" in result.final_response


async def test_notes_of_others_are_never_in_it(db: AsyncSessionDB) -> None:
    await db.memory.add("ann", "Ann likes tea.")
    model = ScriptedModel([calls_memory('{"action": "list"}'), "Hello."])
    await remembering(db, model, owner="bob").run_conversation("Hi")
    assert "Ann likes" not in str(model.requests)


async def test_agent_without_memory_has_neither_section_nor_tool_nor_review(db: AsyncSessionDB) -> None:
    await db.memory.add("", "Likes tea.")
    model = ScriptedModel(["Hello."])
    agent = agents.agent(db, model, reviews=True)
    await agent.run_conversation("Hi")
    (request,) = model.requests
    assert "remember about" not in request.system
    assert request.tools == ()
    assert not agent.in_use


async def test_notes_that_cannot_be_read_stop_no_turn(monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB) -> None:
    await db.memory.add("", "Likes tea.")

    async def fails(_: agent_memory.Notes) -> Sequence[types.Memory]:
        raise errors.StoreBusy()

    model = ScriptedModel(["Hello.", "Tea?"])
    agent = remembering(db, model)
    with monkeypatch.context() as broken:
        broken.setattr(agent_memory.Notes, "memories", fails)
        assert (await agent.run_conversation("Hi")).completed
    await agent.run_conversation("Hi again")
    assert ["tea" in system for system in systems(model)] == [False, True]


@pytest.mark.parametrize("hidden", ["", "\u200b", "\u2066"])
async def test_no_key_is_ever_remembered(hidden: str, db: AsyncSessionDB) -> None:
    kept = agent_memory.Notes(db, "")
    made = await kept.remember(f"The key is {KEY[:9]}{hidden}{KEY[9:]} for now.")
    revised = await kept.revise(made.id, f"Now it is {KEY[:9]}{hidden}{KEY[9:]}.")
    for text in (made.text, revised.text, str(await db.memory.all(""))):
        assert "abcdefghijklmnop" not in text
        assert "[redacted]" in text


# --- /memory ---------------------------------------------------------------------------------------------


async def answers(run: runtime.Runtime, *lines: str) -> list[str]:
    said: list[str] = []
    for line in lines:
        for event in await run_command(run, line):
            assert isinstance(event, events.Answer | events.Notice)
            said.append(event.text)
    return said


async def test_people_see_change_and_forget_what_is_remembered(db: AsyncSessionDB) -> None:
    async def build(conversation_id: str) -> AIAgent:
        return agents.agent(db, ScriptedModel([]), session_id=conversation_id, remembers=True)

    async with runtime.Runtime(db, build) as run:
        assert await answers(
            run,
            "/memory",
            "/memory add Likes tea.",
            f"/memory add My key is {KEY}",
            "/memory edit 1 Likes  coffee.",
            "/memory",
            "/memory forget 2",
            "/memory forget 2",
            "/memory edit 9 Nothing.",
            "/memory forget all",
            "/memory list",
        ) == [
            "No notes.",
            "Added: [1] Likes tea.",
            "Added: [2] My key is [redacted]",
            "Changed: [1] Likes coffee.",
            "[1] Likes coffee.\n[2] My key is [redacted]",
            "Deleted note 2.",
            "There is no note 2.",
            "There is no memory '9'.",
            "Deleted 1 note.",
            "No notes.",
        ]
        for wrong in (
            "add",
            "edit 1",
            "edit x y",
            "forget",
            "forget 1 2",
            "forget ²",
            "erase 1",
            f"forget {9**40}",
        ):
            (said,) = await answers(run, f"/memory {wrong}")
            assert said == status.MEMORY_USAGE
        (said,) = await answers(run, f"/memory add {'x' * 600}")
        assert "1 to 500" in said


async def test_what_a_person_forgets_is_gone_from_the_next_turn_on(db: AsyncSessionDB) -> None:
    await db.memory.add("", "Likes tea.")
    model = ScriptedModel(["One.", "Two."])

    async def build(conversation_id: str) -> AIAgent:
        return agents.agent(db, model, session_id=conversation_id, remembers=True)

    async with runtime.Runtime(db, build) as run:
        await run.submit("talk", events.Submit("a"))
        await answers(run, "/memory forget 1")
        await run.submit("talk", events.Submit("b"))
    assert ["tea" in system for system in systems(model)] == [True, False]
