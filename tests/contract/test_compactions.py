"""The compaction commit: one winner, nothing lost, and everything it could not see refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast import SessionDB, errors, types
from holdfast.store import conversation_row
from tests.support import backends, conversations


def test_commit_ends_the_head_and_opens_its_continuation(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "talk", "a", "b")
    lease = db.acquire_lease("talk", "compact")
    clock.advance(5)
    child = db.commit_compaction(lease, summary="gist", cut_seq=1, child_id="child", model="m2")
    parent = db.get_session("talk")
    assert (parent.end_reason, parent.ended_at, parent.live) == ("compression", conversations.NOON + 5, False)
    assert (child.id, child.parent_session_id, child.conversation_id) == ("child", "talk", "talk")
    assert (child.source, child.model, child.live, child.message_count) == ("test", "m2", True, 0)
    assert db.head("talk") == child == db.continuations("talk")[0]


def test_commit_is_recorded_with_all_it_stood_on(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abcd")
    lease = db.acquire_lease("talk", "compact")
    db.commit_compaction(lease, summary="one", cut_seq=1, seen_seq=3, pinned=[1, 1], ledger={"asks": ["x"]})
    db.commit_compaction(db.snapshot("talk"), summary="two", cut_seq=4)
    one, two = db.compactions("talk")
    assert (one.epoch, one.base_epoch, one.cut_seq, one.seen_seq, one.token) == (2, None, 1, 3, lease.token)
    assert (one.summary, one.pinned, one.ledger, one.at) == ("one", (1,), {"asks": ["x"]}, conversations.NOON)
    assert (two.epoch, two.base_epoch, two.cut_seq, two.seen_seq, two.token) == (3, 2, 4, 4, None)
    assert db.conversation("talk").compaction_epoch == 3


def test_the_lease_is_free_after_the_commit(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    lease = db.acquire_lease("talk", "compact", "one")
    db.commit_compaction(lease, summary="gist", cut_seq=1)
    assert db.leases() == []
    assert not db.release_lease(lease)
    db.acquire_lease("talk", "compact", "two")


def test_model_of_the_parent_is_kept_unless_another_is_named(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a", model="m1")
    assert conversations.compact(db, "talk", 1).model == "m1"
    assert conversations.compact(db, "talk", 1, model="m2").model == "m2"


def test_title_and_routes_are_untouched(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a", title="mine")
    db.bind_route("r", "talk", version=0)
    child = conversations.compact(db, "talk", 1)
    assert (child.title, db.route("r")) == ("mine", types.Route("r", "talk", 1))


def test_repeated_commit_finds_its_result(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    lease = db.acquire_lease("talk", "compact")
    first = db.commit_compaction(lease, summary="gist", cut_seq=1, child_id="child")
    with conversations.nothing_changes(db):
        assert db.commit_compaction(lease, summary="gist", cut_seq=1, child_id="child") == first


def test_repeated_commit_finds_its_result_after_more_has_happened(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    lease = db.acquire_lease("talk", "compact")
    db.commit_compaction(lease, summary="gist", cut_seq=1, child_id="child")
    conversations.say(db, "talk", "b")
    conversations.compact(db, "talk", 2)
    with conversations.nothing_changes(db):
        assert db.commit_compaction(lease, summary="gist", cut_seq=1, child_id="child").id == "child"


def test_child_id_of_something_else_is_refused(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    conversations.begin(db, "other", "b")
    with conversations.nothing_changes(db), pytest.raises(errors.IdTaken):
        db.commit_compaction(db.snapshot("talk"), summary="gist", cut_seq=1, child_id="other")


def test_child_id_of_a_deleted_session_is_refused(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    conversations.begin(db, "gone", "b")
    db.delete_conversation("gone")
    with conversations.nothing_changes(db), pytest.raises(errors.ConversationDeleted):
        db.commit_compaction(db.snapshot("talk"), summary="gist", cut_seq=1, child_id="gone")


def test_cut_never_goes_back(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abc")
    conversations.compact(db, "talk", 2)
    with conversations.nothing_changes(db), pytest.raises(errors.InvalidArgument):
        conversations.compact_without_lease(db, "talk", 1)
    conversations.compact(db, "talk", 2)


def test_pinned_messages_lie_before_the_cut(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abc")
    for pinned in ([3], [0], [-1]):
        with conversations.nothing_changes(db), pytest.raises(errors.InvalidArgument):
            conversations.compact_without_lease(db, "talk", 2, pinned=pinned)


def test_turn_lease_commits_no_compaction(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    turn = db.acquire_lease("talk", "turn")
    with conversations.nothing_changes(db), pytest.raises(errors.InvalidArgument):
        db.commit_compaction(turn, summary="gist", cut_seq=1)
    db.renew_lease(turn)


# --- what happened between snapshot and commit ---------------------------------------------------------

Change = Callable[[SessionDB], object]

CHANGES: dict[str, Change] = {
    "end_session": lambda db: db.end_session(db.head("talk").id, "done"),
    "end_conversation": lambda db: db.end_conversation("talk", "done"),
    "resume": lambda db: (db.end_conversation("talk", "done"), db.resume("talk")),
    "undo": lambda db: db.undo_compaction("talk"),
    "undo and redo": lambda db: (db.undo_compaction("talk"), db.redo_compaction("talk")),
    "hide": lambda db: db.hide("talk", 4),
    "hide and show": lambda db: (db.hide("talk", 4), db.show("talk")),
    "redact": lambda db: db.redact("talk", 1),
    "compaction": lambda db: conversations.compact_without_lease(db, "talk", 4),
    "message after an end": lambda db: (db.end_conversation("talk", "done"), conversations.say(db, "talk", "x")),
}


@pytest.mark.parametrize("leased", [True, False], ids=["lease", "snapshot"])
@pytest.mark.parametrize("change", CHANGES)
def test_change_of_head_end_or_view_refuses_the_commit(db: SessionDB, change: str, leased: bool) -> None:
    conversations.begin(db, "talk", *"abcd")
    conversations.compact(db, "talk", 2, "base")
    work = db.acquire_lease("talk", "compact") if leased else db.snapshot("talk")
    CHANGES[change](db)
    with conversations.nothing_changes(db), pytest.raises(errors.Superseded) as refusal:
        db.commit_compaction(work, summary="gist", cut_seq=3)
    now = db.conversation("talk")
    assert (refusal.value.head, refusal.value.epoch) == (now.head_id, now.epoch)


HARMLESS: dict[str, Change] = {
    "message": lambda db: conversations.say(db, "talk", "x"),
    "title": lambda db: db.set_session_title("talk", "new"),
    "route": lambda db: db.bind_route("r", "talk", version=0),
    "turn": lambda db: db.acquire_lease("talk", "turn"),
    "branch": lambda db: db.branch("talk"),
    "renewal": lambda db: None,
}


def test_commit_whose_conversation_update_matches_no_row_writes_nothing(
    db: SessionDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversations.begin(db, "talk", "a")
    before = db.conversation("talk"), db.sessions("talk"), db.compactions("talk")
    require = conversation_row.require

    def require_other_epoch(*args: Any) -> conversation_row.ConversationRow:
        return require(*args)._replace(epoch=snapshot.epoch)

    snapshot = msgspec.structs.replace(db.snapshot("talk"), epoch=7)
    with monkeypatch.context() as patched:
        patched.setattr(conversation_row, "require", require_other_epoch)
        with pytest.raises((errors.Superseded, errors.StoreRefused)):
            db.commit_compaction(snapshot, summary="gist", cut_seq=1, child_id="child")
    assert (db.conversation("talk"), db.sessions("talk"), db.compactions("talk")) == before
    assert db.get_session("child") is None
    assert db.admin.fsck().ok


@pytest.mark.parametrize("change", HARMLESS)
def test_what_changes_no_view_hinders_no_commit(db: SessionDB, change: str) -> None:
    conversations.begin(db, "talk", "a", "b")
    lease = db.acquire_lease("talk", "compact")
    HARMLESS[change](db)
    db.renew_lease(lease)
    assert db.commit_compaction(lease, summary="gist", cut_seq=2).live


def test_deletion_refuses_the_commit(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    lease = db.acquire_lease("talk", "compact")
    db.delete_conversation("talk")
    with pytest.raises(errors.ConversationDeleted):
        db.commit_compaction(lease, summary="gist", cut_seq=1)


def test_ended_conversation_cannot_be_compacted(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    db.end_conversation("talk", "done")
    with conversations.nothing_changes(db), pytest.raises(errors.Superseded):
        db.commit_compaction(db.snapshot("talk"), summary="gist", cut_seq=1)


def test_stale_holder_cannot_commit(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "talk", "a")
    lease = db.acquire_lease("talk", "compact", "slow", ttl=30)
    clock.advance(30)
    with conversations.nothing_changes(db), pytest.raises(errors.LeaseLost):
        db.commit_compaction(lease, summary="gist", cut_seq=1)


def test_overtaken_holder_cannot_commit_and_the_new_one_can(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "talk", "a")
    slow = db.acquire_lease("talk", "compact", "slow", ttl=30)
    clock.advance(31)
    fast = db.acquire_lease("talk", "compact", "fast")
    with conversations.nothing_changes(db), pytest.raises(errors.LeaseLost):
        db.commit_compaction(slow, summary="gist", cut_seq=1)
    db.commit_compaction(fast, summary="gist", cut_seq=1)
    with conversations.nothing_changes(db), pytest.raises(errors.LeaseLost):
        db.commit_compaction(slow, summary="gist", cut_seq=1)


def test_released_lease_cannot_commit(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    lease = db.acquire_lease("talk", "compact")
    db.release_lease(lease)
    with conversations.nothing_changes(db), pytest.raises(errors.LeaseLost):
        db.commit_compaction(lease, summary="gist", cut_seq=1)


def test_turn_that_begins_during_a_compaction_hinders_neither(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a", "b")
    compaction = db.acquire_lease("talk", "compact")
    turn = db.acquire_lease("talk", "turn")
    db.append_message("talk", role="user", content="c", lease=turn)
    child = db.commit_compaction(compaction, summary="gist", cut_seq=2)
    receipt = db.append_message("talk", role="user", content="d", lease=turn)
    assert (receipt.session_id, receipt.moved_from) == (child.id, "talk")
    assert conversations.seen(db, "talk") == ["gist", "c", "d"]


# --- two compactors ------------------------------------------------------------------------------------


def test_two_compactors_with_leases_make_one_summary(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a", "b")
    summaries: list[str] = []
    asked = threading.Barrier(2)

    def compactor(name: str) -> types.Session:
        try:
            lease = db.acquire_lease("talk", "compact", name)
        finally:
            asked.wait()
        summaries.append(name)
        return db.commit_compaction(lease, summary=name, cut_seq=2)

    outcomes = conversations.at_once(lambda: compactor("one"), lambda: compactor("two"))
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Busy", "Session"]
    assert len(summaries) == 1
    assert len(db.continuations("talk")) == 1
    assert db.get_compression_lock_holder("talk") is None


def test_two_compactors_without_leases_have_one_winner(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a", "b")
    work = db.snapshot("talk")
    calls = [lambda: db.commit_compaction(work, summary="gist", cut_seq=2)] * 4
    outcomes = conversations.at_once(*calls)
    winners = [outcome for outcome in outcomes if isinstance(outcome, types.Session)]
    assert len(winners) == 1
    losers = [outcome for outcome in outcomes if isinstance(outcome, errors.Superseded)]
    assert {loser.head for loser in losers} == {winners[0].id}
    assert (len(losers), len(db.sessions("talk"))) == (3, 2)


def test_compactors_appenders_and_enders_together_lose_nothing(db: SessionDB) -> None:
    conversations.begin(db, "talk", "0")

    def compactor() -> None:
        for _ in range(10):
            work = db.snapshot("talk")
            try:
                db.commit_compaction(work, summary="gist", cut_seq=work.last_seq)
            except errors.Superseded:
                continue

    def appender(name: str) -> None:
        for number in range(15):
            conversations.say(db, "talk", f"{name}{number}")

    def ender() -> None:
        for _ in range(5):
            db.end_conversation("talk", "done")
            db.resume("talk")

    conversations.at_once(compactor, compactor, ender, lambda: appender("x"), lambda: appender("y"))
    log = conversations.contents(db.transcript("talk"))
    assert sorted(log) == sorted(["0", *(f"{name}{number}" for name in "xy" for number in range(15))])
    assert [session.ordinal for session in db.sessions("talk")] == list(range(1, len(db.sessions("talk")) + 1))


# --- without leases ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", backends.LEASE_BREAKS)
def test_broken_leases_do_not_stop_a_compaction(db: SessionDB, how: str, caplog: pytest.LogCaptureFixture) -> None:
    conversations.begin(db, "talk", "a", "b")
    backends.break_leases(db, how)
    for number in (1, 2):
        work = db.begin_compaction("talk", "me")
        assert isinstance(work, types.Snapshot)
        db.commit_compaction(work, summary=f"gist {number}", cut_seq=number)
    assert conversations.seen(db, "talk") == ["gist 2"]
    assert db.compactions("talk")[-1].token is None
    assert len([record for record in caplog.records if "holdfast doctor" in record.getMessage()]) == 1


@pytest.mark.parametrize("how", backends.LEASE_BREAKS)
def test_broken_leases_allow_no_fork(db: SessionDB, how: str) -> None:
    conversations.begin(db, "talk", "a", "b")
    backends.break_leases(db, how)
    works = [db.begin_compaction("talk") for _ in range(3)]
    outcomes = conversations.at_once(
        *(lambda work=work: db.commit_compaction(work, summary="gist", cut_seq=2) for work in works)
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Session", "Superseded", "Superseded"]
    assert len(db.sessions("talk")) == 2


def test_working_leases_are_used(db: SessionDB, caplog: pytest.LogCaptureFixture) -> None:
    conversations.begin(db, "talk", "a")
    assert isinstance(db.begin_compaction("talk", "one"), types.Lease)
    with pytest.raises(errors.Busy):
        db.begin_compaction("talk", "two")
    assert not caplog.records


@pytest.mark.parametrize("how", backends.LEASE_BREAKS)
def test_messages_are_accepted_and_read_while_leases_are_broken(db: SessionDB, how: str) -> None:
    conversations.begin(db, "talk", "a")
    backends.break_leases(db, how)
    calls = [types.ToolCall("c")]
    db.append_message("talk", role="assistant", content="b", tool_calls=calls)
    assert len(db.context("talk")) == 3


def test_leases_that_broke_under_way_leave_the_commit_to_the_snapshot(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    lease = db.acquire_lease("talk", "compact")
    backends.break_leases(db, "missing")
    with conversations.nothing_changes(db), pytest.raises(errors.LeasesUnavailable):
        db.commit_compaction(lease, summary="gist", cut_seq=1)
    db.commit_compaction(lease.snapshot, summary="gist", cut_seq=1)
