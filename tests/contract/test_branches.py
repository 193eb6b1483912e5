"""Branches: conversations of their own that read another up to a point, at any depth."""

from __future__ import annotations

import pytest

from holdfast import SessionDB, errors
from tests.contract import steps


def test_branch_reads_its_origin_and_goes_on_by_itself(db: SessionDB) -> None:
    steps.begin(db, "trunk", *"abc", model="m", owner="me")
    branch = db.branch("trunk", 2, branch_id="branch")
    steps.say(db, "branch", "x")
    steps.say(db, "trunk", "d")
    assert (branch.conversation_id, branch.parent_session_id, branch.ordinal) == ("branch", "trunk", 1)
    assert (branch.source, branch.model, branch.owner) == ("test", "m", "me")
    assert (steps.seen(db, "branch"), steps.seen(db, "trunk")) == (["a", "b", "x"], ["a", "b", "c", "d"])
    assert [message.seq for message in db.transcript("branch")] == [1, 2, 3]
    assert db.get_session("branch").message_count == 1
    assert db.branches("trunk") == ["branch"]


def test_branch_begins_where_the_conversation_stands_unless_told(db: SessionDB) -> None:
    steps.begin(db, "trunk", "a", "b")
    head = steps.compact(db, "trunk", 0)
    branch = db.branch("trunk")
    assert (steps.seen(db, branch.id)[-1], branch.parent_session_id) == ("b", head.id)


def test_branch_names_the_session_that_holds_its_last_message(db: SessionDB) -> None:
    steps.begin(db, "trunk", "a", "b")
    child = steps.compact(db, "trunk", 1)
    steps.say(db, "trunk", "c")
    assert db.branch("trunk", 2).parent_session_id == "trunk"
    assert db.branch("trunk", 3).parent_session_id == child.id


def test_branch_at_zero_shares_nothing(db: SessionDB) -> None:
    steps.begin(db, "trunk", "a")
    db.branch("trunk", 0, branch_id="branch")
    assert (steps.seen(db, "branch"), db.conversation("branch").forked_at) == ([], 0)
    db.delete_conversation("trunk")


def test_branch_of_an_empty_conversation_is_empty(db: SessionDB) -> None:
    steps.begin(db, "trunk")
    assert steps.seen(db, db.branch("trunk").id) == []


@pytest.mark.parametrize("at", [-1, 3, 1.0, "1", True, b"1"])
def test_branch_outside_of_the_log_is_refused(db: SessionDB, at: object) -> None:
    steps.begin(db, "trunk", "a", "b")
    with steps.nothing_changes(db), pytest.raises(errors.InvalidArgument):
        db.branch("trunk", at)


def test_same_branch_again_is_that_branch(db: SessionDB) -> None:
    steps.begin(db, "trunk", "a", "b")
    first = db.branch("trunk", 1, branch_id="branch")
    with steps.nothing_changes(db):
        assert db.branch("trunk", 1, branch_id="branch") == first
    steps.say(db, "trunk", "c")
    assert db.branch("trunk", branch_id="branch").id == "branch"


def test_branch_id_of_something_else_is_refused(db: SessionDB) -> None:
    for name in ("trunk", "other"):
        steps.begin(db, name, "a", "b")
    db.branch("other", 1, branch_id="branch")
    child = steps.compact(db, "trunk", 1)
    for taken in ("other", "branch", "trunk", child.id):
        with steps.nothing_changes(db), pytest.raises(errors.IdTaken):
            db.branch("trunk", 1, branch_id=taken)
    db.branch("trunk", 1, branch_id="mine")
    with steps.nothing_changes(db), pytest.raises(errors.IdTaken):
        db.branch("trunk", 2, branch_id="mine")


def test_branch_id_of_a_deleted_session_is_refused(db: SessionDB) -> None:
    for name in ("trunk", "gone"):
        steps.begin(db, name, "a")
    db.delete_conversation("gone")
    with steps.nothing_changes(db), pytest.raises(errors.ConversationDeleted):
        db.branch("trunk", branch_id="gone")


