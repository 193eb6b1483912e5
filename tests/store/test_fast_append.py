"""The single-statement append: when it is used, and how it predicts the next seq."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import SessionDB, errors, fault_points, types
from holdfast.store import log
from holdfast.store.driver import Row
from holdfast.store.postgres import fast_append, transaction
from holdfast.store.postgres.driver import PostgresDriver
from tests.support import conversations, postgres, two_hosts

CANDIDATES = fast_append.CANDIDATES


def after(*seqs: int) -> fast_append.LogTail | None:
    tails = fast_append.TailCache()
    for seq in seqs:
        tails.record_append("talk", seq, seq)
    return tails._tails.get("talk")


def test_single_writer_predicts_one_seq() -> None:
    assert after(1, 2, 3) == fast_append.LogTail(3, 1)


def test_contended_conversation_gets_several_candidates_until_the_others_stop() -> None:
    assert after(1, 5) == fast_append.LogTail(5, CANDIDATES)
    assert after(1, 5, 6, 7) == fast_append.LogTail(7, CANDIDATES - 2)
    assert after(1, *range(5, 6 + CANDIDATES)) == fast_append.LogTail(5 + CANDIDATES, 1)


def test_batch_of_this_process_is_no_contention() -> None:
    tails = fast_append.TailCache()
    tails.record_append("talk", 3, 3)
    tails.record_append("talk", 4, 6)
    assert tails._tails["talk"] == fast_append.LogTail(6, 1)


def test_only_so_many_conversations_are_remembered() -> None:
    tails = fast_append.TailCache()
    for number in range(fast_append.MAX_CONVERSATIONS + 1):
        tails.record_session(f"s{number}", types.Receipt(1, "u", f"s{number}", f"c{number}", 1, None, False, False))
    assert "s0" not in tails._conversations
    assert "c0" not in tails._tails
    assert f"s{fast_append.MAX_CONVERSATIONS}" in tails._conversations
    assert f"c{fast_append.MAX_CONVERSATIONS}" in tails._tails


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The points that were reached; those of a transaction begin with `append.begun`."""
    reached: list[str] = []
    monkeypatch.setattr(fault_points, "hook", reached.append)
    return reached


FAST = ["append.queued", "append.committing", "append.committed"]
SHARED = ["append.queued", "append.committing", "append.flushing", "append.committed"]


@pytest.fixture
def db() -> SessionDB:
    made = SessionDB(postgres.fresh(), write_timeout=2.0)
    conversations.begin(made, "talk", "a", "b")
    return made


def test_plain_append_is_one_statement(db: SessionDB, points: list[str]) -> None:
    with db:
        assert db.append_message("talk", role="user", content="c").seq == 3
        assert points == FAST


@pytest.mark.parametrize("opened", ["the process that appended", "another one"])
def test_append_under_a_turn_lease_is_one_statement(db: SessionDB, points: list[str], opened: str) -> None:
    with db, SessionDB(db.driver.target) as other:
        turn = db if opened == "the process that appended" else other
        lease = turn.acquire_lease("talk", "turn")
        points.clear()
        for number in (3, 4):
            assert turn.append_message("talk", role="user", content="c", lease=lease).seq == number
        assert points == FAST * 2
        assert db.admin.fsck().ok


def test_append_after_a_step_that_appended_is_one_statement(db: SessionDB, points: list[str]) -> None:
    with db:
        requests = [log.AppendRequest("talk", [types.NewMessage(role="user", content=text)], 1.0) for text in "cd"]
        db.driver.write("group", lambda tx: [request(tx) for request in requests])
        points.clear()
        assert [db.append_message("talk", role="user", content=text).seq for text in "ef"] == [5, 6]
        assert points == FAST * 2


def test_appends_by_several_ids_of_a_conversation_are_one_statement_each(db: SessionDB, points: list[str]) -> None:
    with db:
        child = db.commit_compaction(db.snapshot("talk"), summary="gist", cut_seq=1).id
        for name in (child, "talk"):
            db.append_message(name, role="user", content="c")
        points.clear()
        for name in (child, "talk", child, "talk"):
            db.append_message(name, role="user", content="d")
        assert points == FAST * 4


