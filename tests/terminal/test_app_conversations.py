"""The list of conversations: it finds what there is, however old, and says so where it could not look."""

from __future__ import annotations

import pytest
from textual.widgets import Input, OptionList, Static

from holdfast import AsyncSessionDB, errors, types
from holdfast.tui import conversation_list
from tests.support.tui import Seat, long, sat
from tests.terminal.test_app import compacted_past


async def listed(seat: Seat) -> tuple[OptionList, Input, Static]:
    """What is offered, where words are written, and what stands beside it."""
    await seat.pilot.press("ctrl+o")
    await seat.until(lambda: isinstance(seat.screen.screen, conversation_list.ConversationScreen))
    here = seat.screen.screen
    await seat.until(lambda: here.query("#lineage"))
    return here.query_one(OptionList), here.query_one(Input), here.query_one("#lineage", Static)


async def past(db: AsyncSessionDB) -> None:
    for name, said in (("old", ["a zebra"]), ("loud", [f"zebra {n}" for n in range(12)]), ("mute", ["nothing"])):
        await db.create_session(name, source="test", title=f"The {name} one")
        await db.append_messages(name, [types.NewMessage(role="user", content=each) for each in said])
    await long(4)(db)
    await db.admin.update_search_index()


async def test_neither_age_nor_a_talkative_conversation_hides_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation_list, "SEARCH_LIMITS", (10, 100))

    async with sat(past) as seat:
        found, words, _ = await listed(seat)
        await seat.until(lambda: found.option_count == 4)
        words.value = "the old"
        await seat.until(lambda: [each.id for each in found.options] == ["old"])
        words.value = "zebra"
        await seat.until(lambda: {each.id for each in found.options} == {"old", "loud"})


async def test_of_more_than_are_offered_the_number_is_told_and_cannot_be_picked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conversation_list, "MAX_OFFERED", 2)

    async with sat(past) as seat:
        found, _, _ = await listed(seat)
        await seat.until(lambda: found.option_count == 3)
        assert str(found.options[-1].prompt) == "2 more: type to filter"
        await seat.pilot.press("pagedown")
        assert found.highlighted == 1


async def test_where_the_store_failed_it_says_so_and_not_that_there_is_nothing() -> None:
    async with sat(past) as seat:

        async def failing(*_: object, **__: object) -> list[types.Session]:
            raise errors.StoreBusy("It is locked.")

        seat.home.db.list_sessions = failing  # type: ignore[assignment]
        found, words, beside = await listed(seat)
        await seat.until(lambda: str(beside.content) == "It is locked.")
        seat.home.db.search = failing  # type: ignore[assignment]
        words.value = "zebra"
        await seat.until(lambda: str(beside.content) == "It is locked." and not found.option_count)


async def test_where_there_is_nothing_it_says_so() -> None:
    async with sat(past) as seat:
        _, words, beside = await listed(seat)
        words.value = "giraffe"
        await seat.until(lambda: str(beside.content) == conversation_list.NO_MATCH)


async def several(db: AsyncSessionDB) -> None:
    await compacted_past(db)
    await db.set_session_title("talk", "Counting")
    for name, words in (("Bread", "the dough has to rest"), ("Cats", "her name is Miso")):
        await db.create_session(name.lower(), source="test", title=name)
        await db.append_message(name.lower(), role="user", content=words)
    await db.branch("talk", 10, title="Counting otherwise")
    await db.admin.update_search_index()


async def test_a_conversation_is_found_by_its_title_or_by_what_was_said_and_shows_its_lineage() -> None:
    async with sat(several, size=(100, 30)) as seat:
        await seat.pilot.press("ctrl+o")
        await seat.until(lambda: isinstance(seat.screen.screen, conversation_list.ConversationScreen))
        found, words = seat.screen.screen.query_one(OptionList), seat.screen.screen.query_one(Input)
        lineage = seat.screen.screen.query_one("#lineage", Static)
        await seat.until(lambda: found.option_count == 4)
        words.value = "counting"
        await seat.until(lambda: found.option_count == 2)
        words.value = "talk"
        await seat.until(lambda: "compacted up to 55 (active)" in str(lineage.content))
        assert "branch: Counting otherwise" in str(lineage.content)
        words.value = "dough"
        await seat.until(lambda: [each.id for each in found.options] == ["bread"])
        await seat.pilot.press("enter")
        await seat.sees("the dough has to rest")
        assert seat.screen.conversation_id == "bread"
