"""Titles: asked for early, taken, invalid, automatic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast import AIAgent, AsyncSessionDB, errors, events
from holdfast.agent import titles
from holdfast.model import ScriptedModel
from holdfast.runtime import runtime
from tests.support import agents


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Plan the trip to Lisbon", "Plan the trip to Lisbon"),
        ("# Plan\nthe **trip**", "Plan the trip"),
        ("What is the capital of Peru? And of Chile?", "What is the capital of Peru"),
        ("word " * 40, " ".join(["word"] * 12)),
        ("x" * 200, "x" * 60),
        ("", ""),
    ],
)
def test_a_title_is_made_from_the_first_words(text: str, title: str) -> None:
    assert titles.title_from_text(text) == title


async def test_the_first_exchange_names_the_conversation_and_later_ones_do_not(db: AsyncSessionDB) -> None:
    agent = agents.agent(db, ScriptedModel(["a", "b"]), session_id="t")
    await agent.run_conversation("Plan the trip")
    await agent.run_conversation("Something else")
    assert (await db.conversation("t")).title == "Plan the trip"


async def test_a_title_that_is_taken_gets_a_number(db: AsyncSessionDB) -> None:
    for name in ("one", "two", "three"):
        await agents.agent(db, ScriptedModel(["a"]), session_id=name).run_conversation("Plan the trip")
    titles = [(await db.conversation(name)).title for name in ("one", "two", "three")]
    assert titles == ["Plan the trip", "Plan the trip #2", "Plan the trip #3"]


async def test_a_title_asked_for_before_the_first_message_is_applied_after_it(db: AsyncSessionDB) -> None:
    await agents.agent(db, ScriptedModel(["a"]), session_id="t", title="My plan").run_conversation("Hello")
    assert (await db.conversation("t")).title == "My plan"


@pytest.mark.parametrize("wanted", ["Taken", "\u200b"])
async def test_a_title_that_cannot_be_had_is_dropped_and_said_and_the_automatic_one_is_given(
    wanted: str, db: AsyncSessionDB
) -> None:
    await db.create_session("other", source="test", title="Taken")
    seen: list[events.AnyEvent] = []
    agent = agents.agent(db, ScriptedModel(["a"]), session_id="t", title=wanted)
    await agent.run_conversation("Hello there friend", emit=seen.append)
    assert (await db.conversation("t")).title == "Hello there friend"
    assert agent.title.wanted is None
    assert any(isinstance(event, events.Notice) and "title was not set" in event.text for event in seen)


@contextmanager
def no_titles(db: AsyncSessionDB, error: Exception | None = None) -> Iterator[None]:
    """Meanwhile the store cannot take a title."""
    works = db.set_session_title

    async def fails(*_: object) -> None:
        raise error or errors.StoreBusy()

    db.set_session_title = fails  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        db.set_session_title = works


async def test_a_title_that_waited_and_is_taken_by_then_gives_way_to_the_automatic_one(db: AsyncSessionDB) -> None:
    agent = agents.agent(db, ScriptedModel(["a", "b"]), session_id="t", title="Mine")
    with no_titles(db):
        await agent.run_conversation("Plan the trip")
    await db.create_session("other", source="test", title="Mine")
    await agent.run_conversation("Something else")
    assert (await db.conversation("t")).title == "Plan the trip"


@pytest.mark.parametrize("error", [errors.StoreBusy(), AttributeError("x"), ValueError("x"), OSError(5, "x")])
@pytest.mark.parametrize(("wanted", "title"), [("Mine", "Mine"), (None, "Hello there friend")])
async def test_a_title_that_could_not_be_set_is_set_after_the_next_turn(
    error: Exception, wanted: str | None, title: str, db: AsyncSessionDB
) -> None:
    seen = list[events.AnyEvent]()
    agent = agents.agent(db, ScriptedModel(["a", "b"]), session_id="t", title=wanted)
    with no_titles(db, error):
        assert (await agent.run_conversation("Hello there friend", emit=seen.append)).completed
        assert agent.title.wanted == wanted
    (told,) = (each.text for each in seen if isinstance(each, events.Notice))
    assert "the next turn tries again" in told
    assert (await agent.run_conversation("Again")).completed
    assert (await db.conversation("t")).title == title


async def test_a_pending_title_outlives_the_agent_that_could_not_set_it(db: AsyncSessionDB) -> None:
    async def build(session_id: str) -> AIAgent:
        return agents.agent(db, ScriptedModel(["a"]), session_id=session_id)

    async with runtime.Runtime(db, build) as door:
        door.want_title("t", "Mine")
        with no_titles(db, RuntimeError("x")):
            assert (await door.submit("t", events.Submit("Hello"))).completed
        door.agents.forget("t")
        assert door.wanted_title("t") == "Mine"
        assert (await door.submit("t", events.Submit("Again"))).completed
        assert ((await db.conversation("t")).title, door.wanted_title("t")) == ("Mine", None)