def test_append_under_a_lease_that_was_released_is_refused(db: SessionDB) -> None:
    with db:
        lease = db.acquire_lease("talk", "turn", "me")
        db.append_message("talk", role="user", content="c", lease=lease)
        db.release_lease(lease)
        with pytest.raises(errors.LeaseLost):
            db.append_message("talk", role="user", content="d", lease=lease)
        again = db.acquire_lease("talk", "turn", "me")
        for lost in (lease, types.Lease(again.snapshot, "turn", again.token, "another", 30.0)):
            with pytest.raises(errors.LeaseLost):
                db.append_message("talk", role="user", content="d", lease=lost)
        assert db.append_message("talk", role="user", content="d", lease=again).seq == 4


def test_lease_of_another_conversation_is_refused(db: SessionDB) -> None:
    with db:
        conversations.begin(db, "other", "x")
        lease = db.acquire_lease("other", "turn")
        with pytest.raises(errors.LeaseLost):
            db.append_message("talk", role="user", content="c", lease=lease)


def test_contended_append_waits_for_the_disk_outside_of_the_lock(pair: two_hosts.Pair, points: list[str]) -> None:
    conversations.begin(pair.one, "talk", "a")
    for number in range(4):
        for each in (pair.one, pair.other):
            points.clear()
            each.append_message("talk", role="user", content=str(number))
    assert points == SHARED
    assert pair.one.admin.fsck().ok


def test_stored_uid_and_ended_conversation_take_the_transaction(db: SessionDB, points: list[str]) -> None:
    with db:
        db.append_message("talk", role="user", content="c", uid="u")
        points.clear()
        assert db.append_message("talk", role="user", content="c", uid="u").duplicate
        assert points[:2] + points[2:4] == ["append.queued", "append.committing", "append.queued", "append.begun"]
        db.end_conversation("talk", "done")
        assert db.append_message("talk", role="user", content="d").resumed


# --- outcomes that are unknown ---------------------------------------------------------------------------


def test_append_whose_flush_fails_is_found_by_the_transaction(pair: two_hosts.Pair, points: list[str]) -> None:
    conversations.begin(pair.one, "talk", "a")
    for each in (pair.one, pair.other) * 2:
        each.append_message("talk", role="user", content="x")
    # The append is committed already: StoreBusy, as which a cancelled statement is reported, would deny it.
    driver = pair.one.driver
    assert isinstance(driver, PostgresDriver)
    driver._sql["flush_wal"] = "SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(60)"
    points.clear()
    receipt = pair.one.append_message("talk", role="user", content="y")
    assert (receipt.seq, receipt.duplicate) == (6, True)
    assert points[2:5] == ["append.flushing", "append.queued", "append.begun"]
    assert conversations.contents(pair.other.transcript("talk")) == ["a", "x", "x", "x", "x", "y"]


@pytest.fixture
def lost_group(db: SessionDB, monkeypatch: pytest.MonkeyPatch) -> log.AppendRequest:
    """An append whose shared statement was committed, after which the connection was lost."""

    def lose(tx: transaction.PostgresTransaction, query: str, /, **values: Any) -> list[Row]:
        rows = execute(tx, query, **values)
        if query == "append_to_each":
            raise errors.StoreUnreachable("here", "lost")
        return rows

    execute = transaction.PostgresTransaction.all
    monkeypatch.setattr(transaction.PostgresTransaction, "all", lose)
    request = log.AppendRequest("talk", [types.NewMessage(role="user", content="c")], 1.0)
    assert db.driver.append_to_each([request]) == [None]
    return request


def test_append_of_a_lost_group_is_found_by_the_retry(db: SessionDB, lost_group: log.AppendRequest) -> None:
    with db:
        (receipt,) = db.driver.write("append", lost_group)
        assert (receipt.seq, receipt.duplicate) == (3, True)
        assert conversations.contents(db.transcript("talk")) == ["a", "b", "c"]


def test_append_of_a_lost_group_is_never_reported_as_not_written(db: SessionDB, lost_group: log.AppendRequest) -> None:
    with db, postgres.psycopg.connect(db.driver.target) as other:
        other.execute("SELECT 1 FROM conversations FOR UPDATE")
        with pytest.raises(errors.StoreUnreachable):
            db.driver.write("append", lost_group)
