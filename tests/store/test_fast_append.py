"""The single-statement append: when it is used, and how it predicts the next seq."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import SessionDB, errors, types
from holdfast.store import fault_points, log
from holdfast.store.driver import Row
from holdfast.store.postgres import fast_append, transaction
from holdfast.store.postgres.driver import PostgresDriver
from tests import postgres
from tests.contract import steps
from tests.store import hosts

CANDIDATES = fast_append.CANDIDATES


def receipt(seq: int, duplicate: bool = False) -> types.Receipt:
    return types.Receipt(seq, f"u{seq}", "talk", "talk", 1, None, duplicate, False)


def after(*seqs: int) -> fast_append.Tail | None:
    tails = fast_append.Tails()
    for seq in seqs:
        tails.note("talk", [receipt(seq)])
    return tails._known.get("talk")


def test_single_writer_predicts_one_seq() -> None:
    assert after(1, 2, 3) == fast_append.Tail("talk", 3, 1)


def test_contended_conversation_gets_several_candidates_until_the_others_stop() -> None:
    assert after(1, 5) == fast_append.Tail("talk", 5, CANDIDATES)
    assert after(1, 5, 6, 7) == fast_append.Tail("talk", 7, CANDIDATES - 2)
    assert after(1, *range(5, 6 + CANDIDATES)) == fast_append.Tail("talk", 5 + CANDIDATES, 1)


def test_batch_of_this_process_is_no_contention() -> None:
    tails = fast_append.Tails()
    tails.note("talk", [receipt(3)])
    tails.note("talk", [receipt(4), receipt(5), receipt(4, duplicate=True), receipt(6)])
    assert tails._known["talk"] == fast_append.Tail("talk", 6, 1)


def test_only_so_many_conversations_are_remembered() -> None:
    tails = fast_append.Tails()
    for number in range(fast_append.MAX_CONVERSATIONS + 1):
        tails.note(f"s{number}", [receipt(1)])
    assert "s0" not in tails._known
    assert f"s{fast_append.MAX_CONVERSATIONS}" in tails._known


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
    steps.begin(made, "talk", "a", "b")
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
        steps.begin(db, "other", "x")
        lease = db.acquire_lease("other", "turn")
        with pytest.raises(errors.LeaseLost):
            db.append_message("talk", role="user", content="c", lease=lease)


def test_contended_append_waits_for_the_disk_outside_of_the_lock(pair: hosts.Pair, points: list[str]) -> None:
    steps.begin(pair.one, "talk", "a")
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


def test_append_whose_flush_fails_is_found_by_the_transaction(pair: hosts.Pair, points: list[str]) -> None:
    steps.begin(pair.one, "talk", "a")
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
    assert steps.contents(pair.other.transcript("talk")) == ["a", "x", "x", "x", "x", "y"]


@pytest.fixture
def lost_group(db: SessionDB, monkeypatch: pytest.MonkeyPatch) -> log.AppendRequest:
    """An append whose shared statement was committed, after which the connection was lost."""

    def lose(tx: transaction.Transaction, query: str, /, **values: Any) -> list[Row]:
        rows = execute(tx, query, **values)
        if query == "append_to_each":
            raise errors.StoreUnreachable("here", "lost")
        return rows

    execute = transaction.Transaction.all
    monkeypatch.setattr(transaction.Transaction, "all", lose)
    request = db.append_step("talk", [types.NewMessage(role="user", content="c")])
    assert db.driver.append_to_each([request]) == [None]
    return request


def test_append_of_a_lost_group_is_found_by_the_retry(db: SessionDB, lost_group: log.AppendRequest) -> None:
    with db:
        (receipt,) = db.driver.write("append", lost_group)
        assert (receipt.seq, receipt.duplicate) == (3, True)
        assert steps.contents(db.transcript("talk")) == ["a", "b", "c"]


def test_append_of_a_lost_group_is_never_reported_as_not_written(db: SessionDB, lost_group: log.AppendRequest) -> None:
    with db, postgres.psycopg.connect(db.driver.target) as other:
        other.execute("SELECT 1 FROM conversations FOR UPDATE")
        with pytest.raises(errors.StoreUnreachable):
            db.driver.write("append", lost_group)
