"""Budgets: what was spent on a conversation is known to all, survives restarts, and is counted once."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import AsyncSessionDB, SessionDB, errors
from holdfast.store import usage
from tests.support import conversations

MakeDb = Callable[..., SessionDB]


def test_budget_nobody_spent_of_has_version_zero(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    assert db.budget("talk") == (0, {})
    assert not db.update_budget("talk", 1, {"attempts": 1})
    assert db.budget("talk") == (0, {})


def test_budget_is_spent_by_whoever_saw_its_version(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    assert db.update_budget("talk", 0, {"attempts": 1})
    assert not db.update_budget("talk", 0, {"attempts": 9})
    assert db.budget("talk") == (1, {"attempts": 1})
    assert db.update_budget("talk", 1, {"attempts": 2})
    assert [db.update_budget("talk", version, {"attempts": 9}) for version in (0, 1, 3)] == [False] * 3
    assert db.budget("talk") == (2, {"attempts": 2})


def test_spending_the_same_twice_is_spending_once(db: SessionDB) -> None:
    """Two processes that add one to the same number write the same: the second must not believe it was counted."""
    conversations.begin(db, "talk", "a")
    assert [db.update_budget("talk", 0, {"attempts": 1}) for _ in range(2)] == [True, False]
    assert [db.update_budget("talk", 1, {"attempts": 2}) for _ in range(2)] == [True, False]


def test_budget_is_the_conversations_whichever_session_is_given(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a", "b")
    assert db.update_budget("talk", 0, {"compactions": [1.5]})
    head = conversations.compact(db, "talk", 1)
    assert db.budget(head.id) == (1, {"compactions": [1.5]})
    assert db.update_budget(head.id, 1, {})
    assert db.budget("talk") == (2, {})


def test_spending_changes_nothing_of_the_conversation(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    lease, before = db.acquire_lease("talk", "compact"), db.conversation("talk")
    db.update_budget("talk", 0, {"attempts": 1})
    db.update_budget("talk", 1, {"attempts": 2})
    assert db.conversation("talk") == before
    db.commit_compaction(lease, summary="s", cut_seq=1)
    db.end_conversation("talk", "done")
    assert db.update_budget("talk", 2, {})
    assert not db.conversation("talk").live


def test_unknown_and_deleted_conversations_have_no_budget(db: SessionDB) -> None:
    conversations.begin(db, "gone", "a")
    db.update_budget("gone", 0, {"attempts": 1})
    db.delete_conversation("gone")
    for name, kind in (("gone", errors.ConversationDeleted), ("nobody", errors.NoSuchSession)):
        with pytest.raises(kind):
            db.budget(name)
        with pytest.raises(kind):
            db.update_budget(name, 1, {})


def test_budget_goes_with_its_conversation(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "gone", "a")
    conversations.begin(db, "ghost")
    for name in ("gone", "ghost"):
        db.update_budget(name, 0, {"attempts": 1})
    db.delete_conversation("gone")
    clock.advance(2 * conversations.DAY)
    assert db.admin.prune_empty_sessions() == 1
    # A ghost leaves no tombstone: its id may be used again, and nothing of it is left.
    conversations.begin(db, "ghost")
    assert db.budget("ghost") == (0, {})
    assert db.admin.fsck().ok


def test_branch_begins_with_a_budget_of_its_own(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    db.update_budget("talk", 0, {"attempts": 1})
    db.branch("talk", branch_id="branch")
    assert db.budget("branch") == (0, {})


def test_budget_is_in_no_export(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    before, after = io.StringIO(), io.StringIO()
    db.admin.export_to(before)
    db.update_budget("talk", 0, {"attempts": 1})
    db.admin.export_to(after)
    assert before.getvalue() == after.getvalue()
    assert db.admin.import_from(after.getvalue().splitlines()).ids("already_there") == ["talk"]
    assert db.budget("talk") == (1, {"attempts": 1})


# --- what a budget may be --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [{}, {"": None}, {"at": [1.5, 2**63, -0.0], "é\0": {"deep": [[], {}]}}, {"x": "x" * (64_000)}],
    ids=conversations.short,
)
def test_body_comes_back_exactly(db: SessionDB, body: dict[str, Any]) -> None:
    conversations.begin(db, "talk", "a")
    assert db.update_budget("talk", 0, body)
    assert repr(db.budget("talk")) == repr((1, body))


@pytest.mark.parametrize(
    "body",
    [None, 5, "text", '{"a": 1}', [], [1], {1: 2}, {"x": b"x"}, {"x": float("nan")}, {"x": (1, 2)}, {"x": {1}},
     {"x": object()}, {"x": "\ud800"}, {"\ud800": 1}, {"x": "x" * 65_536}, {"x": "é" * 32_768}],
    ids=conversations.short,
)  # fmt: skip
def test_body_that_could_not_come_back_exactly_is_refused(db: SessionDB, body: Any) -> None:
    conversations.begin(db, "talk", "a")
    with conversations.nothing_changes(db), pytest.raises(errors.InvalidArgument):
        db.update_budget("talk", 0, body)


def test_body_up_to_the_limit_is_kept_and_not_a_byte_more(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    room = usage.MAX_BUDGET - len('{"x":""}')
    assert db.update_budget("talk", 0, {"x": "x" * room})
    with pytest.raises(errors.InvalidArgument, match=f"{usage.MAX_BUDGET + 1:,}"):
        db.update_budget("talk", 1, {"x": "x" * (room + 1)})


@pytest.mark.parametrize("version", [-1, 1.0, True, None, "0", 2**63 - 1, 2**70])
def test_version_that_is_none_is_refused(db: SessionDB, version: Any) -> None:
    conversations.begin(db, "talk", "a")
    with conversations.nothing_changes(db), pytest.raises(errors.InvalidArgument):
        db.update_budget("talk", version, {})


# --- among others ------------------------------------------------------------------------------------------


def test_racing_spenders_have_one_winner_per_version(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    for version in range(10):
        outcomes = conversations.at_once(
            *(lambda n=n, v=version: db.update_budget("talk", v, {"by": n}) for n in range(6))
        )
        assert sorted(outcomes) == [False] * 5 + [True]
        assert db.budget("talk") == (version + 1, {"by": outcomes.index(True)})


_COUNTER = """
import sys
from holdfast import SessionDB
with SessionDB(sys.argv[1], durability="process-crash") as db:
    for _ in range(50):
        while True:
            version, spent = db.budget("talk")
            if db.update_budget("talk", version, {"count": spent.get("count", 0) + 1}):
                break
"""


def test_processes_that_count_together_count_right_and_a_restart_goes_on(make_db: MakeDb) -> None:
    db = make_db()
    conversations.begin(db, "talk", "a")
    for round_ in (1, 2):
        counters = [subprocess.Popen([sys.executable, "-c", _COUNTER, db.driver.path]) for _ in range(3)]
        assert [counter.wait() for counter in counters] == [0] * 3
        assert db.budget("talk") == (150 * round_, {"count": 150 * round_})


async def test_budget_can_be_awaited(make_db: MakeDb) -> None:
    async with AsyncSessionDB(make_db()) as adb:
        conversations.begin(adb.db, "talk", "a")
        assert await adb.update_budget("talk", 0, {"attempts": 1})
        assert await adb.budget("talk") == (1, {"attempts": 1})
