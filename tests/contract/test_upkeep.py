"""Upkeep: orphaned continuations are ended and empty conversations removed, unless one reason speaks against it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast import SessionDB
from tests.support import backends, conversations
from tests.support.backends import MakeDb
from tests.support.conversations import Clock

WEEK = 7 * conversations.DAY

Change = Callable[[SessionDB], object]


def begin_orphan(db: SessionDB, name: str = "orphan") -> str:
    """A live continuation with messages of its own, without a summary, a route or a lease."""
    conversations.begin(db, name, "a")
    db.end_session(name, "compression")
    db.create_session(f"{name}-child", source="test", parent_session_id=name)
    conversations.say(db, name, "b")
    return f"{name}-child"


def test_orphans_are_ended_after_a_week(db: SessionDB, clock: Clock) -> None:
    child, other = begin_orphan(db), begin_orphan(db, "other")
    conversations.begin(db, "routed")
    # An expired lease and a route that was moved protect nothing.
    db.acquire_lease("orphan", "turn")
    db.bind_route("r", "orphan", version=0)
    db.bind_route("r", "routed", version=1)
    clock.advance(WEEK)
    assert db.admin.finalize_orphaned_sessions() == db.admin.finalize_orphaned_sessions(older_than_days=7.5) == 0
    clock.advance(1)
    assert db.admin.finalize_orphaned_sessions() == 2
    for name in (child, other):
        ended = db.get_session(name)
        assert (ended.end_reason, ended.ended_at) == ("orphaned_compression", clock.now)
    assert db.admin.finalize_orphaned_sessions() == 0
    assert db.append_message("orphan", role="user", content="c").resumed
    assert conversations.seen(db, "orphan") == ["b", "c"]


def begin_on_inherited_summary(db: SessionDB) -> None:
    conversations.begin(db, "trunk", "a")
    conversations.compact(db, "trunk", 1, "gist")
    db.bind_route("r", "trunk", version=0)
    db.branch("trunk", branch_id="talk")
    conversations.say(db, "talk", "b")
    db.end_session("talk", "compression")
    conversations.say(db, "talk", "c")


def begin_and(change: Change, *contents: str) -> Change:
    """Begin a conversation with one message, change it, and append these messages."""

    def begin(db: SessionDB) -> None:
        conversations.begin(db, "talk", "a")
        change(db)
        conversations.say(db, "talk", *contents)

    return begin


def end_by_compression(db: SessionDB) -> None:
    db.end_session("talk", "compression")


def continue_by_two_calls(db: SessionDB) -> None:
    end_by_compression(db)
    db.create_session("child", source="test", parent_session_id="talk")


# Each: a conversation from more than a week ago, and a change since then.
NOT_ORPHANED: dict[str, tuple[Change, Change]] = {
    "it has a summary": (begin_and(lambda db: conversations.compact(db, "talk", 1, "gist"), "b"), bool),
    "it inherited a summary": (begin_on_inherited_summary, bool),
    "a route names it": (begin_orphan, lambda db: db.bind_route("r", "orphan", version=0)),
    "a turn is held": (begin_orphan, lambda db: db.acquire_lease("orphan", "turn")),
    "a compaction is held": (begin_orphan, lambda db: db.acquire_lease("orphan", "compact")),
    "it got a message since": (begin_orphan, lambda db: conversations.say(db, "orphan", "c")),
    "it is new and its messages old": (
        begin_and(end_by_compression),
        lambda db: (
            db.create_session("child", source="test", parent_session_id="talk"),
            db.append_message("talk", role="user", content="b", at=conversations.NOON),
        ),
    ),
    "it has no message of its own": (begin_and(continue_by_two_calls), bool),
    "its parent ended otherwise": (begin_and(lambda db: db.end_session("talk", "done"), "b"), bool),
    "it has no parent": (lambda db: conversations.begin(db, "talk", "a"), bool),
    "it has ended": (begin_orphan, lambda db: db.end_conversation("orphan", "done")),
    "it was compacted since": (begin_orphan, lambda db: conversations.compact(db, "orphan", 2, "gist")),
}


@pytest.mark.parametrize("why", NOT_ORPHANED)
def test_continuation_is_not_orphaned(db: SessionDB, clock: Clock, why: str) -> None:
    begin, change = NOT_ORPHANED[why]
    begin(db)
    clock.advance(WEEK + 1)
    change(db)
    with conversations.nothing_changes(db):
        assert db.admin.finalize_orphaned_sessions() == 0


@pytest.mark.parametrize("how", ["missing", "read-only"])
def test_orphans_are_ended_though_leases_are_broken(db: SessionDB, clock: Clock, how: str) -> None:
    begin_orphan(db)
    backends.break_leases(db, how)
    clock.advance(WEEK + 1)
    assert db.admin.finalize_orphaned_sessions() == 1


def test_empty_conversations_are_removed_without_a_tombstone(db: SessionDB, clock: Clock) -> None:
    conversations.begin_each(db, ("old", "ended", "compacted"))
    db.end_conversation("compacted", "done")
    db.resume("compacted")
    conversations.compact(db, "compacted", 0, "nothing was said")
    clock.advance(conversations.DAY + 1)
    conversations.begin(db, "young and ended")
    for name in ("ended", "young and ended"):
        db.end_conversation(name, "done")
    assert db.admin.prune_empty_sessions() == 4
    assert db.list_sessions(every=True) == []
    assert db.create_session("old", source="test").id == "old"


def test_branches_without_messages_of_their_own_are_removed(db: SessionDB, clock: Clock) -> None:
    conversations.begin(db, "trunk", "a")
    db.branch("trunk", branch_id="one")
    db.hide("one", 1)
    db.branch("one", branch_id="two")
    clock.advance(conversations.DAY + 1)
    assert db.admin.prune_empty_sessions() == 2
    assert [session.id for session in db.list_sessions()] == ["trunk"]


def begin_read_by_a_branch(db: SessionDB) -> None:
    conversations.begin(db, "trunk", "a")
    db.branch("trunk", branch_id="between")
    db.branch("between", branch_id="reader")
    conversations.say(db, "reader", "x")


NOT_EMPTY: dict[str, Change] = {
    "it has a message": lambda db: conversations.begin(db, "talk", "a"),
    "it has a title": lambda db: conversations.begin(db, "talk", title="plan"),
    "it has a route": lambda db: db.bind_route("r", conversations.begin(db), version=0),
    "its lease is held": lambda db: db.acquire_lease(conversations.begin(db), "turn", "me"),
    "its inbox has an open entry": lambda db: db.mail.add_inbox_entry(conversations.begin(db), "k", "came in"),
    "only its newest session is empty": lambda db: conversations.compact(db, conversations.begin(db, "talk", "a"), 1),
    "only its newest session is empty and ended": begin_and(
        lambda db: (db.end_session("talk", "done"), db.resume("talk"), db.end_conversation("talk", "done"))
    ),
    "a branch reads through it": begin_read_by_a_branch,
}


@pytest.mark.parametrize("why", NOT_EMPTY)
def test_conversation_is_not_empty(db: SessionDB, clock: Clock, why: str) -> None:
    NOT_EMPTY[why](db)
    clock.advance(conversations.DAY - 1)
    conversations.begin(db, "younger than a day")
    if why == "its lease is held":
        db.acquire_lease("talk", "turn", "me")
    clock.advance(2)
    with conversations.nothing_changes(db):
        assert db.admin.prune_empty_sessions() == 0


def test_upkeep_runs_once_per_database(make_db: MakeDb, clock: Clock) -> None:
    db = make_db()
    begin_orphan(db)
    conversations.begin(db, "empty")
    clock.advance(WEEK + 1)
    assert db.admin.run_upkeep_once() == {"orphans_ended": 1, "ghosts_removed": 1}
    conversations.begin(db, "also empty")
    clock.advance(WEEK + 1)
    assert db.admin.run_upkeep_once() == {}
    db.close()
    again = make_db()
    assert again.admin.run_upkeep_once() == {}
    assert again.admin.prune_empty_sessions() == 1
