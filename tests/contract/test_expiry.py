"""What is over long since is forgotten, a few at a time; what is not stays, whatever it is."""

from __future__ import annotations

import pytest

from holdfast import SessionDB, errors
from holdfast.store.mail import queue_status
from tests.support import conversations, mail


def tidied(db: SessionDB, days: float = 30) -> list[int]:
    """How much each step forgot."""
    window: queue_status.ExpiryCursor | None = queue_status.ExpiryCursor()
    gone = list[int]()
    while window is not None:
        done = db.mail.expire(days, window)
        gone.append(done.deleted)
        window = done.next
    assert db.admin.fsck().ok
    return gone


@pytest.mark.parametrize(("most", "rounds"), [(500, 1), (1, 2)])
def test_expiry_deletes_old_mail_with_any_batch_size(
    db: SessionDB, clock: conversations.Clock, monkeypatch: pytest.MonkeyPatch, most: int, rounds: int
) -> None:
    monkeypatch.setattr(queue_status, "EXPIRY_BATCH", most)
    a, b = mail.came(db, "a", "b")
    claim = db.mail.acquire_chat_lease(mail.CLAIM)
    db.mail.begin_inbound(claim, a.id, "talk", [b.id])
    where = {"seq": mail.said(db, "talk", "a"), "conversation_id": "talk"}
    db.mail.settle_inbound(claim, a.id, "answered", outgoing=[mail.reply()], release=True, **where)
    unsent, last = (mail.answered(db, "talk", key) for key in ("unsent", "last"))
    (waiting,) = mail.came(db, "waiting")
    posted, pending = db.mail.post(mail.reply(), key="posted"), db.mail.post(mail.reply(), key="pending")
    for sent in (*db.mail.replies(a.id), *db.mail.replies(last.id), posted):
        db.mail.mark_delivered(sent.id, "there")
    assert sum(tidied(db)) == 0
    clock.advance(31 * conversations.DAY)
    (young,) = mail.came(db, "young")
    db.mail.settle_inbound(None, young.id, "ignored")
    # One that others were joined into goes after them: where they are looked at apart, the next time.
    assert sum(sum(tidied(db)) for _ in range(rounds)) == 4
    assert sum(tidied(db)) == 0
    assert [db.mail.inbound(each.id) for each in (a, b)] == [None, None]
    assert all(db.mail.inbound(each.id) for each in (unsent, last, waiting, young))
    assert [db.mail.outgoing(each.id) is None for each in (posted, pending)] == [True, False]
    assert [len(db.mail.replies(each.id)) for each in (unsent, last)] == [1, 1]
    assert db.mail.add_inbound(mail.new("a"))[1]
    assert not db.mail.add_inbound(mail.new("last"))[1]


def test_expiry_batch_is_limited(db: SessionDB, clock: conversations.Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_status, "EXPIRY_BATCH", 4)
    for arrival in mail.came(db, *map(str, range(10))):
        db.mail.settle_inbound(None, arrival.id, "ignored", outgoing=[mail.reply()])
        db.mail.mark_failed(db.mail.replies(arrival.id)[0].id, "gone")
    clock.advance(31 * conversations.DAY)
    assert [each for each in tidied(db) if each] == [8, 8, 4]


def test_old_strangers_are_deleted(db: SessionDB, clock: conversations.Clock) -> None:
    assert db.contacts.mark_stranger_notified("far", "eve")
    tidied(db)
    assert not db.contacts.mark_stranger_notified("far", "eve")
    clock.advance(31 * conversations.DAY)
    tidied(db)
    assert db.contacts.mark_stranger_notified("far", "eve")


def test_expiry_refuses_invalid_days(db: SessionDB) -> None:
    for wrong in (-1, float("nan"), True, "30"):
        with pytest.raises(errors.InvalidArgument):
            db.mail.expire(wrong)  # type: ignore[arg-type]
