"""Titles belong to the conversation, once per owner."""

from __future__ import annotations

import pytest

from holdfast import SessionDB, errors
from tests.support import conversations


def test_title_is_of_the_conversation_whichever_session_is_given(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    head = conversations.compact(db, "talk", 1)
    assert db.set_session_title("talk", " My \t plan\n") == "My plan"
    assert [session.title for session in db.sessions("talk")] == ["My plan", "My plan"]
    assert db.set_session_title(head.id, None) is None
    assert db.get_session("talk").title is None


def test_title_of_another_conversation_is_taken(db: SessionDB) -> None:
    conversations.begin(db, "one", title="plan")
    conversations.begin(db, "two")
    with conversations.nothing_changes(db), pytest.raises(errors.TitleTaken) as refusal:
        db.set_session_title("two", "plan")
    assert (refusal.value.title, refusal.value.conversation) == ("plan", "one")
    assert isinstance(refusal.value, ValueError)
    with pytest.raises(errors.TitleTaken):
        db.create_session("three", source="test", title="plan")
    assert db.get_session("three") is None


def test_own_title_may_be_set_again(db: SessionDB) -> None:
    conversations.begin(db, "talk", title="plan")
    assert db.set_session_title("talk", "plan") == "plan"


def test_owners_do_not_share_titles(db: SessionDB) -> None:
    for owner in ("", "one", "two"):
        conversations.begin(db, f"talk of {owner}", title="plan", owner=owner)
    assert len(db.list_sessions()) == 3


def test_title_is_free_again_when_it_is_given_up(db: SessionDB) -> None:
    conversations.begin(db, "one", "a", title="plan")
    conversations.begin(db, "two", "a")
    db.set_session_title("one", "other")
    db.set_session_title("two", "plan")
    db.delete_conversation("two")
    db.set_session_title("one", "plan")


def test_title_raises_no_epoch(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    db.set_session_title("talk", "plan")
    assert db.conversation("talk").epoch == 1


@pytest.mark.parametrize(
    "title", ["", "   ", "\u200b", "\0", "x" * 101, "x" * 1_000_000, 5, b"plan", ["plan"]], ids=conversations.short
)
def test_title_that_is_none_is_refused(db: SessionDB, title: object) -> None:
    conversations.begin(db, "talk", title="old")
    with conversations.nothing_changes(db), pytest.raises(errors.InvalidArgument) as refusal:
        db.set_session_title("talk", title)
    assert isinstance(refusal.value, ValueError)
    assert len(str(refusal.value)) < 200
    with pytest.raises(errors.InvalidArgument):
        db.create_session("new", source="test", title=title)
    assert db.get_session("new") is None


@pytest.mark.parametrize(
    "title", ["x" * 100, "../etc", "'; DROP TABLE x; --", "%s {0}", "плани 计划 🚀", "a\0b\ud800c"]
)
def test_odd_title_is_kept_as_it_is_seen(db: SessionDB, title: str) -> None:
    conversations.begin(db, "talk")
    kept = db.set_session_title("talk", title)
    assert kept == title.replace("\0", "").replace("\ud800", "")
    assert db.get_session("talk").title == kept
    assert db.resolve(kept).id == "talk"


def test_racing_for_a_title_has_one_winner(db: SessionDB) -> None:
    for number in range(4):
        conversations.begin(db, str(number))
    outcomes = conversations.at_once(*(lambda n=n: db.set_session_title(str(n), "plan") for n in range(4)))
    assert outcomes.count("plan") == 1
    assert sum(isinstance(outcome, errors.TitleTaken) for outcome in outcomes) == 3
