"""Pins: kept once, within limits, taken along by branches, gone with their conversation, unknown to no compaction."""

from __future__ import annotations

import io

import pytest

from holdfast import SessionDB, errors
from holdfast.store import visibility
from tests.support import conversations


def seqs(db: SessionDB, session_id: str = "talk") -> list[int]:
    return [each.seq for each in db.pins(session_id)]


def test_a_message_is_pinned_once_by_any_session_of_its_conversation(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "talk", *"abcd")
    child = conversations.compact(db, "talk", 1)
    pinned = db.pin("talk", 3)
    clock.advance(5)
    assert db.pin(child.id, 3) == pinned
    db.pin("talk", 2)
    assert seqs(db) == seqs(db, child.id) == [2, 3]


def test_an_unpinned_message_is_not_pinned_any_more(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abc")
    db.pin("talk", 2)
    assert [db.unpin("talk", seq) for seq in (2, 2, 1, 99)] == [True, False, False, False]
    assert db.pins("talk") == []


def test_only_messages_that_are_there_can_be_pinned(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abc")
    with conversations.nothing_changes(db):
        for seq in (0, 4, 2**40):
            with pytest.raises(errors.InvalidArgument):
                db.pin("talk", seq)
    with pytest.raises(errors.NoSuchSession):
        db.pins("nobody")


def test_a_conversation_has_100_pins_and_not_one_more(db: SessionDB) -> None:
    conversations.begin(db, "talk", *map(str, range(visibility.MAX_PINS + 1)))
    for seq in range(1, visibility.MAX_PINS + 1):
        db.pin("talk", seq)
    with pytest.raises(errors.InvalidArgument, match="100 messages are pinned"):
        db.pin("talk", visibility.MAX_PINS + 1)
    with pytest.raises(errors.StoreRefused):
        db.driver.write("pin", lambda tx: tx.run("pin_insert", conversation=1, seq=visibility.MAX_PINS + 1, at=1.0))
    assert db.pin("talk", 7).seq == 7
    db.unpin("talk", 7)
    assert db.pin("talk", visibility.MAX_PINS + 1).seq == visibility.MAX_PINS + 1


def test_a_compaction_begun_before_a_pin_is_not_committed_after_it(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abc")
    lease = db.acquire_lease("talk", "compact", "me")
    db.pin("talk", 2)
    with pytest.raises(errors.Superseded):
        db.commit_compaction(lease, summary="s", cut_seq=2)
    db.release_lease(lease)
    lease = db.acquire_lease("talk", "compact", "me")
    # Neither what was pinned already nor an unpin hinders one.
    db.pin("talk", 2)
    db.unpin("talk", 2)
    db.commit_compaction(lease, summary="s", cut_seq=2)


def test_a_pin_changes_nothing_of_what_is_read_and_voids_no_redo(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abc")
    conversations.compact(db, "talk", 2)
    db.undo_compaction("talk")
    before = conversations.contents(db.context("talk"))
    db.pin("talk", 2)
    assert conversations.contents(db.context("talk")) == before
    assert db.redo_compaction("talk").cut_seq == 2


def test_a_branch_takes_the_pins_up_to_its_fork_point(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abcde")
    for seq in (2, 3, 4):
        db.pin("talk", seq)
    db.branch("talk", 3, branch_id="branch")
    assert db.pins("branch") == db.pins("talk")[:2]
    # From there on each has its own.
    db.unpin("talk", 2)
    conversations.say(db, "branch", "f")
    db.pin("branch", 4)
    assert (seqs(db), seqs(db, "branch")) == ([3, 4], [2, 3, 4])
    assert db.admin.fsck().ok


def test_pins_go_with_their_conversation_and_no_other(db: SessionDB) -> None:
    for name in ("talk", "other"):
        conversations.begin(db, name, *"ab")
        db.pin(name, 1)
    db.delete_conversation("talk")
    assert seqs(db, "other") == [1]
    assert db.admin.fsck().ok


def test_a_redacted_message_stays_pinned(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"ab")
    db.pin("talk", 1)
    db.redact("talk", 1)
    assert seqs(db) == [1]
    assert db.admin.fsck().ok


def test_pins_are_not_exported(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"ab")
    db.pin("talk", 1)
    told = io.StringIO()
    db.admin.export_to(told)
    with SessionDB(":memory:") as other:
        told.seek(0)
        other.admin.import_from(told)
        assert other.pins("talk") == []
        assert other.admin.fsck().ok