def test_branch_takes_a_numbered_title_or_the_one_it_is_given(db: SessionDB) -> None:
    steps.begin(db, "trunk", "a", title="plan")
    names = [db.branch("trunk").title, db.branch("trunk").title, db.branch("trunk", title="mine").title]
    assert names == ["plan #2", "plan #3", "mine"]
    second = db.resolve("plan #2")
    assert db.branch(second.id).title == "plan #4"
    with pytest.raises(errors.TitleTaken):
        db.branch("trunk", title="mine")


# --- compactions -----------------------------------------------------------------------------------------


def test_branch_stands_on_the_newest_compaction_made_from_nothing_after_it(db: SessionDB) -> None:
    steps.begin(db, "trunk", *"abcdef")
    steps.compact(db, "trunk", 2, "one", seen_seq=3)
    steps.compact(db, "trunk", 4, "two", seen_seq=6)
    views = {at: steps.seen(db, db.branch("trunk", at).id) for at in (2, 3, 5, 6)}
    assert views == {2: ["a", "b"], 3: ["one", "c"], 5: ["one", "c", "d", "e"], 6: ["two", "e", "f"]}


def test_undone_compaction_is_not_inherited(db: SessionDB) -> None:
    steps.begin(db, "trunk", *"ab")
    steps.compact(db, "trunk", 2, "gist")
    db.undo_compaction("trunk")
    assert steps.seen(db, db.branch("trunk").id) == ["a", "b"]


def test_branch_keeps_its_view_when_its_origin_changes(db: SessionDB) -> None:
    steps.begin(db, "trunk", *"abc")
    steps.compact(db, "trunk", 1, "one")
    branch = db.branch("trunk").id
    before = steps.seen(db, branch)
    db.undo_compaction("trunk")
    steps.compact(db, "trunk", 3, "two")
    db.hide("trunk", 3)
    steps.say(db, "trunk", "d")
    db.end_conversation("trunk", "done")
    assert steps.seen(db, branch) == before == ["one", "b", "c"]


def test_branch_is_compacted_and_undone_by_itself(db: SessionDB) -> None:
    steps.begin(db, "trunk", *"abc")
    steps.compact(db, "trunk", 1, "one")
    db.branch("trunk", branch_id="branch")
    steps.say(db, "branch", "x")
    with pytest.raises(errors.NothingToUndo):
        db.undo_compaction("branch")
    steps.compact(db, "branch", 3, "mine")
    assert (steps.seen(db, "branch"), steps.seen(db, "trunk")) == (["mine", "x"], ["one", "b", "c"])
    db.undo_compaction("branch")
    assert steps.seen(db, "branch") == ["one", "b", "c", "x"]


def test_cut_of_a_branch_never_lies_before_the_one_it_inherited(db: SessionDB) -> None:
    steps.begin(db, "trunk", *"abc")
    steps.compact(db, "trunk", 2)
    db.branch("trunk", branch_id="branch")
    with steps.nothing_changes(db), pytest.raises(errors.InvalidArgument):
        steps.compact_without_lease(db, "branch", 1)


def test_pinned_messages_of_the_origin_stay_pinned_in_the_branch(db: SessionDB) -> None:
    steps.begin(db, "trunk", *"abc")
    steps.compact(db, "trunk", 2, "gist", pinned=[1])
    db.branch("trunk", branch_id="branch")
    steps.compact(db, "branch", 3, "mine", pinned=[1, 3])
    assert steps.seen(db, "branch") == ["a", "c", "mine"]


# --- hides -------------------------------------------------------------------------------------------------


def test_hides_in_force_are_copied_and_clipped(db: SessionDB) -> None:
    steps.begin(db, "trunk", *"abcdef")
    db.hide("trunk", 2, 5)
    db.hide("trunk", 4, 6)
    db.hide("trunk", 1, 1)
    db.show("trunk")
    branch = db.branch("trunk", 4).id
    steps.say(db, branch, "x")
    assert steps.seen(db, branch) == ["a", "x"]
    assert [(hide.from_seq, hide.to_seq) for hide in db.hides(branch)] == [(2, 4)]
    db.show(branch)
    assert (steps.seen(db, branch), steps.seen(db, "trunk")) == (["a", "b", "c", "d", "x"], ["a"])


