"""Branches: conversations of their own that read another up to a point, at any depth."""

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
    assert (conversations.seen(db, "branch"), conversations.seen(db, "trunk")) == (
        ["a", "b", "x"],
        ["a", "b", "c", "d"],
    )
    assert [message.seq for message in db.transcript("branch")] == [1, 2, 3]
    assert db.get_session("branch").message_count == 1
    assert db.branches("trunk") == ["branch"]


def test_branch_begins_where_the_conversation_stands_unless_told(db: SessionDB) -> None:
    conversations.begin(db, "trunk", "a", "b")
    head = conversations.compact(db, "trunk", 0)
    branch = db.branch("trunk")
    assert (conversations.seen(db, branch.id)[-1], branch.parent_session_id) == ("b", head.id)


def test_branch_names_the_session_that_holds_its_last_message(db: SessionDB) -> None:
    conversations.begin(db, "trunk", "a", "b")
    child = conversations.compact(db, "trunk", 1)
    conversations.say(db, "trunk", "c")
    assert db.branch("trunk", 2).parent_session_id == "trunk"
    assert db.branch("trunk", 3).parent_session_id == child.id


def test_branch_at_zero_shares_nothing(db: SessionDB) -> None:
    conversations.begin(db, "trunk", "a")
    db.branch("trunk", 0, branch_id="branch")
    assert (conversations.seen(db, "branch"), db.conversation("branch").forked_at) == ([], 0)
    db.delete_conversation("trunk")


def test_branch_of_an_empty_conversation_is_empty(db: SessionDB) -> None:
    conversations.begin(db, "trunk")
    assert conversations.seen(db, db.branch("trunk").id) == []


@pytest.mark.parametrize("at", [-1, 3, 1.0, "1", True, b"1"])
def test_branch_outside_of_the_log_is_refused(db: SessionDB, at: object) -> None:
    conversations.begin(db, "trunk", "a", "b")
    with conversations.nothing_changes(db), pytest.raises(errors.InvalidArgument):
        db.branch("trunk", at)


def test_same_branch_again_is_that_branch(db: SessionDB) -> None:
    conversations.begin(db, "trunk", "a", "b")
    first = db.branch("trunk", 1, branch_id="branch")
    with conversations.nothing_changes(db):
        assert db.branch("trunk", 1, branch_id="branch") == first
    conversations.say(db, "trunk", "c")
    assert db.branch("trunk", branch_id="branch").id == "branch"


def test_branch_id_of_something_else_is_refused(db: SessionDB) -> None:
    for name in ("trunk", "other"):
        conversations.begin(db, name, "a", "b")
    db.branch("other", 1, branch_id="branch")
    child = conversations.compact(db, "trunk", 1)
    for taken in ("other", "branch", "trunk", child.id):
        with conversations.nothing_changes(db), pytest.raises(errors.IdTaken):
            db.branch("trunk", 1, branch_id=taken)
    db.branch("trunk", 1, branch_id="mine")
    with conversations.nothing_changes(db), pytest.raises(errors.IdTaken):
        db.branch("trunk", 2, branch_id="mine")


def test_branch_id_of_a_deleted_session_is_refused(db: SessionDB) -> None:
    for name in ("trunk", "gone"):
        conversations.begin(db, name, "a")
    db.delete_conversation("gone")
    with conversations.nothing_changes(db), pytest.raises(errors.ConversationDeleted):
        db.branch("trunk", branch_id="gone")


def test_branch_takes_a_numbered_title_or_the_one_it_is_given(db: SessionDB) -> None:
    conversations.begin(db, "trunk", "a", title="plan")
    names = [db.branch("trunk").title, db.branch("trunk").title, db.branch("trunk", title="mine").title]
    assert names == ["plan #2", "plan #3", "mine"]
    second = db.resolve("plan #2")
    assert db.branch(second.id).title == "plan #4"
    with pytest.raises(errors.TitleTaken):
        db.branch("trunk", title="mine")


# --- compactions -----------------------------------------------------------------------------------------


def test_branch_stands_on_the_newest_compaction_made_from_nothing_after_it(db: SessionDB) -> None:
    conversations.begin(db, "trunk", *"abcdef")
    conversations.compact(db, "trunk", 2, "one", seen_seq=3)
    conversations.compact(db, "trunk", 4, "two", seen_seq=6)
    views = {at: conversations.seen(db, db.branch("trunk", at).id) for at in (2, 3, 5, 6)}
    assert views == {2: ["a", "b"], 3: ["one", "c"], 5: ["one", "c", "d", "e"], 6: ["two", "e", "f"]}


def test_undone_compaction_is_not_inherited(db: SessionDB) -> None:
    conversations.begin(db, "trunk", *"ab")
    conversations.compact(db, "trunk", 2, "gist")
    db.undo_compaction("trunk")
    assert conversations.seen(db, db.branch("trunk").id) == ["a", "b"]


def test_branch_keeps_its_view_when_its_origin_changes(db: SessionDB) -> None:
    conversations.begin(db, "trunk", *"abc")
    conversations.compact(db, "trunk", 1, "one")
    branch = db.branch("trunk").id
    before = conversations.seen(db, branch)
    db.undo_compaction("trunk")
    conversations.compact(db, "trunk", 3, "two")
    db.hide("trunk", 3)
    conversations.say(db, "trunk", "d")
    db.end_conversation("trunk", "done")
    assert conversations.seen(db, branch) == before == ["one", "b", "c"]


