"""Hide and show: turns leave the context and come back, and no summary is ever contradicted by it."""

from __future__ import annotations

import pytest

from holdfast import SessionDB, errors, types
from tests.support import conversations


def test_hidden_range_leaves_the_context_and_show_brings_it_back(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abcd")
    hidden = db.hide("talk", 2, 3)
    assert (hidden, conversations.seen(db, "talk")) == (types.Hide(2, 2, 3, None), ["a", "d"])
    shown = db.show("talk")
    assert (shown, conversations.seen(db, "talk")) == (types.Hide(2, 2, 3, 3), ["a", "b", "c", "d"])
    assert db.hides("talk") == [shown]


def test_hide_goes_to_the_last_message_unless_told(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abcd")
    assert db.hide("talk", 3).to_seq == 4
    conversations.say(db, "talk", "e")
    assert conversations.seen(db, "talk") == ["a", "b", "e"]


def test_both_raise_the_epoch_and_keep_the_log(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a", "b")
    db.hide("talk", 2)
    assert (db.conversation("talk").epoch, db.conversation("talk").last_seq) == (2, 2)
    db.show("talk")
    assert db.conversation("talk").epoch == 3
    assert conversations.contents(db.transcript("talk")) == ["a", "b"]


def test_show_takes_the_newest_hide_or_the_one_it_is_told(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abc")
    first, second, third = (db.hide("talk", seq, seq) for seq in (1, 2, 3))
    assert db.show("talk", second.epoch).from_seq == 2
    assert db.show("talk").from_seq == 3
    assert db.show("talk").epoch == first.epoch
    with conversations.nothing_changes(db):
        for epoch in (None, third.epoch, 99):
            with pytest.raises(errors.NothingToUndo):
                db.show("talk", epoch)


def test_message_hidden_twice_is_shown_when_both_are(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abc")
    db.hide("talk", 1, 2)
    db.hide("talk", 2, 3)
    db.show("talk")
    assert conversations.seen(db, "talk") == ["c"]
    db.show("talk")
    assert conversations.seen(db, "talk") == ["a", "b", "c"]


@pytest.mark.parametrize(
    "bad", [(0, 1), (2, 1), (1, 4), (4, None), (-1, None), ("1", 2), (1, 2.0), (True, 2), (None, 2)]
)
def test_range_outside_of_the_log_is_refused(db: SessionDB, bad: tuple[object, object]) -> None:
    conversations.begin(db, "talk", *"abc")
    with conversations.nothing_changes(db), pytest.raises(errors.InvalidArgument):
        db.hide("talk", *bad)


def test_empty_conversation_has_nothing_to_hide(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    with pytest.raises(errors.InvalidArgument):
        db.hide("talk", 1)


def test_hide_of_an_old_session_id_is_of_the_conversation(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a", "b")
    head = conversations.compact(db, "talk", 1)
    db.hide("talk", 2)
    assert conversations.seen(db, head.id) == ["summary"]
    assert db.hides(head.id) == db.hides("talk")


def test_ended_conversation_can_be_tidied(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a", "b")
    db.end_conversation("talk", "done")
    db.hide("talk", 1, 1)
    assert conversations.seen(db, "talk") == ["b"]


# --- with compactions ------------------------------------------------------------------------------------


def test_turn_that_a_summary_was_made_without_is_shown_only_after_an_undo(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abc")
    db.hide("talk", 2, 2)
    conversations.compact(db, "talk", 3, "a and c")
    with conversations.nothing_changes(db), pytest.raises(errors.ShowRefused):
        db.show("talk")
    db.undo_compaction("talk")
    db.show("talk")
    assert conversations.seen(db, "talk") == ["a", "b", "c"]


def test_every_compaction_below_must_be_undone_first(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abc")
    db.hide("talk", 1, 1)
    conversations.compact(db, "talk", 2, "b")
    conversations.compact(db, "talk", 3, "b and c")
    for _ in range(2):
        with conversations.nothing_changes(db), pytest.raises(errors.ShowRefused):
            db.show("talk")
        db.undo_compaction("talk")
    db.show("talk")
    assert conversations.seen(db, "talk") == ["a", "b", "c"]


def test_range_that_reaches_across_the_cut_is_refused_as_a_whole(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abcd")
    db.hide("talk", 2, 3)
    conversations.compact(db, "talk", 2)
    with conversations.nothing_changes(db), pytest.raises(errors.ShowRefused):
        db.show("talk")


def test_turn_after_the_cut_is_shown_at_any_time(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abcd")
    db.hide("talk", 3, 3)
    conversations.compact(db, "talk", 2, "gist")
    db.show("talk")
    assert conversations.seen(db, "talk") == ["gist", "c", "d"]


def test_hide_outlives_compactions_and_their_undo(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abc")
    db.hide("talk", 3)
    conversations.compact(db, "talk", 1, "gist")
    assert conversations.seen(db, "talk") == ["gist", "b"]
    db.undo_compaction("talk")
    assert conversations.seen(db, "talk") == ["a", "b"]


def test_racing_shows_have_one_winner(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a", "b")
    db.hide("talk", 1, 1)
    outcomes = conversations.at_once(*[lambda: db.show("talk")] * 4)
    assert sum(isinstance(outcome, types.Hide) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, errors.NothingToUndo) for outcome in outcomes) == 3