def test_inherited_message_is_hidden_in_the_branch_only(db: SessionDB) -> None:
    steps.begin(db, "trunk", *"ab")
    branch = db.branch("trunk").id
    db.hide(branch, 1, 1)
    assert (steps.seen(db, branch), steps.seen(db, "trunk")) == (["b"], ["a", "b"])


def test_hidden_message_under_an_inherited_cut_cannot_be_shown(db: SessionDB) -> None:
    steps.begin(db, "trunk", *"abc")
    db.hide("trunk", 1, 1)
    steps.compact(db, "trunk", 2, "without a")
    branch = db.branch("trunk").id
    with steps.nothing_changes(db), pytest.raises(errors.ShowRefused):
        db.show(branch)


# --- branches of branches ------------------------------------------------------------------------------------


def test_reads_go_down_the_origins_with_the_smaller_limit(db: SessionDB) -> None:
    steps.begin(db, "one", *"abcd")
    db.branch("one", 3, branch_id="two")
    steps.say(db, "two", "e", "f")
    db.branch("two", 4, branch_id="three")
    steps.say(db, "three", "g")
    db.branch("three", 2, branch_id="four")
    steps.say(db, "four", "h")
    for name, log in {"two": "abcef", "three": "abceg", "four": "abh"}.items():
        assert steps.contents(db.transcript(name)) == list(log) == steps.seen(db, name)
        assert [message.seq for message in db.transcript(name)] == list(range(1, len(log) + 1))
    assert [message.session_id for message in db.transcript("three")] == ["one"] * 3 + ["two", "three"]


def test_every_level_has_its_own_compactions_and_hides(db: SessionDB) -> None:
    steps.begin(db, "one", *"abcd")
    steps.compact(db, "one", 1, "one: a")
    db.hide("one", 2, 2)
    db.branch("one", branch_id="two")
    steps.say(db, "two", "e", "f")
    steps.compact(db, "two", 3, "two: a, c", seen_seq=5)
    db.hide("two", 5, 5)
    db.branch("two", branch_id="three")
    steps.say(db, "three", "g")
    assert steps.seen(db, "one") == ["one: a", "c", "d"]
    assert steps.seen(db, "two") == ["two: a, c", "d", "f"]
    assert steps.seen(db, "three") == ["two: a, c", "d", "f", "g"]
    steps.compact(db, "three", 6, "three: all")
    assert steps.seen(db, "three") == ["three: all", "g"]
    db.undo_compaction("three")
    assert steps.seen(db, "three") == ["two: a, c", "d", "f", "g"]
    db.show("three", db.hides("three")[-1].epoch)
    assert steps.seen(db, "three") == ["two: a, c", "d", "e", "f", "g"]


def test_branch_before_the_branchs_own_compaction_stands_on_the_inherited_one(db: SessionDB) -> None:
    steps.begin(db, "one", *"abcd")
    steps.compact(db, "one", 1, "one: a", seen_seq=2)
    db.branch("one", branch_id="two")
    steps.say(db, "two", "e", "f")
    steps.compact(db, "two", 5, "two: a to e", seen_seq=6)
    assert steps.seen(db, db.branch("two", 5).id) == ["one: a", "b", "c", "d", "e"]
    assert steps.seen(db, db.branch("two", 2).id) == ["one: a", "b"]
    assert steps.seen(db, db.branch("two", 1).id) == ["a"]


def test_branch_keeps_the_view_of_a_branch_whose_compaction_was_undone(db: SessionDB) -> None:
    steps.begin(db, "one", *"ab")
    steps.compact(db, "one", 1, "one: a")
    db.branch("one", branch_id="two")
    steps.compact(db, "two", 2, "two: a, b")
    db.undo_compaction("two")
    assert steps.seen(db, db.branch("two").id) == ["one: a", "b"]
