"""Hidden and pinned messages: no summary contradicts a hide, and no compaction ignores a pin."""

from __future__ import annotations

import pytest

from holdfast import SessionDB, errors, types
from holdfast.store import visibility
from tests.support import conversations
from tests.support.conversations import Clock


def pinned_seqs(db: SessionDB, session_id: str = "talk") -> list[int]:
    return [each.seq for each in db.pins(session_id)]


def test_hidden_range_leaves_the_context_until_it_is_shown(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abcd")
    assert db.hide("talk", 2, 3) == types.Hide(2, 2, 3, None)
    assert conversations.seen(db, "talk") == ["a", "d"]
    shown = db.show("talk")
    assert (shown, conversations.seen(db, "talk")) == (types.Hide(2, 2, 3, 3), ["a", "b", "c", "d"])
    assert (db.hides("talk"), db.conversation("talk").epoch) == ([shown], 3)
    db.end_conversation("talk", "done")
    assert db.hide("talk", 3).to_seq == 4
    conversations.say(db, "talk", "e")
    head = conversations.compact(db, "talk", 1)
    assert conversations.seen(db, head.id) == ["summary", "b", "e"]
    assert db.hides(head.id) == db.hides("talk")


def test_show_takes_the_newest_hide_or_the_given_one(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abc")
    first, second, third = (db.hide("talk", 1, seq) for seq in (1, 2, 3))
    assert db.show("talk", second.epoch).to_seq == 2
    assert conversations.seen(db, "talk") == []
    assert db.show("talk").to_seq == 3
    assert conversations.seen(db, "talk") == ["b", "c"], "hidden by two hides, it is hidden until both are shown"
    assert db.show("talk").epoch == first.epoch
    with conversations.nothing_changes(db):
        for epoch in (None, third.epoch, 99):
            with pytest.raises(errors.NothingToUndo):
                db.show("talk", epoch)


@pytest.mark.parametrize("hidden", [(2, 2), (2, 3)], ids=["below the cut", "across the cut"])
def test_messages_that_a_summary_lacks_are_shown_after_its_undo_only(db: SessionDB, hidden: tuple[int, int]) -> None:
    conversations.begin(db, "talk", *"abcde")
    db.hide("talk", *hidden)
    for cut in (2, 4):
        conversations.compact(db, "talk", cut)
    branch = db.branch("talk").id
    for _ in range(2):
        for name in ("talk", branch):
            with conversations.nothing_changes(db), pytest.raises(errors.ShowRefused):
                db.show(name)
        db.undo_compaction("talk")
    db.show("talk")
    assert conversations.seen(db, "talk") == ["a", "b", "c", "d", "e"]


def test_message_is_pinned_once_by_any_session_of_its_conversation(db: SessionDB, clock: Clock) -> None:
    conversations.begin(db, "talk", *"abcd")
    child = conversations.compact(db, "talk", 1)
    pinned = db.pin("talk", 3)
    clock.advance(5)
    assert db.pin(child.id, 3) == pinned
    db.pin("talk", 2)
    db.redact("talk", 3)
    assert pinned_seqs(db) == pinned_seqs(db, child.id) == [2, 3]
    assert [db.unpin("talk", seq) for seq in (2, 2, 1, 99)] == [True, False, False, False]
    assert pinned_seqs(db) == [3]


def test_number_of_pins_is_limited(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    db.append_messages("talk", [{"role": "user"}] * (visibility.MAX_PINS + 1))
    for seq in range(1, visibility.MAX_PINS + 1):
        db.pin("talk", seq)
    with pytest.raises(errors.InvalidArgument, match="100 messages are pinned"):
        db.pin("talk", visibility.MAX_PINS + 1)
    with pytest.raises(errors.StoreRefused):
        db.driver.write("pin", lambda tx: tx.run("pin_insert", conversation=1, seq=visibility.MAX_PINS + 1, at=1.0))
    assert db.pin("talk", 7).seq == 7
    db.unpin("talk", 7)
    assert db.pin("talk", visibility.MAX_PINS + 1).seq == visibility.MAX_PINS + 1


def test_compaction_begun_before_a_pin_is_not_committed_after_it(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abc")
    lease = db.acquire_lease("talk", "compact", "me")
    db.pin("talk", 2)
    with pytest.raises(errors.Superseded):
        db.commit_compaction(lease, summary="s", cut_seq=2)
    lease = db.acquire_lease("talk", "compact", "me")
    # Neither a repeated pin nor an unpin hinders one.
    db.pin("talk", 2)
    db.unpin("talk", 2)
    db.commit_compaction(lease, summary="s", cut_seq=2)
    db.undo_compaction("talk")
    before = conversations.contents(db.context("talk"))
    db.pin("talk", 2)
    assert conversations.contents(db.context("talk")) == before
    assert db.redo_compaction("talk").cut_seq == 2


def test_branch_copies_the_pins_up_to_its_fork_point(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abcde")
    for seq in (2, 3, 4):
        db.pin("talk", seq)
    db.branch("talk", 3, branch_id="branch")
    assert db.pins("branch") == db.pins("talk")[:2]
    db.unpin("talk", 2)
    conversations.say(db, "branch", "f")
    db.pin("branch", 4)
    assert (pinned_seqs(db), pinned_seqs(db, "branch")) == ([3, 4], [2, 3, 4])
    db.delete_conversation("branch")
    assert pinned_seqs(db) == [3, 4]
