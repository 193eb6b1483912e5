"""Routes: chat keys that name conversations, bound by compare-and-swap and by nothing else."""

from __future__ import annotations

import pytest

from holdfast import SessionDB, errors, types
from tests.support import conversations


def test_route_nobody_bound_has_version_zero(db: SessionDB) -> None:
    assert db.route("r") == types.Route("r", None, 0)
    assert db.routes() == []


def test_route_is_bound_by_whoever_saw_its_version(db: SessionDB) -> None:
    for name in ("one", "two"):
        conversations.begin(db, name)
    assert db.bind_route("r", "one", version=0) == types.Route("r", "one", 1)
    with pytest.raises(errors.RouteMoved) as refusal:
        db.bind_route("r", "two", version=0)
    assert (refusal.value.key, refusal.value.conversation, refusal.value.version) == ("r", "one", 1)
    assert db.bind_route("r", "two", version=1) == types.Route("r", "two", 2) == db.route("r")


def test_unbound_route_names_nothing_until_it_is_bound_again(db: SessionDB) -> None:
    conversations.begin(db, "one")
    db.bind_route("r", "one", version=0)
    assert db.bind_route("r", None, version=1) == types.Route("r", None, 2)
    with pytest.raises(errors.RouteMoved) as refusal:
        db.bind_route("r", "one", version=1)
    assert refusal.value.conversation is None
    db.bind_route("r", "one", version=2)


def test_route_names_the_conversation_whichever_session_is_given(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    head = conversations.compact(db, "talk", 1)
    assert db.bind_route("r", head.id, version=0).conversation_id == "talk"


def test_compactions_ends_and_messages_touch_no_route(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    db.bind_route("r", "talk", version=0)
    conversations.compact(db, "talk", 1)
    db.end_conversation("talk", "done")
    conversations.say(db, "talk", "b")
    assert db.route("r") == types.Route("r", "talk", 1)


def test_routes_are_listed_all_or_by_conversation(db: SessionDB) -> None:
    for name in ("one", "two"):
        conversations.begin(db, name, "a")
        db.bind_route(f"b:{name}", name, version=0)
        db.bind_route(f"a:{name}", name, version=0)
    head = conversations.compact(db, "one", 1)
    assert [route.key for route in db.routes()] == ["a:one", "a:two", "b:one", "b:two"]
    assert [route.key for route in db.routes(head.id)] == ["a:one", "b:one"]


def test_route_to_an_unknown_or_deleted_conversation_is_refused(db: SessionDB) -> None:
    conversations.begin(db, "gone", "a")
    db.delete_conversation("gone")
    with pytest.raises(errors.ConversationDeleted):
        db.bind_route("r", "gone", version=0)
    with pytest.raises(errors.NoSuchSession):
        db.bind_route("r", "nobody", version=0)
    assert db.routes() == []


@pytest.mark.parametrize("key", ["", "x" * 501, "a\nb", "\ud800", None, 5, b"r"])
def test_key_that_is_none_is_refused(db: SessionDB, key: object) -> None:
    conversations.begin(db, "talk")
    with pytest.raises(errors.InvalidArgument):
        db.route(key)
    with pytest.raises(errors.InvalidArgument):
        db.bind_route(key, "talk", version=0)


def test_racing_binders_have_one_winner(db: SessionDB) -> None:
    for number in range(6):
        conversations.begin(db, str(number))
    outcomes = conversations.at_once(*(lambda n=n: db.bind_route("r", str(n), version=0) for n in range(6)))
    winners = [outcome for outcome in outcomes if isinstance(outcome, types.Route)]
    assert winners == [db.route("r")]
    assert {loser.conversation for loser in outcomes if isinstance(loser, errors.RouteMoved)} == {
        winners[0].conversation_id
    }
