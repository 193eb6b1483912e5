"""The compaction commit: one winner, nothing lost, refused when the view changed since its snapshot; undo and redo."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast import SessionDB, errors, types
from tests.support import backends, conversations
from tests.support.conversations import Clock

Change = Callable[[SessionDB], object]


def test_commit_ends_the_head_and_opens_its_continuation(db: SessionDB, clock: Clock) -> None:
    conversations.begin(db, "talk", "a", "b", title="mine", model="m1")
    db.bind_route("r", "talk", version=0)
    lease = db.acquire_lease("talk", "compact", "one")
    clock.advance(5)
    child = db.commit_compaction(lease, summary="gist", cut_seq=1, child_id="child", model="m2")
    parent = db.get_session("talk")
    assert (parent.end_reason, parent.ended_at, parent.live) == ("compression", conversations.NOON + 5, False)
    assert (child.id, child.parent_session_id, child.conversation_id) == ("child", "talk", "talk")
    assert (child.source, child.model, child.live, child.message_count) == ("test", "m2", True, 0)
    assert db.head("talk") == child == db.continuations("talk")[0]
    assert (child.title, db.route("r")) == ("mine", types.Route("r", "talk", 1))
    assert conversations.compact(db, "talk", 1).model == "m2"
    assert (db.leases(), db.release_lease(lease)) == ([], False)


def test_commit_is_recorded_with_its_base_and_its_snapshot(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abcd")
    lease = db.acquire_lease("talk", "compact")
    db.commit_compaction(lease, summary="one", cut_seq=1, seen_seq=3, pinned=[1, 1], ledger={"asks": ["x"]})
    db.commit_compaction(db.snapshot("talk"), summary="two", cut_seq=4)
    one, two = db.compactions("talk")
    assert (one.epoch, one.base_epoch, one.cut_seq, one.seen_seq, one.token) == (2, None, 1, 3, lease.token)
    assert (one.summary, one.pinned, one.ledger, one.at) == ("one", (1,), {"asks": ["x"]}, conversations.NOON)
    assert (two.epoch, two.base_epoch, two.cut_seq, two.seen_seq, two.token) == (3, 2, 4, 4, None)
    assert db.conversation("talk").compaction_epoch == 3
    with conversations.nothing_changes(db), pytest.raises(errors.InvalidArgument):
        db.commit_compaction(db.snapshot("talk"), summary="less", cut_seq=3)


def test_repeated_commit_returns_its_result(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    lease = db.acquire_lease("talk", "compact")
    first = db.commit_compaction(lease, summary="gist", cut_seq=1, child_id="child")
    with conversations.nothing_changes(db):
        assert db.commit_compaction(lease, summary="gist", cut_seq=1, child_id="child") == first
        with pytest.raises(errors.IdTaken):
            db.commit_compaction(lease.snapshot, summary="gist", cut_seq=1, child_id="child")
    conversations.say(db, "talk", "b")
    conversations.compact(db, "talk", 2)
    with conversations.nothing_changes(db):
        assert db.commit_compaction(lease, summary="gist", cut_seq=1, child_id="child").id == "child"


def test_child_id_of_another_or_deleted_session_is_refused(db: SessionDB) -> None:
    conversations.begin_each(db, ("talk", "other", "gone"), "a")
    db.delete_conversation("gone")
    child = conversations.compact(db, "talk", 0)
    for name, error in (("other", errors.IdTaken), (child.id, errors.IdTaken), ("gone", errors.ConversationDeleted)):
        with conversations.nothing_changes(db), pytest.raises(error):
            db.commit_compaction(db.snapshot("talk"), summary="gist", cut_seq=1, child_id=name)


@pytest.mark.parametrize("beyond", [{"cut_seq": 3}, {"cut_seq": 2, "seen_seq": 3}, {"cut_seq": 2, "seen_seq": 1}])
def test_compaction_cannot_cover_messages_it_did_not_see(db: SessionDB, beyond: dict[str, int]) -> None:
    conversations.begin(db, "talk", "a", "b")
    lease = db.acquire_lease("talk", "compact")
    conversations.say(db, "talk", "c", "d")
    with conversations.nothing_changes(db), pytest.raises(errors.InvalidArgument):
        db.commit_compaction(lease, summary="gist", **beyond)
    db.commit_compaction(lease, summary="gist", cut_seq=2)
    assert conversations.seen(db, "talk") == ["gist", "c", "d"]


HARMLESS: dict[str, Change] = {
    "message": lambda db: conversations.say(db, "talk", "x"),
    "title": lambda db: db.set_session_title("talk", "new"),
    "folder": lambda db: db.set_session_folder("talk", "/work"),
    "metadata": lambda db: db.set_session_metadata("talk", {"a": 1}),
    "budget": lambda db: db.update_budget("talk", 0, {"attempts": 1}),
    "route": lambda db: db.bind_route("r", "talk", version=0),
    "turn": lambda db: db.acquire_lease("talk", "turn"),
    "branch": lambda db: db.branch("talk"),
}


@pytest.mark.parametrize("then", ["commit", "redo"])
@pytest.mark.parametrize("change", HARMLESS)
def test_change_outside_of_the_view_hinders_no_commit_and_no_redo(db: SessionDB, change: str, then: str) -> None:
    conversations.begin(db, "talk", "a", "b")
    conversations.compact(db, "talk", 1, "base")
    db.undo_compaction("talk")
    lease = db.acquire_lease("talk", "compact")
    HARMLESS[change](db)
    assert db.conversation("talk").epoch == 3
    if then == "commit":
        db.renew_lease(lease)
        assert db.commit_compaction(lease, summary="gist", cut_seq=2).live
    else:
        assert db.redo_compaction("talk").summary == "base"


def test_deleted_or_ended_conversation_and_expired_or_turn_lease_cannot_commit(db: SessionDB, clock: Clock) -> None:
    conversations.begin_each(db, ("gone", "ended", "late"), "a")
    expired = db.acquire_lease("late", "compact", ttl=30)
    clock.advance(30)
    lease, turn = db.acquire_lease("gone", "compact"), db.acquire_lease("ended", "turn")
    db.delete_conversation("gone")
    db.end_conversation("ended", "done")
    with conversations.nothing_changes(db):
        for work, error in (
            (lease, errors.ConversationDeleted),
            (expired, errors.LeaseLost),
            (db.snapshot("ended"), errors.Superseded),
            (turn, errors.InvalidArgument),
        ):
            with pytest.raises(error):
                db.commit_compaction(work, summary="gist", cut_seq=1)
    db.renew_lease(turn)


@backends.on_files
@pytest.mark.parametrize("leases", ["sound", *backends.LEASE_BREAKS])
def test_compactors_without_leases_have_one_winner(db: SessionDB, leases: str) -> None:
    conversations.begin(db, "talk", "a", "b")
    if leases != "sound":
        backends.break_leases(db, leases)
    works = [db.snapshot("talk") if leases == "sound" else db.begin_compaction("talk") for _ in range(4)]
    outcomes = conversations.at_once(
        *(lambda work=work: db.commit_compaction(work, summary="gist", cut_seq=2) for work in works)
    )
    (winner,) = [outcome for outcome in outcomes if isinstance(outcome, types.Session)]
    assert [loser.head for loser in outcomes if isinstance(loser, errors.Superseded)] == [winner.id] * 3
    assert len(db.sessions("talk")) == 2


@pytest.mark.parametrize("how", backends.LEASE_BREAKS)
def test_compaction_and_append_work_without_leases(db: SessionDB, how: str, caplog: pytest.LogCaptureFixture) -> None:
    conversations.begin(db, "talk", "a", "b")
    lease = db.begin_compaction("talk", "one")
    assert isinstance(lease, types.Lease)
    with pytest.raises(errors.Busy):
        db.begin_compaction("talk", "two")
    db.release_lease(lease)
    assert not caplog.records
    backends.break_leases(db, how)
    with conversations.nothing_changes(db), pytest.raises(errors.LeasesUnavailable):
        db.acquire_lease("talk", "compact")
    for number in (1, 2):
        work = db.begin_compaction("talk", "me")
        assert isinstance(work, types.Snapshot)
        db.commit_compaction(work, summary=f"gist {number}", cut_seq=number)
    db.append_message("talk", role="assistant", content="c", tool_calls=[types.ToolCall("x")])
    assert conversations.seen(db, "talk")[:2] == ["gist 2", "c"]
    assert db.compactions("talk")[-1].token is None
    assert len([record for record in caplog.records if "holdfast doctor" in record.getMessage()]) == 1


def test_snapshot_commits_a_compaction_without_the_lease_table(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    lease = db.acquire_lease("talk", "compact")
    backends.break_leases(db, "missing")
    with conversations.nothing_changes(db), pytest.raises(errors.LeasesUnavailable):
        db.commit_compaction(lease, summary="gist", cut_seq=1)
    assert db.commit_compaction(lease.snapshot, summary="gist", cut_seq=1).live


VOIDING: dict[str, Change] = {
    "show": lambda db: db.show("talk"),  # the summary was made without the message
    "redaction": lambda db: db.redact("talk", 1),
    "redo": lambda db: db.redo_compaction("talk"),
}


@pytest.mark.parametrize("change", VOIDING)
def test_redo_is_void_after_a_change_of_the_view(db: SessionDB, change: str) -> None:
    conversations.begin(db, "talk", *"abcd")
    db.hide("talk", 3, 3)
    conversations.compact(db, "talk", 3)
    db.undo_compaction("talk")
    VOIDING[change](db)
    with conversations.nothing_changes(db), pytest.raises(errors.NothingToUndo):
        db.redo_compaction("talk")
