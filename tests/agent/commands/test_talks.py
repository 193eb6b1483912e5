"""Conversations are begun, branched off, found and gone to; each person has their own."""

from __future__ import annotations

import pytest

from holdfast import AsyncSessionDB, events
from holdfast.runtime import runtime
from tests.agent.test_cache import Builder
from tests.support import slash_commands
from tests.support.runtimes import run_command
from tests.support.slash_commands import said, view


async def test_reset_is_new_and_leaves_the_old_conversation_as_it_was(db: AsyncSessionDB) -> None:
    await slash_commands.exchanges(db, 1)
    async with slash_commands.door(db) as run:
        (moved,) = await run_command(run, "/reset Fresh")
        assert isinstance(moved, events.Moved)
        assert moved.new
        await run.submit(moved.conversation_id, events.Submit("Hello"))
        assert (await db.conversation(moved.conversation_id)).title == "Fresh"
    assert await view(db) == ["q1", "a1"]


async def test_branch_goes_on_in_a_copy_with_the_next_number_or_the_title_that_was_given(db: AsyncSessionDB) -> None:
    await slash_commands.exchanges(db, 2)
    async with slash_commands.door(db) as run:
        answer, moved = await run_command(run, "/branch")
        assert isinstance(answer, events.Answer)
        assert answer.text == (
            "You are in the branch The talk #2 now. It has all messages up to 4. /resume talk goes back."
        )
        assert isinstance(moved, events.Moved)
        await run.submit(moved.conversation_id, events.Submit("Onwards"))
        assert await view(db) == ["q1", "a1", "q2", "a2"]
        assert len(await view(db, moved.conversation_id)) == 6
        _, named = await run_command(run, "/branch Another way")
        assert isinstance(named, events.Moved)
        assert (await db.conversation(named.conversation_id)).title == "Another way"


async def test_branch_with_a_title_that_is_taken_is_refused_and_makes_nothing(db: AsyncSessionDB) -> None:
    await slash_commands.exchanges(db, 1)
    await slash_commands.exchanges(db, 1, "other")
    async with slash_commands.door(db) as run:
        assert (await said(run, "/branch The other")).startswith("error: ")
        assert (await said(run, "/branch \u200b")).startswith("error: ")
    assert len(await db.list_sessions()) == 2


async def test_a_branch_of_a_compacted_conversation_begins_with_its_summary_and_hidden_turns_stay_hidden(
    db: AsyncSessionDB,
) -> None:
    await slash_commands.exchanges(db, 4)
    await slash_commands.compacted(db, 4)
    async with slash_commands.door(db) as run:
        await said(run, "/undo")
        _, moved = await run_command(run, "/branch")
        assert isinstance(moved, events.Moved)
        assert (await view(db, moved.conversation_id))[-2:] == ["q3", "a3"]
        assert (await db.context(moved.conversation_id)).summary is not None


@pytest.mark.parametrize("line", ["/new", "/branch"])
async def test_those_who_want_to_hear_of_it_are_told_that_the_person_went_on_elsewhere(
    line: str, db: AsyncSessionDB
) -> None:
    builder = Builder(db)
    async with runtime.Runtime(db, builder) as run:
        await run.submit("talk", events.Submit("Hello"))
        await run_command(run, line)
        assert builder.closed == ["talk"]


async def test_resume_goes_to_an_id_a_title_or_the_last_and_says_what_fits_none(db: AsyncSessionDB) -> None:
    async with slash_commands.door(db) as run:
        assert (await said(run, "/resume")).startswith("error: ")
        await slash_commands.exchanges(db, 1, "harbour")
        for name in ("harb", "The harbour", "last", ""):
            assert await run_command(run, f"/resume {name}") == [events.Moved("harbour")]
        assert "nobody" in await said(run, "/resume nobody")
        await db.delete_conversation("harbour")
        assert (await said(run, "/resume harbour")).startswith("error: ")


async def test_search_finds_words_in_any_conversation_of_the_person_and_says_how_to_go_there(
    db: AsyncSessionDB,
) -> None:
    for name, owner, words in (
        ("talk", "", "The harbour is closed."),
        ("trip", "", "We meet at the\nharbour at nine."),
        ("theirs", "somebody", "The harbour is mine."),
    ):
        await db.create_session(name, source="test", title=f"{name} title", owner=owner)
        await db.append_message(name, role="user", content=words)
    await slash_commands.compacted(db, 1, "trip")
    async with slash_commands.door(db) as run:
        *hits, last = (await said(run, "/search harbour")).splitlines()
        assert len(hits) == 4
        text = "\n".join(hits)
        assert "* talk  1 user" in text
        assert "  trip  1 user" in text
        assert "trip title" in text
        assert "We meet at the harbour at nine." in text
        assert "mine" not in text
        assert "/resume" in last
        assert await said(run, "/search submarine") == "Nothing was found. Try fewer or other words."
        assert await said(run, '/search "harbour is mine"') == "Nothing was found. Try fewer or other words."
        await db.delete_conversation("trip")
        assert "trip" not in await said(run, "/search harbour")


async def test_search_lists_a_title_once_and_no_message_without_the_words(db: AsyncSessionDB) -> None:
    await db.create_session("talk", source="test", title="Bees in the garden")
    for words in ("Good morning.", "The bee house is full.", "Then it rained."):
        await db.append_message("talk", role="user", content=words)
    async with slash_commands.door(db) as run:
        title, hit, words, _ = (await said(run, "/search bees")).splitlines()
        assert title.startswith("* talk  ")
        assert title.endswith("  3  Bees in the garden")
        assert hit.startswith("* talk  2 user")
        assert words == "    The bee house is full."
        only, _ = (await said(run, "/search garden")).splitlines()
        assert only == title


async def test_another_owner_sees_and_reaches_only_what_is_theirs(db: AsyncSessionDB) -> None:
    await slash_commands.exchanges(db, 1)
    async with slash_commands.door(db, owner="somebody") as run:
        assert await said(run, "/sessions", "mine") == "There are no conversations yet."
        assert (await said(run, "/resume The talk", "mine")).startswith("error: ")
        assert (await said(run, "/search q1", "mine")).startswith("Nothing was found.")
