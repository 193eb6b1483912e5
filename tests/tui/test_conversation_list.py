"""The list of conversations: it finds them by title or message, shows their lineage, and reports errors."""

from __future__ import annotations

import pytest
from textual.widgets import OptionList, Static

from holdfast import AsyncSessionDB, types
from holdfast.tui import conversation_list
from tests.support.tui import TuiDriver, numbered, open_tui


async def store_conversations(db: AsyncSessionDB) -> None:
    """Store four conversations, of which `loud` has most of the matches for zebra, and a compacted `talk`."""
    for name, said in (("old", ["a zebra"]), ("loud", [f"zebra {n}" for n in range(12)]), ("mute", ["nothing"])):
        await db.create_session(name, source="test", title=f"The {name} one")
        await db.append_messages(name, [types.NewMessage(role="user", content=each) for each in said])
    await numbered(30)(db)
    await db.commit_compaction(await db.acquire_lease("talk", "compact"), summary="s", cut_seq=20)
    await db.append_message("talk", role="user", content="on")
    await db.branch("talk", 10, branch_id="branch", title="other \x1b[31mway")
    await db.admin.update_search_index()


def found(tui: TuiDriver) -> list[str | None]:
    return [each.id for each in tui.app.screen.query_one(OptionList).options]


def lineage(tui: TuiDriver) -> str:
    return str(tui.app.screen.query_one("#lineage", Static).content)


async def test_conversations_are_found_by_title_id_and_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation_list, "SEARCH_LIMITS", (10, 100))
    async with open_tui(store_conversations, size=(100, 30)) as tui:
        words = await tui.open_list()
        await tui.until(lambda: len(found(tui)) == 5)
        words.value = "talk"
        await tui.until(lambda: "compacted up to 20 (active)" in lineage(tui))
        assert "branch: other" in lineage(tui)
        words.value = "zebra"
        await tui.until(lambda: {*found(tui)} == {"old", "loud"})
        words.value = "giraffe"
        await tui.until(lambda: found(tui) == [])
        words.value = "the old"
        await tui.until(lambda: found(tui) == ["old"])
        await tui.pilot.press("enter")
        await tui.wait_for("a zebra")
        assert tui.app.conversation_id == "old"
