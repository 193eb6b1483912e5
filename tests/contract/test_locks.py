"""The lock-named calls: thin views on the compaction lease, for callers that know their own name only."""

from __future__ import annotations

import pytest

from holdfast import SessionDB, errors
from tests.contract.conftest import MakeDb
from tests.support import backends, conversations


def test_lock_is_taken_refused_to_others_and_freed(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    assert db.try_acquire_compression_lock("talk", "one") is True
    assert db.try_acquire_compression_lock("talk", "two") is False
    assert db.get_compression_lock_holder("talk") == "one"
    assert db.release_compression_lock("talk", "two") is False
    assert db.release_compression_lock("talk", "one") is True
    assert db.get_compression_lock_holder("talk") is None
    assert db.try_acquire_compression_lock("talk", "two") is True


def test_lock_lasts_300_seconds_unless_told(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "talk")
    db.try_acquire_compression_lock("talk", "one")
    clock.advance(299)
    assert db.get_compression_lock_holder("talk") == "one"
    assert not db.try_acquire_compression_lock("talk", "two")
    clock.advance(1)
    assert db.get_compression_lock_holder("talk") is None
    assert db.try_acquire_compression_lock("talk", "two", ttl_seconds=5)
    clock.advance(5)
    assert db.get_compression_lock_holder("talk") is None


def test_refreshed_lock_lasts_on(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "talk")
    db.try_acquire_compression_lock("talk", "one", ttl_seconds=10)
    for _ in range(4):
        clock.advance(9)
        assert db.refresh_compression_lock("talk", "one", ttl_seconds=10) is True
    clock.advance(10)
    assert db.refresh_compression_lock("talk", "one") is False


def test_only_the_holder_refreshes(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    assert db.refresh_compression_lock("talk", "one") is False
    db.try_acquire_compression_lock("talk", "one")
    assert db.refresh_compression_lock("talk", "two") is False


def test_holder_may_ask_again(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    assert db.try_acquire_compression_lock("talk", "one")
    assert db.try_acquire_compression_lock("talk", "one")
    assert db.release_compression_lock("talk", "one")
    assert db.get_compression_lock_holder("talk") is None


def test_lock_and_lease_are_the_same_thing(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    lease = db.acquire_lease("talk", "compact", "one")
    assert db.get_compression_lock_holder("talk") == "one"
    assert not db.try_acquire_compression_lock("talk", "two")
    db.commit_compaction(lease, summary="gist", cut_seq=1)
    assert db.get_compression_lock_holder("talk") is None
    db.try_acquire_compression_lock("talk", "two")
    with pytest.raises(errors.Busy):
        db.acquire_lease("talk", "compact", "one")


def test_turn_lease_is_no_compression_lock(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    db.acquire_lease("talk", "turn", "one")
    assert db.get_compression_lock_holder("talk") is None
    assert db.try_acquire_compression_lock("talk", "two")


def test_any_session_id_names_the_same_lock(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    head = conversations.compact(db, "talk", 1)
    db.try_acquire_compression_lock("talk", "one")
    assert db.get_compression_lock_holder(head.id) == "one"
    assert db.release_compression_lock(head.id, "one")


def test_holder_is_the_very_text_that_was_given(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    name = "pid=42 'quoted' \"and\" {json: 1} ü"
    db.try_acquire_compression_lock("talk", name)
    assert db.get_compression_lock_holder("talk") == name


def test_lock_of_a_dead_process_is_free(make_db: MakeDb) -> None:
    db = make_db()
    conversations.begin(db, "talk")
    with conversations.held_elsewhere(db, "talk", ttl=3600) as process:
        assert db.get_compression_lock_holder("talk") == "elsewhere"
        assert not db.try_acquire_compression_lock("talk", "me")
        process.kill()
        process.wait()
        assert db.get_compression_lock_holder("talk") is None
        assert db.try_acquire_compression_lock("talk", "me")


def test_racing_callers_have_one_winner(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    calls = [lambda name=name: db.try_acquire_compression_lock("talk", name) for name in "abcdef"]
    assert sorted(conversations.at_once(*calls)) == [False] * 5 + [True]


@pytest.mark.parametrize("how", backends.LEASE_BREAKS)
def test_callers_go_on_without_leases_and_are_told_once(
    db: SessionDB, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    conversations.begin(db, "talk", "a")
    backends.break_leases(db, how)
    assert db.try_acquire_compression_lock("talk", "one") is True
    db.refresh_compression_lock("talk", "one")
    assert db.get_compression_lock_holder("talk") is None
    assert db.release_compression_lock("talk", "one") is False
    assert db.end_session("talk", "compression")
    assert db.create_session("child", source="test", parent_session_id="talk").live
    with pytest.raises(errors.ForkRefused):
        db.create_session("second", source="test", parent_session_id="talk")
    assert len([record for record in caplog.records if "holdfast doctor" in record.getMessage()]) == 1


@pytest.mark.parametrize("holder", ["", "a\nb", "x" * 201, None, 5, b"one", ["one"]])
def test_holder_without_a_proper_name_is_refused(db: SessionDB, holder: object) -> None:
    conversations.begin(db, "talk")
    for call in (db.try_acquire_compression_lock, db.refresh_compression_lock, db.release_compression_lock):
        with pytest.raises(errors.InvalidArgument):
            call("talk", holder)
    assert db.get_compression_lock_holder("talk") is None


def test_unknown_session_has_no_lock(db: SessionDB) -> None:
    for call in (db.try_acquire_compression_lock, db.refresh_compression_lock, db.release_compression_lock):
        with pytest.raises(errors.NoSuchSession):
            call("nobody", "one")
    with pytest.raises(errors.NoSuchSession):
        db.get_compression_lock_holder("nobody")
