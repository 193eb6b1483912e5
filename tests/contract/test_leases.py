"""Leases of conversations and chats: one holder at a time, growing tokens, takeover from expired and dead holders."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from holdfast import SessionDB, errors, types
from tests.support import backends, conversations, mail, polling
from tests.support.backends import MakeDb
from tests.support.conversations import Clock


def test_lease_carries_the_snapshot_of_its_acquisition(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a", "b")
    head = conversations.compact(db, "talk", 1)
    with conversations.nothing_changes(db):
        lease = db.acquire_lease("talk", "compact", "me", 12)
    assert lease.snapshot == types.Snapshot("talk", head.id, 2, 2)
    assert (lease.conversation_id, lease.purpose, lease.holder, lease.ttl) == ("talk", "compact", "me", 12)
    conversations.say(db, "talk", "c")
    with conversations.nothing_changes(db):
        db.renew_lease(lease)
    assert (lease.snapshot.last_seq, db.leases()[0].snap_seq) == (2, 2)


def test_lease_lasts_30_seconds_by_default_and_is_taken_over_then(db: SessionDB, clock: Clock) -> None:
    conversations.begin(db, "talk")
    old = db.acquire_lease("talk", "compact", "one")
    clock.advance(29.9)
    with pytest.raises(errors.Busy):
        db.acquire_lease("talk", "compact", "two")
    clock.advance(0.1)
    assert db.leases()[0].state == "expired"
    with pytest.raises(errors.LeaseLost):
        db.renew_lease(old)
    new = db.acquire_lease("talk", "compact", "two")
    impostor = types.Lease(new.snapshot, "compact", new.token, "another", 30)
    assert new.token > old.token
    for lost in (old, impostor):
        with pytest.raises(errors.LeaseLost):
            db.renew_lease(lost)
    assert not db.release_lease(old)
    db.renew_lease(new)


HOLDER = """
import sys
from holdfast import SessionDB
db = SessionDB(sys.argv[1], durability="process-crash")
db.acquire_lease("talk", "compact", "elsewhere", 3600.0)
db.mail.acquire_chat_lease("k", 3600.0, "elsewhere")
print("held", flush=True)
sys.stdin.read()
"""


def test_leases_and_lock_of_a_dead_holder_are_free_at_once(make_db: MakeDb) -> None:
    db = make_db(clock=None)
    conversations.begin(db, "talk")
    command = [sys.executable, "-c", HOLDER, db.driver.path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        for acquire in (lambda: db.acquire_lease("talk", "compact"), lambda: db.mail.acquire_chat_lease("k")):
            with pytest.raises(errors.Busy) as refusal:
                acquire()
            assert (refusal.value.holder, 3000 < refusal.value.expires_in <= 3600) == ("elsewhere", True)
        assert db.get_compression_lock_holder("talk") == "elsewhere"
        assert not db.try_acquire_compression_lock("talk", "me")
        process.kill()
        # Its output ends when it has died; its parent has not waited for it yet.
        assert process.stdout.read() == ""
        polling.until(lambda: db.leases()[0].state == db.mail.chat_leases()[0].state == "dead")
        assert db.get_compression_lock_holder("talk") is None
        assert db.acquire_lease("talk", "compact", "me").token == 2
        assert db.mail.acquire_chat_lease("k").token == (1 << 32) + 2


def test_stale_leases_are_freed_and_held_ones_stay(db: SessionDB, clock: Clock) -> None:
    conversations.begin(db, "talk")
    db.acquire_lease("talk", "compact", "one", 10)
    db.acquire_lease("talk", "turn", "two", 30)
    clock.advance(10)
    assert db.admin.free_stale_leases() == 1
    assert [lease.holder for lease in db.leases()] == ["two"]


def test_abandoned_lease_is_acquired_again_by_its_process_only(make_db: MakeDb) -> None:
    db, other = make_db(), make_db()
    conversations.begin(db, "talk", "a")
    first = db.acquire_lease("talk", "turn")
    db.lease_failures.abandon(first, RuntimeError("broken"))
    with pytest.raises(errors.Busy):
        other.acquire_lease("talk", "turn")
    assert db.acquire_lease("talk", "turn").token > first.token
    with pytest.raises(errors.Busy):
        db.acquire_lease("talk", "turn")


def test_compression_lock_is_the_compaction_lease(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    head = conversations.compact(db, "talk", 1)
    one = "pid=42 'quoted' \"and\" {json: 1} ü"
    assert [db.try_acquire_compression_lock("talk", name) for name in (one, "two", one)] == [True, False, True]
    assert db.get_compression_lock_holder(head.id) == one
    with pytest.raises(errors.Busy):
        db.acquire_lease("talk", "compact", "two")
    assert [db.release_compression_lock(head.id, name) for name in ("two", one, one)] == [False, True, False]
    db.acquire_lease("talk", "turn", "one")
    assert db.get_compression_lock_holder("talk") is None
    lease = db.acquire_lease("talk", "compact", "two")
    assert db.get_compression_lock_holder("talk") == "two"
    db.commit_compaction(lease, summary="gist", cut_seq=1)
    assert db.get_compression_lock_holder("talk") is None


def test_compression_lock_lasts_300_seconds_unless_refreshed(db: SessionDB, clock: Clock) -> None:
    conversations.begin(db, "talk")
    assert db.refresh_compression_lock("talk", "one") is False
    db.try_acquire_compression_lock("talk", "one")
    clock.advance(299)
    assert db.get_compression_lock_holder("talk") == "one"
    clock.advance(1)
    assert db.get_compression_lock_holder("talk") is None
    assert db.try_acquire_compression_lock("talk", "two", ttl_seconds=10)
    for _ in range(4):
        clock.advance(9)
        assert db.refresh_compression_lock("talk", "two", ttl_seconds=10) is True
        assert db.refresh_compression_lock("talk", "one") is False
    clock.advance(10)
    assert db.refresh_compression_lock("talk", "two") is False


@pytest.mark.parametrize("how", backends.LEASE_BREAKS)
def test_callers_of_the_lock_go_on_without_leases(db: SessionDB, how: str, caplog: pytest.LogCaptureFixture) -> None:
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


def test_chat_lease_has_one_holder_until_it_is_released_or_taken_over(db: SessionDB, clock: Clock) -> None:
    lease = db.mail.acquire_chat_lease("k", holder="me")
    with pytest.raises(errors.Busy) as busy:
        db.mail.acquire_chat_lease("k", holder="other")
    assert (busy.value.holder, busy.value.expires_in) == ("me", 30.0)
    assert db.mail.acquire_chat_lease("another", holder="other").token == lease.token
    assert [db.mail.release_chat_lease(lease) for _ in range(2)] == [True, False]
    late = db.mail.acquire_chat_lease("k", holder="other")
    assert late.token == lease.token + 1
    with pytest.raises(errors.LeaseLost):
        db.mail.renew_chat_lease(lease)
    clock.advance(60)
    db.mail.renew_chat_lease(late)
    clock.advance(29)
    with pytest.raises(errors.Busy):
        db.mail.acquire_chat_lease("k", holder="me")
    clock.advance(1)
    assert {held.key: (held.holder, held.state) for held in db.mail.chat_leases()}["k"] == ("other", "expired")
    taken = db.mail.acquire_chat_lease("k", holder="me")
    with pytest.raises(errors.LeaseLost):
        db.mail.renew_chat_lease(late)
    assert taken.token == late.token + 1
    assert not db.mail.release_chat_lease(late)
    (held,) = [held for held in db.mail.chat_leases() if held.key == "k"]
    assert (held.token, held.holder, held.expires_in, held.state) == (taken.token, "me", 30.0, "held")


def test_lost_chat_lease_writes_nothing(db: SessionDB) -> None:
    (message,) = mail.came(db, "1")
    post = db.mail.post(mail.reply())
    stale, fresh = (db.mail.acquire_chat_lease(mail.CLAIM, holder='a "b" \\ ü') for _ in range(2))
    freed = db.mail.acquire_chat_lease("route:else")
    db.mail.release_chat_lease(freed)
    # A power loss may undo an acquisition, after which another holder gets the same token.
    undone = msgspec.structs.replace(fresh, holder="a")
    with mail.nothing_changes(db):
        for lost in (stale, freed, undone, types.ChatLease("unknown", 1, "me", 30.0)):
            for call in (
                db.mail.renew_chat_lease,
                lambda lease: db.mail.begin_inbound(lease, message.id, "talk"),
                lambda lease: db.mail.settle_inbound(lease, message.id, "x", outgoing=[mail.reply()], release=True),
                lambda lease: db.mail.begin_sending(lease, post.id),
            ):
                with pytest.raises(errors.LeaseLost):
                    call(lost)
            assert not db.mail.release_chat_lease(lost)
    db.mail.renew_chat_lease(fresh)
    assert db.mail.settle_inbound(fresh, message.id, "answered", outgoing=[mail.reply()], release=True)
    assert db.mail.chat_leases() == []
