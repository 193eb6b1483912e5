"""Branches: conversations that include another one up to a point, at any depth."""

from __future__ import annotations

import pytest

from holdfast import SessionDB, errors
from tests.support import conversations


def test_branch_reads_its_origin_and_goes_on_by_itself(db: SessionDB) -> None:
    conversations.begin(db, "trunk", *"abc", model="m", owner="me")
    branch = db.branch("trunk", 2, branch_id="branch")
    conversations.say(db, "branch", "x")
    conversations.say(db, "trunk", "d")
    assert (branch.conversation_id, branch.parent_session_id, branch.ordinal) == ("branch", "trunk", 1)
    assert (branch.source, branch.model, branch.owner) == ("test", "m", "me")
    assert conversations.seen(db, "branch") == ["a", "b", "x"]
    assert conversations.seen(db, "trunk") == ["a", "b", "c", "d"]
    assert [message.seq for message in db.transcript("branch")] == [1, 2, 3]
    assert conversations.contents(db.transcript("branch", upto=1)) == ["a"]
    assert db.get_session("branch").message_count == 1
    assert db.branches("trunk") == ["branch"]


def test_branch_names_the_session_of_its_last_message(db: SessionDB) -> None:
    conversations.begin(db, "trunk", "a", "b")
    child = conversations.compact(db, "trunk", 0)
    assert db.branch("trunk").parent_session_id == child.id
    conversations.say(db, "trunk", "c")
    assert [db.branch("trunk", at).parent_session_id for at in (2, 3)] == ["trunk", child.id]


def test_repeated_branch_is_returned_and_an_id_in_use_is_refused(db: SessionDB) -> None:
    conversations.begin_each(db, ("trunk", "other", "gone"), "a", "b")
    db.delete_conversation("gone")
    first = db.branch("trunk", 1, branch_id="mine")
    db.branch("other", 1, branch_id="branch")
    child = conversations.compact(db, "trunk", 1)
    with conversations.nothing_changes(db):
        assert db.branch("trunk", 1, branch_id="mine") == first
        for taken, at in (("other", 1), ("branch", 1), ("trunk", 1), (child.id, 1), ("mine", 2)):
            with pytest.raises(errors.IdTaken):
                db.branch("trunk", at, branch_id=taken)
        with pytest.raises(errors.ConversationDeleted):
            db.branch("trunk", branch_id="gone")
    conversations.say(db, "trunk", "c")
    assert db.branch("trunk", branch_id="mine").id == "mine"


def test_branch_gets_a_numbered_title_or_the_given_one(db: SessionDB) -> None:
    conversations.begin(db, "trunk", "a", title="plan")
    titles = [db.branch("trunk").title, db.branch("trunk").title, db.branch("trunk", title="mine").title]
    assert titles == ["plan #2", "plan #3", "mine"]
    assert db.branch(db.resolve("plan #2").id).title == "plan #4"
    with pytest.raises(errors.TitleTaken):
        db.branch("trunk", title="mine")


def test_every_level_has_its_own_compactions_and_hides(db: SessionDB) -> None:
    conversations.begin(db, "one", *"abcd")
    conversations.compact(db, "one", 1, "one: a", seen_seq=2)
    db.hide("one", 2, 2)
    db.branch("one", branch_id="two")
    conversations.say(db, "two", "e", "f")
    conversations.compact(db, "two", 3, "two: a, c", seen_seq=5)
    db.hide("two", 5, 5)
    db.branch("two", branch_id="three")
    conversations.say(db, "three", "g")
    assert conversations.seen(db, "one") == ["one: a", "c", "d"]
    assert conversations.seen(db, "two") == ["two: a, c", "d", "f"]
    assert conversations.seen(db, "three") == ["two: a, c", "d", "f", "g"]
    conversations.compact(db, "three", 6, "three: all")
    assert conversations.seen(db, "three") == ["three: all", "g"]
    db.undo_compaction("three")
    db.show("three", db.hides("three")[-1].epoch)
    assert conversations.seen(db, "three") == ["two: a, c", "d", "e", "f", "g"]
    # Before the compaction of "two", a branch stands on the one that "two" inherited.
    assert [conversations.seen(db, db.branch("two", at).id) for at in (4, 2, 1)] == [
        ["one: a", "c", "d"],
        ["one: a"],
        ["a"],
    ]
    conversations.compact(db, "one", 3, "one: a, c", seen_seq=4)
    assert conversations.seen(db, db.branch("one", 3).id) == ["one: a", "c"]
