"""The folder of a conversation: a turn in another one is announced to the user and the model, and recorded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast import AIAgent, AsyncSessionDB, content_parts, events
from holdfast.model import ScriptedModel
from tests.support import agents, postgres


def working_in(db: AsyncSessionDB, folder: str | None) -> AIAgent:
    return agents.agent(db, ScriptedModel(["Yes."] * 5), session_id="talk", folder=folder)


async def said(agent: AIAgent, words: str, uid: str | None = None) -> tuple[list[str], list[str]]:
    """What the user and the model are told of folders with this message."""
    seen: list[events.AnyEvent] = []
    result = await agent.run_conversation(words, uid=uid, emit=seen.append)
    assert result.completed
    content = next(each for each in reversed(await agent.db.transcript("talk")) if each.role == "user").content
    notes = [part["text"] for part in content if part["type"] == "note"] if isinstance(content, list) else []
    told = [each.text for each in seen if isinstance(each, events.Notice)]
    return told, [note for note in notes if "folder" in note]


@pytest.mark.parametrize("fresh", [lambda: ":memory:", postgres.fresh], ids=["sqlite", "postgres"])
async def test_turn_in_another_folder_is_announced_once_and_recorded(fresh: Callable[[], str]) -> None:
    async with agents.store(fresh()) as db:
        one, two = working_in(db, "/one"), working_in(db, "/two")
        assert await said(one, "a") == ([], [])
        for agent, before, here in ((two, "/one", "/two"), (one, "/two", "/one")):
            told, noted = await said(agent, "b", uid=f"b in {here}")
            assert told == [f"This conversation was in {before}. It continues in {here}."]
            assert len(noted) == 1
            assert (before in noted[0], here in noted[0]) == (True, True)
            assert (await db.conversation("talk")).folder == here
            assert await said(agent, "c") == ([], [])
        assert content_parts.text((await db.transcript("talk"))[2].content) == "b"  # People are not shown the note.


async def test_turn_without_a_folder_changes_none_and_first_folder_is_not_announced(db: AsyncSessionDB) -> None:
    assert await said(working_in(db, None), "a") == ([], [])
    assert await said(working_in(db, "/one"), "b") == ([], [])
    assert await said(working_in(db, None), "c") == ([], [])
    assert (await db.conversation("talk")).folder == "/one"


async def test_message_repeated_after_its_folder_was_recorded_is_the_same_message(db: AsyncSessionDB) -> None:
    await said(working_in(db, "/one"), "a")
    await said(working_in(db, "/two"), "b", uid="b")
    assert (await said(working_in(db, "/two"), "b", uid="b"))[0] == []
    assert [each.role for each in await db.transcript("talk")] == ["user", "assistant"] * 2


@pytest.mark.parametrize("broken", ["conversation", "set_session_folder"])
async def test_folder_that_cannot_be_read_or_recorded_never_stops_a_turn(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: str, db: AsyncSessionDB
) -> None:
    async def fails(*_: object) -> None:
        raise AttributeError("no such column")

    await said(working_in(db, "/one"), "a")
    monkeypatch.setattr(db, broken, fails)
    await said(working_in(db, "/two"), "b")
    assert "the folder of talk" in caplog.text
