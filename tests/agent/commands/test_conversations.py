"""Commands that begin, branch, find and open conversations; each owner has their own."""

from __future__ import annotations

import pytest

from holdfast import AsyncSessionDB, events
from tests.support.runtimes import add_exchanges, answer_text, compact, context_texts, open_runtime, run_command


@pytest.mark.parametrize("name", ["new", "reset"])
async def test_new_conversation_begins_with_its_first_message_and_gets_its_title(name: str, db: AsyncSessionDB) -> None:
    await add_exchanges(db, 1)
    async with open_runtime(db) as run:
        (moved,) = await run_command(run, f"/{name} Fresh")
        assert moved.new
        assert len(await db.list_sessions()) == 1
        await run.submit(moved.conversation_id, events.Submit("Hello"))
        assert (await db.conversation(moved.conversation_id)).title == "Fresh"
    assert await context_texts(db) == ["q1", "a1"]


async def test_title_is_shown_set_and_refused(db: AsyncSessionDB) -> None:
    await db.create_session("other", source="test", title="Taken")
    async with open_runtime(db) as run:
        await run_command(run, "/title Early")
        await run.submit("talk", events.Submit("Hello"))
        assert await answer_text(run, "/title") == "Early"
        assert await run_command(run, "/title  Late   one ") == [events.Titled("Late one")]
        assert (await answer_text(run, "/title Taken")).startswith("error: ")
    assert (await db.conversation("talk")).title == "Late one"


async def test_branch_continues_in_a_copy_with_a_number_or_a_title(db: AsyncSessionDB) -> None:
    await add_exchanges(db, 2)
    await add_exchanges(db, 1, "other")
    async with open_runtime(db) as run:
        for refused in ("The other", "\u200b"):
            assert (await answer_text(run, f"/branch {refused}")).startswith("error: ")
        assert len(await db.list_sessions()) == 2
        answer, moved = await run_command(run, "/branch")
        said = "You are in the branch The talk #2 now. It has all messages up to 4. /resume talk goes back."
        assert answer == events.Answer(said)
        await run.submit(moved.conversation_id, events.Submit("Onwards"))
        assert await context_texts(db) == ["q1", "a1", "q2", "a2"]
        assert len(await context_texts(db, moved.conversation_id)) == 6
        _, named = await run_command(run, "/branch Another way")
        assert (await db.conversation(named.conversation_id)).title == "Another way"


async def test_resume_opens_an_id_a_title_or_the_last_conversation(db: AsyncSessionDB) -> None:
    async with open_runtime(db) as run:
        assert (await answer_text(run, "/resume")).startswith("error: ")
        await add_exchanges(db, 1, "harbour")
        for name in ("harb", "The harbour", "last", ""):
            assert await run_command(run, f"/resume {name}") == [events.Moved("harbour")]
        assert "There is no conversation 'unknown'." in await answer_text(run, "/resume unknown")
        await db.delete_conversation("harbour")
        assert (await answer_text(run, "/resume harbour")).startswith("error: ")


async def test_search_finds_words_in_every_conversation_of_the_owner_only(db: AsyncSessionDB) -> None:
    for name, owner, words in (
        ("talk", "", "The harbour is closed."),
        ("trip", "", "We meet at the\nharbour at nine."),
        ("theirs", "another", "The harbour is mine."),
    ):
        await db.create_session(name, source="test", title=f"{name} title", owner=owner)
        await db.append_message(name, role="user", content=words)
    await compact(db, 1, "trip")
    async with open_runtime(db) as run:
        *hits, last = (await answer_text(run, "/search harbour")).splitlines()
        assert len(hits) == 4
        text = "\n".join(hits)
        for part in ("* talk  1 user", "  trip  1 user", "trip title", "We meet at the harbour at nine."):
            assert part in text
        assert ("mine" in text, "/resume" in last) == (False, True)
        assert (await answer_text(run, '/search "harbour is mine"')).startswith("Nothing was found.")


async def test_another_owner_sees_and_reaches_only_their_own_conversations(db: AsyncSessionDB) -> None:
    await add_exchanges(db, 1)
    async with open_runtime(db) as run:
        assert "The talk" in await answer_text(run, "/sessions")
    async with open_runtime(db, options={"owner": "another"}) as run:
        assert await answer_text(run, "/sessions", "mine") == "There are no conversations yet."
        assert (await answer_text(run, "/resume The talk", "mine")).startswith("error: ")
        assert (await answer_text(run, "/search q1", "mine")).startswith("Nothing was found.")
