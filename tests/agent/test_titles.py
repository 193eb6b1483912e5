"""Titles of conversations: requested, taken, invalid and automatic ones."""

from __future__ import annotations

import pytest

from holdfast import AsyncSessionDB, errors, events
from holdfast.agent import titles
from holdfast.model import ScriptedModel
from tests.support import agents


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Plan the trip to Lisbon", "Plan the trip to Lisbon"),
        ("# Plan\nthe **trip**", "Plan the trip"),
        ("What is the capital of Peru? And of Chile?", "What is the capital of Peru"),
        ("word " * 40, " ".join(["word"] * 12)),
        ("", ""),
    ],
)
def test_automatic_title_is_made_of_the_first_words(text: str, title: str) -> None:
    assert titles.title_from_text(text) == title


async def test_first_message_gives_the_title_with_a_number_if_it_is_taken(db: AsyncSessionDB) -> None:
    for name in ("one", "two", "three"):
        agent = agents.agent(db, ScriptedModel(["a", "b"]), session_id=name)
        await agent.run_conversation("Plan the trip")
        await agent.run_conversation("Something else")
    found = [(await db.conversation(name)).title for name in ("one", "two", "three")]
    assert found == ["Plan the trip", "Plan the trip #2", "Plan the trip #3"]


@pytest.mark.parametrize("wanted", ["Taken", "\u200b"])
async def test_invalid_title_is_reported_and_the_automatic_one_is_set(wanted: str, db: AsyncSessionDB) -> None:
    await db.create_session("other", source="test", title="Taken")
    seen: list[events.AnyEvent] = []
    agent = agents.agent(db, ScriptedModel(["a"]), session_id="t", title=wanted)
    await agent.run_conversation("Hello there friend", emit=seen.append)
    assert (await db.conversation("t")).title == "Hello there friend"
    assert agent.title.wanted is None
    assert any(isinstance(event, events.Notice) and "title was not set" in event.text for event in seen)


@pytest.mark.parametrize(
    ("wanted", "title", "error"), [("Mine", "Mine", errors.StoreBusy()), (None, "Hello there friend", OSError(5, "x"))]
)
async def test_title_that_could_not_be_set_is_set_after_the_next_turn(
    wanted: str | None, title: str, error: Exception, db: AsyncSessionDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[events.AnyEvent]()
    agent = agents.agent(db, ScriptedModel(["a", "b"]), session_id="t", title=wanted)
    with monkeypatch.context() as patched:
        patched.setattr(db, "set_session_title", agents.failing(error))
        assert (await agent.run_conversation("Hello there friend", emit=seen.append)).completed
        assert agent.title.wanted == wanted
    (notice,) = (each.text for each in seen if isinstance(each, events.Notice))
    assert "the next turn tries again" in notice
    assert (await agent.run_conversation("Again")).completed
    assert (await db.conversation("t")).title == title
