"""Routes and budgets: rows of a conversation that are changed by compare-and-swap of their version."""

from __future__ import annotations

import io

import pytest

from holdfast import SessionDB, errors, types
from tests.support import conversations
from tests.support.conversations import Clock


def test_route_is_bound_by_the_caller_that_knows_its_version(db: SessionDB) -> None:
    conversations.begin_each(db, ("one", "two"), "a")
    with pytest.raises(errors.RouteMoved):
        db.bind_route("r", "one", version=1)
    assert (db.route("r"), db.routes()) == (types.Route("r", None, 0), [])
    assert db.bind_route("r", "one", version=0) == types.Route("r", "one", 1)
    with pytest.raises(errors.RouteMoved) as refusal:
        db.bind_route("r", "two", version=0)
    assert (refusal.value.key, refusal.value.conversation, refusal.value.version) == ("r", "one", 1)
    assert db.bind_route("r", "two", version=1) == types.Route("r", "two", 2) == db.route("r")
    assert db.bind_route("r", None, version=2) == types.Route("r", None, 3)
    with pytest.raises(errors.RouteMoved) as refusal:
        db.bind_route("r", "one", version=2)
    assert refusal.value.conversation is None
    assert db.bind_route("r", conversations.compact(db, "one", 1).id, version=3).conversation_id == "one"
    db.end_conversation("one", "done")
    conversations.say(db, "one", "b")
    assert db.route("r") == types.Route("r", "one", 4)


def test_routes_are_listed_all_or_by_conversation(db: SessionDB) -> None:
    for name in ("one", "two"):
        conversations.begin(db, name, "a")
        for prefix in ("b", "a"):
            db.bind_route(f"{prefix}:{name}", name, version=0)
    head = conversations.compact(db, "one", 1)
    assert [route.key for route in db.routes()] == ["a:one", "a:two", "b:one", "b:two"]
    assert [route.key for route in db.routes(head.id)] == ["a:one", "b:one"]


def test_budget_is_updated_by_the_caller_that_knows_its_version(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    assert (db.budget("talk"), db.update_budget("talk", 1, {"attempts": 1})) == ((0, {}), False)
    # Two processes that add one to the same number write the same: the second is not counted.
    assert [db.update_budget("talk", 0, {"attempts": 1}) for _ in range(2)] == [True, False]
    head = conversations.compact(db, "talk", 1)
    assert db.budget(head.id) == (1, {"attempts": 1})
    assert db.update_budget(head.id, 1, {"attempts": 2})
    db.end_conversation("talk", "done")
    assert [db.update_budget("talk", version, {"attempts": 9}) for version in (0, 1, 3)] == [False] * 3
    assert (db.budget("talk"), db.conversation("talk").live) == ((2, {"attempts": 2}), False)
    db.branch("talk", branch_id="branch")
    assert db.budget("branch") == (0, {})


def test_budget_is_deleted_with_its_conversation_and_not_exported(db: SessionDB, clock: Clock) -> None:
    conversations.begin(db, "talk", "a")
    db.pin("talk", 1)
    before, after = io.StringIO(), io.StringIO()
    db.admin.export_to(before)
    db.update_budget("talk", 0, {"attempts": 1})
    db.memory.add("o", "likes tea", source="talk")
    db.mail.add_inbox_entry("talk", "k", "came in")
    db.admin.export_to(after)
    assert before.getvalue() == after.getvalue(), "nor are memories and inbox entries"
    assert db.admin.import_from(after.getvalue().splitlines()).ids("already_there") == ["talk"]
    assert db.budget("talk") == (1, {"attempts": 1})
    with SessionDB(":memory:") as other:
        assert other.admin.import_from(after.getvalue().splitlines()).ok
        assert other.pins("talk") == []
    conversations.begin(db, "ghost")
    db.update_budget("ghost", 0, {"attempts": 1})
    clock.advance(2 * conversations.DAY)
    assert db.admin.prune_empty_sessions() == 1
    # An empty conversation leaves no tombstone: its id may be used again.
    conversations.begin(db, "ghost")
    assert db.budget("ghost") == (0, {})