def test_branch_is_compacted_and_undone_by_itself(db: SessionDB) -> None:
    conversations.begin(db, "trunk", *"abc")
    conversations.compact(db, "trunk", 1, "one")
    db.branch("trunk", branch_id="branch")
    conversations.say(db, "branch", "x")
    with pytest.raises(errors.NothingToUndo):
        db.undo_compaction("branch")
    conversations.compact(db, "branch", 3, "mine")
    assert (conversations.seen(db, "branch"), conversations.seen(db, "trunk")) == (["mine", "x"], ["one", "b", "c"])
    db.undo_compaction("branch")
    assert conversations.seen(db, "branch") == ["one", "b", "c", "x"]


def test_cut_of_a_branch_never_lies_before_the_one_it_inherited(db: SessionDB) -> None:
    conversations.begin(db, "trunk", *"abc")
    conversations.compact(db, "trunk", 2)
    db.branch("trunk", branch_id="branch")
    with conversations.nothing_changes(db), pytest.raises(errors.InvalidArgument):
        conversations.compact_without_lease(db, "branch", 1)


def test_pinned_messages_of_the_origin_stay_pinned_in_the_branch(db: SessionDB) -> None:
    conversations.begin(db, "trunk", *"abc")
    conversations.compact(db, "trunk", 2, "gist", pinned=[1])
    db.branch("trunk", branch_id="branch")
    conversations.compact(db, "branch", 3, "mine", pinned=[1, 3])
    assert conversations.seen(db, "branch") == ["a", "c", "mine"]


# --- hides -------------------------------------------------------------------------------------------------


def test_hides_in_force_are_copied_and_clipped(db: SessionDB) -> None:
    conversations.begin(db, "trunk", *"abcdef")
    db.hide("trunk", 2, 5)
    db.hide("trunk", 4, 6)
    db.hide("trunk", 1, 1)
    db.show("trunk")
    branch = db.branch("trunk", 4).id
    conversations.say(db, branch, "x")
    assert conversations.seen(db, branch) == ["a", "x"]
    assert [(hide.from_seq, hide.to_seq) for hide in db.hides(branch)] == [(2, 4)]
    db.show(branch)
    assert (conversations.seen(db, branch), conversations.seen(db, "trunk")) == (["a", "b", "c", "d", "x"], ["a"])


def test_inherited_message_is_hidden_in_the_branch_only(db: SessionDB) -> None:
    conversations.begin(db, "trunk", *"ab")
    branch = db.branch("trunk").id
    db.hide(branch, 1, 1)
    assert (conversations.seen(db, branch), conversations.seen(db, "trunk")) == (["b"], ["a", "b"])


def test_hidden_message_under_an_inherited_cut_cannot_be_shown(db: SessionDB) -> None:
    conversations.begin(db, "trunk", *"abc")
    db.hide("trunk", 1, 1)
    conversations.compact(db, "trunk", 2, "without a")
    branch = db.branch("trunk").id
    with conversations.nothing_changes(db), pytest.raises(errors.ShowRefused):
        db.show(branch)


# --- branches of branches ------------------------------------------------------------------------------------


def test_reads_go_down_the_origins_with_the_smaller_limit(db: SessionDB) -> None:
    conversations.begin(db, "one", *"abcd")
    db.branch("one", 3, branch_id="two")
    conversations.say(db, "two", "e", "f")
    db.branch("two", 4, branch_id="three")
    conversations.say(db, "three", "g")
    db.branch("three", 2, branch_id="four")
    conversations.say(db, "four", "h")
    for name, log in {"two": "abcef", "three": "abceg", "four": "abh"}.items():
        assert conversations.contents(db.transcript(name)) == list(log) == conversations.seen(db, name)
        assert [message.seq for message in db.transcript(name)] == list(range(1, len(log) + 1))
    assert [message.session_id for message in db.transcript("three")] == ["one"] * 3 + ["two", "three"]


def test_every_level_has_its_own_compactions_and_hides(db: SessionDB) -> None:
    conversations.begin(db, "one", *"abcd")
    conversations.compact(db, "one", 1, "one: a")
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
    assert conversations.seen(db, "three") == ["two: a, c", "d", "f", "g"]
    db.show("three", db.hides("three")[-1].epoch)
    assert conversations.seen(db, "three") == ["two: a, c", "d", "e", "f", "g"]


def test_branch_before_the_branchs_own_compaction_stands_on_the_inherited_one(db: SessionDB) -> None:
    conversations.begin(db, "one", *"abcd")
    conversations.compact(db, "one", 1, "one: a", seen_seq=2)
    db.branch("one", branch_id="two")
    conversations.say(db, "two", "e", "f")
    conversations.compact(db, "two", 5, "two: a to e", seen_seq=6)
    assert conversations.seen(db, db.branch("two", 5).id) == ["one: a", "b", "c", "d", "e"]
    assert conversations.seen(db, db.branch("two", 2).id) == ["one: a", "b"]
    assert conversations.seen(db, db.branch("two", 1).id) == ["a"]


def test_branch_keeps_the_view_of_a_branch_whose_compaction_was_undone(db: SessionDB) -> None:
    conversations.begin(db, "one", *"ab")
    conversations.compact(db, "one", 1, "one: a")
    db.branch("one", branch_id="two")
    conversations.compact(db, "two", 2, "two: a, b")
    db.undo_compaction("two")
    assert conversations.seen(db, db.branch("two").id) == ["one: a", "b"]
