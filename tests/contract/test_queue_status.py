"""What waits and what could not be sent is told, and what could not be can be sent all the same, once."""

from __future__ import annotations

import pytest

from holdfast import SessionDB, errors
from tests.support import conversations, mail


def test_backlog_is_listed_by_route_and_by_platform(db: SessionDB, clock: conversations.Clock) -> None:
    assert (db.mail.backlog(), db.mail.unsent_counts(), db.mail.failures()) == ([], [], [])
    start = clock()
    a, _ = mail.came(db, "a", "b")
    db.mail.begin_inbound(db.mail.acquire_chat_lease(mail.CLAIM), a.id, "talk")
    clock.advance(10)
    mail.came(db, "c", route="other")
    assert db.mail.backlog() == [(mail.ROUTE, 2, start, 1), ("other", 1, start + 10, 0)]
    assert db.mail.backlog(1) == [(mail.ROUTE, 2, start, 1)]
    first, _ = (db.mail.post(mail.reply(text), key=text) for text in ("one", "two"))
    db.mail.post(mail.reply(platform="near"), key="near")
    db.mail.mark_failed(first.id, "busy", start + 60)
    assert db.mail.unsent_counts() == [
        ("far", 2, start + 10, start + 10, "busy"),
        ("near", 1, start + 10, start + 10, None),
    ]


def test_failed_message_is_sent_again_once_to_the_same_chat(db: SessionDB, clock: conversations.Clock) -> None:
    arrival = mail.answered(db, "talk", "1", "one", "two")
    one, two = db.mail.replies(arrival.id)
    db.mail.mark_failed(one.id, "gone")
    clock.advance(1)
    db.mail.mark_failed(two.id, "gone, too")
    assert [each.id for each in db.mail.failures()] == [two.id, one.id]
    assert [each.id for each in db.mail.failures(1)] == [two.id]
    new = db.mail.resend(one.id)
    assert db.mail.resend(one.id) == new
    assert (new.text, new.chat, new.address, new.inbound_id, new.conversation_id) == (
        "one",
        one.chat,
        one.address,
        arrival.id,
        "talk",
    )
    assert [each.id for each in db.mail.due_outgoing("far")] == [new.id]
    assert [each.id for each in db.mail.failures()] == [two.id]
    # What failed once more is listed, and can be sent once more.
    db.mail.mark_failed(new.id, "still gone")
    assert [each.id for each in db.mail.failures()] == [new.id, two.id]
    assert db.mail.resend(new.id).open


def test_message_that_did_not_fail_or_was_redacted_is_not_sent_again(db: SessionDB) -> None:
    arrival = mail.answered(db, "talk", "1")
    (reply,) = db.mail.replies(arrival.id)
    hung_up = db.mail.post(mail.reply(platform="http"), key="k")
    db.mail.mark_failed(hung_up.id, "gone")
    assert db.mail.failures() == []
    for wrong in (reply.id, 99, hung_up.id):
        with pytest.raises(errors.InvalidArgument):
            db.mail.resend(wrong)
    db.redact("talk", arrival.seq or 0)
    assert db.mail.failures() == []
    with pytest.raises(errors.InvalidArgument, match="it was redacted"):
        db.mail.resend(reply.id)
