"""The folder of a conversation: a turn in another one is announced to the user and the model, and recorded."""

from __future__ import annotations

import os
from typing import Any

import pytest

from holdfast import AIAgent, AsyncSessionDB, content_parts, events
from holdfast.model import ScriptedModel
from tests.support import agents


def agent_in(db: AsyncSessionDB, folder: str | None) -> AIAgent:
    return agents.agent(db, ScriptedModel(["Yes."] * 5), session_id="talk", folder=folder)


async def announcements(agent: AIAgent, text: str, uid: str | None = None) -> tuple[list[str], list[str]]:
    """Send a message; return the notices to the user and the notes to the model about folders."""
    seen: list[events.AnyEvent] = []
    assert (await agent.run_conversation(text, uid=uid, emit=seen.append)).completed
    content = next(each for each in reversed(await agent.db.transcript("talk")) if each.role == "user").content
    notes = [part["text"] for part in content if part["type"] == "note"] if isinstance(content, list) else []
    notices = [each.text for each in seen if isinstance(each, events.Notice)]
    return notices, [note for note in notes if "folder" in note]


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ({"folder": "/work/"}, "/work"),
        ({"folder": "here"}, os.path.abspath("here")),
        ({"folder": "/work", "keep_folder": False}, None),
        ({"folder": "/not text: \udcff"}, None),
    ],
)
async def test_conversation_records_its_folder(given: dict[str, Any], folder: str | None, db: AsyncSessionDB) -> None:
    await agents.agent(db, ScriptedModel(["Good day."]), session_id="talk", **given).run_conversation("Hello")
    assert (await db.conversation("talk")).folder == folder


async def test_turn_in_another_folder_is_announced_once_and_recorded(db: AsyncSessionDB) -> None:
    one, two = agent_in(db, "/one"), agent_in(db, "/two")
    assert await announcements(agent_in(db, None), "z") == ([], [])
    assert await announcements(one, "a") == ([], [])  # the first folder
    for agent, before, here in ((two, "/one", "/two"), (one, "/two", "/one")):
        notices, (note,) = await announcements(agent, "b", uid=f"b in {here}")
        assert notices == [f"This conversation was in {before}. It continues in {here}."]
        assert (before in note, here in note) == (True, True)
        assert (await db.conversation("talk")).folder == here
        assert (await announcements(agent, "b", uid=f"b in {here}"))[0] == []  # a duplicate
        assert await announcements(agent, "c") == ([], [])
    assert await announcements(agent_in(db, None), "d") == ([], [])
    assert (await db.conversation("talk")).folder == "/one"
    texts = [content_parts.text(each.content) for each in await db.transcript("talk") if each.role == "user"]
    assert texts == ["z", "a", "b", "c", "b", "c", "d"]


@pytest.mark.parametrize("broken", ["conversation", "set_session_folder"])
async def test_folder_that_cannot_be_read_or_recorded_does_not_stop_a_turn(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: str, db: AsyncSessionDB
) -> None:
    await announcements(agent_in(db, "/one"), "a")
    monkeypatch.setattr(db, broken, agents.failing(AttributeError("no such column")))
    await announcements(agent_in(db, "/two"), "b")
    assert "the folder of talk" in caplog.text
