"""Housekeeping: what is ended or removed, and that one reason against it is enough to be left alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast import SessionDB, errors
from tests.contract.conftest import MakeDb
from tests.support import backends, conversations

WEEK = 7 * conversations.DAY

Change = Callable[[SessionDB, conversations.Clock], object]


def orphan(db: SessionDB, name: str = "orphan") -> str:
    """A live continuation with messages of its own and nothing else behind it."""
    conversations.begin(db, name, "a")
    db.end_session(name, "compression")
    db.create_session(f"{name}-child", source="test", parent_session_id=name)
    conversations.say(db, name, "b")
    return f"{name}-child"


# --- orphans -----------------------------------------------------------------------------------------------


def test_orphan_is_ended(db: SessionDB, clock: conversations.Clock) -> None:
    child = orphan(db)
    clock.advance(WEEK + 1)
    assert db.admin.finalize_orphaned_sessions() == 1
    ended = db.get_session(child)
    assert (ended.end_reason, ended.ended_at) == ("orphaned_compression", clock.now)
    assert db.admin.finalize_orphaned_sessions() == 0


def test_message_resumes_an_ended_orphan_all_the_same(db: SessionDB, clock: conversations.Clock) -> None:
    orphan(db)
    clock.advance(WEEK + 1)
    db.admin.finalize_orphaned_sessions()
    assert db.append_message("orphan", role="user", content="c").resumed
    assert conversations.seen(db, "orphan") == ["b", "c"]


def test_every_orphan_is_counted(db: SessionDB, clock: conversations.Clock) -> None:
    for name in ("one", "two", "three"):
        orphan(db, name)
    clock.advance(WEEK + 1)
    assert db.admin.finalize_orphaned_sessions() == 3


def test_age_is_what_the_caller_says(db: SessionDB, clock: conversations.Clock) -> None:
    orphan(db)
    clock.advance(2 * conversations.DAY + 1)
    assert db.admin.finalize_orphaned_sessions() == 0
    assert db.admin.finalize_orphaned_sessions(older_than_days=2) == 1


def summary_behind(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "talk", "a")
    conversations.compact(db, "talk", 1, "gist")
    conversations.say(db, "talk", "b")
    clock.advance(WEEK + 1)


def after_orphan(change: Change, wait: float = WEEK + 1) -> Change:
    def run(db: SessionDB, clock: conversations.Clock) -> None:
        orphan(db)
        clock.advance(wait)
        change(db, clock)

    return run


def message_within_the_week(db: SessionDB, clock: conversations.Clock) -> None:
    orphan(db)
    clock.advance(conversations.DAY)
    conversations.say(db, "orphan", "c")
    clock.advance(WEEK - 1)


def young_with_old_messages(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "talk", "a")
    db.end_session("talk", "compression")
    clock.advance(WEEK + 1)
    db.create_session("child", source="test", parent_session_id="talk")
    db.append_message("talk", role="user", content="b", at=conversations.NOON)


def without_messages(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "talk", "a")
    db.end_session("talk", "compression")
    db.create_session("child", source="test", parent_session_id="talk")
    clock.advance(WEEK + 1)


def parent_ended_otherwise(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "talk", "a")
    db.end_session("talk", "done")
    conversations.say(db, "talk", "b")
    clock.advance(WEEK + 1)


def no_parent(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "talk", "a")
    clock.advance(WEEK + 1)


def inherited_summary(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "trunk", "a")
    conversations.compact(db, "trunk", 1, "gist")
    db.bind_route("r", "trunk", version=0)
    db.branch("trunk", branch_id="talk")
    conversations.say(db, "talk", "b")
    db.end_session("talk", "compression")
    conversations.say(db, "talk", "c")
    clock.advance(WEEK + 1)


LEFT_ALONE: dict[str, Change] = {
    "a summary stands behind it": summary_behind,
    "its branch inherited a summary": inherited_summary,
    "a route names it": after_orphan(lambda db, clock: db.bind_route("r", "orphan", version=0)),
    "a turn is held": after_orphan(lambda db, clock: db.acquire_lease("orphan", "turn")),
    "a compaction is held": after_orphan(lambda db, clock: db.acquire_lease("orphan", "compact")),
    "a message came within the week": message_within_the_week,
    "it is not a week old": after_orphan(lambda db, clock: None, WEEK),
    "it is young though its messages are old": young_with_old_messages,
    "it has no message of its own": without_messages,
    "its parent ended otherwise": parent_ended_otherwise,
    "it has no parent": no_parent,
    "it has ended": after_orphan(lambda db, clock: db.end_conversation("orphan", "done")),
    "it was compacted with a summary since": after_orphan(
        lambda db, clock: conversations.compact(db, "orphan", 2, "gist")
    ),
}


@pytest.mark.parametrize("why", LEFT_ALONE)
def test_continuation_is_left_alone_when(db: SessionDB, clock: conversations.Clock, why: str) -> None:
    LEFT_ALONE[why](db, clock)
    with conversations.nothing_changes(db):
        assert db.admin.finalize_orphaned_sessions() == 0


def test_lease_that_ran_out_and_a_route_that_went_elsewhere_protect_nothing(
    db: SessionDB, clock: conversations.Clock
) -> None:
    orphan(db)
    conversations.begin(db, "other")
    db.acquire_lease("orphan", "turn")
    db.bind_route("r", "orphan", version=0)
    db.bind_route("r", "other", version=1)
    clock.advance(WEEK + 1)
    assert db.admin.finalize_orphaned_sessions() == 1


@pytest.mark.parametrize("days", [-1, "7", None, True, b"7", [7], float("nan")])
def test_age_that_is_none_is_refused(db: SessionDB, days: object) -> None:
    with pytest.raises(errors.InvalidArgument):
        db.admin.finalize_orphaned_sessions(days)


# --- ghosts ------------------------------------------------------------------------------------------------


def test_ghosts_are_removed_without_a_tombstone(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "old")
    conversations.begin(db, "ended")
    clock.advance(conversations.DAY + 1)
    conversations.begin(db, "young and ended")
    for name in ("ended", "young and ended"):
        db.end_conversation(name, "done")
    assert db.admin.prune_empty_sessions() == 3
    assert db.list_sessions(every=True) == []
    assert db.create_session("old", source="test").id == "old"


def test_ghost_of_several_sessions_is_removed_whole(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "ghost")
    db.end_conversation("ghost", "done")
    db.resume("ghost")
    conversations.compact(db, "ghost", 0, "nothing was said")
    clock.advance(conversations.DAY + 1)
    assert db.admin.prune_empty_sessions() == 1


def test_branch_without_a_message_of_its_own_is_a_ghost(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "trunk", "a")
    db.branch("trunk", branch_id="branch")
    db.hide("branch", 1)
    clock.advance(conversations.DAY + 1)
    assert db.admin.prune_empty_sessions() == 1
    assert [session.id for session in db.list_sessions()] == ["trunk"]


def young(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "talk")
    clock.advance(conversations.DAY)


def old_with(change: Callable[[SessionDB], object]) -> Change:
    def run(db: SessionDB, clock: conversations.Clock) -> None:
        conversations.begin(db, "talk")
        clock.advance(conversations.DAY + 1)
        change(db)

    return run


def empty_continuation(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "talk", "a")
    conversations.compact(db, "talk", 1)
    clock.advance(conversations.DAY + 1)


def empty_and_ended(db: SessionDB) -> None:
    conversations.say(db, "talk", "a")
    db.end_session("talk", "done")
    db.resume("talk")
    db.end_conversation("talk", "done")


def read_by_a_branch(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "trunk", "a")
    db.branch("trunk", branch_id="between")
    db.branch("between", branch_id="reader")
    conversations.say(db, "reader", "x")
    clock.advance(conversations.DAY + 1)


NO_GHOST: dict[str, Change] = {
    "it is not a day old": young,
    "it has a message": old_with(lambda db: conversations.say(db, "talk", "a")),
    "it has a title": old_with(lambda db: db.set_session_title("talk", "plan")),
    "it has a route": old_with(lambda db: db.bind_route("r", "talk", version=0)),
    "somebody is at work on it": old_with(lambda db: db.acquire_lease("talk", "turn")),
    "only its newest session is empty": empty_continuation,
    "only its newest session is empty and ended": old_with(empty_and_ended),
    "a branch reads through it": read_by_a_branch,
}  # fmt: skip


@pytest.mark.parametrize("why", NO_GHOST)
def test_conversation_is_no_ghost_when(db: SessionDB, clock: conversations.Clock, why: str) -> None:
    NO_GHOST[why](db, clock)
    with conversations.nothing_changes(db):
        assert db.admin.prune_empty_sessions() == 0


def test_ghost_behind_a_ghost_is_removed_with_it(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "trunk", "a")
    db.branch("trunk", branch_id="one")
    db.branch("one", branch_id="two")
    clock.advance(conversations.DAY + 1)
    assert db.admin.prune_empty_sessions() == 2
    assert [session.id for session in db.list_sessions()] == ["trunk"]


# --- once per database -----------------------------------------------------------------------------------------


def test_upkeep_runs_once_per_database(make_db: MakeDb, clock: conversations.Clock) -> None:
    db = make_db()
    orphan(db)
    conversations.begin(db, "ghost")
    clock.advance(WEEK + 1)
    assert db.admin.run_upkeep_once() == {"orphans_ended": 1, "ghosts_removed": 1}
    conversations.begin(db, "another ghost")
    clock.advance(WEEK + 1)
    assert db.admin.run_upkeep_once() == {}
    db.close()
    again = make_db()
    assert again.admin.run_upkeep_once() == {}
    assert again.admin.prune_empty_sessions() == 1


@pytest.mark.parametrize("how", ["missing", "read-only"])
def test_orphans_are_ended_though_leases_are_broken(db: SessionDB, clock: conversations.Clock, how: str) -> None:
    orphan(db)
    backends.break_leases(db, how)
    clock.advance(WEEK + 1)
    assert db.admin.finalize_orphaned_sessions() == 1
