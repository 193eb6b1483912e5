"""Chat leases: one holder at a time, a token that only grows, takeover from expired holders."""

from __future__ import annotations

import msgspec
import pytest

from holdfast import SessionDB, errors, types
from tests.support import mail
from tests.support.conversations import Clock


def test_lease_has_one_holder_until_it_is_released(db: SessionDB) -> None:
    lease = db.mail.acquire_chat_lease("k", holder="me")
    with pytest.raises(errors.Busy) as busy:
        db.mail.acquire_chat_lease("k", holder="other")
    assert (busy.value.holder, busy.value.expires_in) == ("me", 30.0)
    assert db.mail.acquire_chat_lease("another", holder="other").token == lease.token
    assert db.mail.release_chat_lease(lease)
    assert not db.mail.release_chat_lease(lease)
    assert db.mail.acquire_chat_lease("k", holder="other").token == lease.token + 1
    with pytest.raises(errors.LeaseLost):
        db.mail.renew_chat_lease(lease)


def test_expired_lease_is_held_until_it_is_taken_over(db: SessionDB, clock: Clock) -> None:
    late = db.mail.acquire_chat_lease("k", holder="me")
    clock.advance(60)
    db.mail.renew_chat_lease(late)
    clock.advance(29)
    with pytest.raises(errors.Busy):
        db.mail.acquire_chat_lease("k", holder="other")
    clock.advance(1)
    assert [(held.holder, held.state) for held in db.mail.chat_leases()] == [("me", "expired")]
    taken = db.mail.acquire_chat_lease("k", holder="other")
    with pytest.raises(errors.LeaseLost):
        db.mail.renew_chat_lease(late)
    assert taken.token == late.token + 1
    assert not db.mail.release_chat_lease(late)
    assert [(held.key, held.token, held.holder, held.expires_in, held.state) for held in db.mail.chat_leases()] == [
        ("k", taken.token, "other", 30.0, "held")
    ]


def test_lost_lease_writes_nothing(db: SessionDB) -> None:
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
