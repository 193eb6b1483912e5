"""What waits and what could not be sent is told, and what could not be can be sent all the same, once."""

from __future__ import annotations

import pytest

from holdfast import SessionDB, errors
from holdfast.store.mail import queue_status
from tests.contract import mail, steps


def test_what_waits_is_told_by_chat_and_by_platform(db: SessionDB, clock: steps.Clock) -> None:
    assert (queue_status.waiting(db), queue_status.unsent(db), queue_status.failed(db)) == ([], [], [])
    start = clock()
    a, _ = mail.came(db, "a", "b")
    db.begin_arrival(db.claim(mail.CLAIM), a.id, "talk")
    clock.advance(10)
    mail.came(db, "c", route="other")
    assert queue_status.waiting(db) == [(mail.ROUTE, 2, start, 1), ("other", 1, start + 10, 0)]
    assert queue_status.waiting(db, 1) == [(mail.ROUTE, 2, start, 1)]
    first, _ = (db.post(mail.reply(text), key=text) for text in ("one", "two"))
    db.post(mail.reply(platform="near"), key="near")
    db.send_failed(first.id, "busy", start + 60)
    assert queue_status.unsent(db) == [
        ("far", 2, start + 10, start + 10, "busy"),
        ("near", 1, start + 10, start + 10, None),
    ]


def test_what_could_not_be_sent_is_sent_again_once_to_the_same_place(db: SessionDB, clock: steps.Clock) -> None:
    arrival = mail.answered(db, "talk", "1", "one", "two")
    one, two = db.replies(arrival.id)
    db.send_failed(one.id, "gone")
    clock.advance(1)
    db.send_failed(two.id, "gone, too")
    assert [each.id for each in queue_status.failed(db)] == [two.id, one.id]
    assert [each.id for each in queue_status.failed(db, 1)] == [two.id]
    new = queue_status.again(db, one.id)
    assert queue_status.again(db, one.id) == new
    assert (new.text, new.chat, new.address, new.arrival, new.conversation_id) == (
        "one",
        one.chat,
        one.address,
        arrival.id,
        "talk",
    )
    assert [each.id for each in db.due_outgoing("far")] == [new.id]
    assert [each.id for each in queue_status.failed(db)] == [two.id]
    # What failed once more is listed, and can be sent once more.
    db.send_failed(new.id, "still gone")
    assert [each.id for each in queue_status.failed(db)] == [new.id, two.id]
    assert queue_status.again(db, new.id).open


def test_what_did_not_fail_or_is_gone_is_not_sent_again(db: SessionDB) -> None:
    arrival = mail.answered(db, "talk", "1")
    (reply,) = db.replies(arrival.id)
    hung_up = db.post(mail.reply(platform="http"), key="k")
    db.send_failed(hung_up.id, "gone")
    assert queue_status.failed(db) == []
    for wrong in (reply.id, 99, hung_up.id):
        with pytest.raises(errors.InvalidArgument):
            queue_status.again(db, wrong)
    db.redact("talk", arrival.seq or 0)
    assert queue_status.failed(db) == []
    with pytest.raises(errors.InvalidArgument, match="it was deleted"):
        queue_status.again(db, reply.id)
