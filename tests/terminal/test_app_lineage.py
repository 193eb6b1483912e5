"""Lineage: sessions in their order, the compaction before the session it opened, branches below."""

from __future__ import annotations

from holdfast import AsyncSessionDB, safe_text
from holdfast.terminal import event_text
from holdfast.tui import entry_rows
from holdfast.tui.conversation_list import ConversationLineage, draw_lineage
from tests.support.tui import long


async def traced(db: AsyncSessionDB, id: str, *branches: str) -> ConversationLineage:
    return ConversationLineage(await db.conversation(id), await db.sessions(id), await db.compactions(id), branches)


async def test_a_compaction_stands_between_its_sessions_and_branches_hang_below(db: AsyncSessionDB) -> None:
    await long(30)(db)
    await db.commit_compaction(await db.acquire_lease("talk", "compact"), summary="s", cut_seq=20)
    await db.append_message("talk", role="user", content="on")
    branch = await db.branch("talk", 10, title="other \x1b[31mway")
    found = await traced(db, "talk", "other way")
    assert [row.plain for row in draw_lineage(found, entry_rows.RowFormat(60))] == [
        "(no title)",
        "talk",
        "├─ ○ 1–30  compression",
        "│  compacted up to 20 (active)",
        "├─ ● 31–31  head",
        "└─ branch: other way",
    ]
    assert draw_lineage(found, entry_rows.RowFormat(60, marks=event_text.PLAIN))[-1].plain == "`- branch: other way"
    of_branch = [row.plain for row in draw_lineage(await traced(db, branch.id), entry_rows.RowFormat(60))]
    assert of_branch[2:] == ["branch of talk at message 10", "└─ ● empty  head"]


async def test_every_row_fits(db: AsyncSessionDB) -> None:
    await long(3)(db)
    found = await traced(db, "talk", "a branch with quite a name, that goes on")
    for room in (1, 5, 12):
        assert all(safe_text.cells(row.plain) <= room for row in draw_lineage(found, entry_rows.RowFormat(room)))
