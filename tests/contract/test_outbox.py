"""The outbox: sent in order, retried until delivered or given up; its status, resending and the expiry of old mail."""

from __future__ import annotations

import pytest

from holdfast import SessionDB, errors, types
from holdfast.store.mail import queue_status
from tests.support import conversations, mail
from tests.support.conversations import Clock


def ids(sent: list[types.Outgoing]) -> list[int]:
    return [each.id for each in sent]


def test_first_undelivered_message_of_each_chat_is_due(db: SessionDB, clock: Clock) -> None:
    first = db.mail.replies(mail.answered(db, "talk", "1", "one", "two").id)
    other = db.mail.post(mail.reply(chat="2"), key="other")
    db.mail.post(mail.reply(platform="near"), key="near")
    assert ids(db.mail.due_outgoing("far")) == [first[0].id, other.id]
    assert ids(db.mail.due_outgoing("far", limit=1)) == [first[0].id]
    db.mail.mark_failed(first[0].id, "busy", conversations.NOON + 10)
    assert ids(db.mail.due_outgoing("far")) == [other.id]
    db.mail.mark_delivered(other.id, "x")
    assert db.mail.due_outgoing("far") == []
    assert ids(db.mail.due_outgoing("far", now=conversations.NOON + 10)) == [first[0].id]
    clock.advance(10)
    (due,) = db.mail.due_outgoing("far")
    assert (due.id, due.error, due.due_at, due.open) == (first[0].id, "busy", conversations.NOON + 10, True)
    db.mail.mark_failed(due.id, "refused", None)
    assert ids(db.mail.due_outgoing("far")) == [first[1].id]
    assert (db.mail.counts()["outgoing_failed"], db.mail.counts()["outgoing_open"]) == (1, 2)


def test_questions_are_listed_newest_first(db: SessionDB) -> None:
    for name in ("talk", "other"):
        db.create_session(name, source="test")
    asks = mail.reply("May I?", kind="question")
    asked = [db.mail.post(asks, key=f"question:{each}:r:0:1", conversation_id="talk").id for each in (1, 2)]
    db.mail.post(asks, key="question:1:x:0:1", conversation_id="other")
    db.mail.post(asks, key="again:7", conversation_id="talk")
    db.mail.post(mail.reply(), key="question:3:r:0:1", conversation_id="talk")
    assert ids(db.mail.questions("talk")) == asked[::-1]
    assert [each.key for each in db.mail.questions("talk", limit=1)] == ["question:2:r:0:1"]


def test_every_attempt_is_counted_with_and_without_a_lease(db: SessionDB) -> None:
    names = {"b" * 64: "plan é.pdf"}
    sent = db.mail.post(mail.reply(attachments=["a" * 64, "b" * 64], file_names=names), key="k")
    leases = [db.mail.acquire_chat_lease("out:far:1", holder="me"), None]
    begun = [db.mail.begin_sending(lease, sent.id) for lease in leases]
    assert [(each.attempts, each.text, each.attachments, each.file_names) for each in begun if each] == [
        (1, "a reply", ["a" * 64, "b" * 64], names),
        (2, "a reply", ["a" * 64, "b" * 64], names),
    ]
    # The delivery counts though another process took the lease over.
    db.mail.acquire_chat_lease("out:far:1", holder="me")
    with mail.nothing_changes(db), pytest.raises(errors.LeaseLost):
        db.mail.begin_sending(leases[0], sent.id)
    assert db.mail.mark_delivered(sent.id, "there")
    with mail.nothing_changes(db):
        assert db.mail.begin_sending(None, sent.id) is db.mail.begin_sending(None, 99) is None


def test_delivery_is_recorded_once(db: SessionDB, clock: Clock) -> None:
    out, lost = (db.mail.post(mail.reply(), key=key) for key in "ab")
    assert db.mail.mark_delivered(out.id, "a\0b\n" + "x" * 300)
    assert db.mail.mark_failed(lost.id, "\x1b[31mno\0" + "y" * 900, None)
    clock.advance(5)
    with mail.nothing_changes(db):
        for id_ in (out.id, lost.id, 99):
            assert not db.mail.mark_delivered(id_, "18")
            assert not db.mail.mark_failed(id_, "late", None)
            assert not db.mail.mark_failed(id_, "late", conversations.NOON + 50)
    # Texts of a platform are cleaned and cut.
    out, lost = (db.mail.outgoing(each.id) for each in (out, lost))
    assert (out.external, out.delivered_at) == ("a b " + "x" * 196, conversations.NOON)
    assert (lost.error, lost.failed_at) == (" [31mno " + "y" * 492, conversations.NOON)


def test_same_key_is_posted_once(db: SessionDB) -> None:
    conversations.begin(db, "talk", "x")
    first = db.mail.post(mail.reply("may I?", kind="question"), key="k", conversation_id="talk")
    assert (first.kind, first.key, first.part, first.conversation_id) == ("question", "k", None, "talk")
    with mail.nothing_changes(db):
        assert db.mail.post(mail.reply("something else"), key="k") == first
    assert db.mail.post(mail.reply()).id != db.mail.post(mail.reply()).id


def test_backlog_is_listed_by_route_and_by_platform(db: SessionDB, clock: Clock) -> None:
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


def test_failed_message_is_resent_once_to_the_same_chat(db: SessionDB, clock: Clock) -> None:
    message = mail.answered(db, "talk", "1", "one", "two")
    one, two = db.mail.replies(message.id)
    db.mail.mark_failed(one.id, "gone")
    clock.advance(1)
    db.mail.mark_failed(two.id, "gone, too")
    assert ids(db.mail.failures()) == [two.id, one.id]
    assert ids(db.mail.failures(1)) == [two.id]
    new = db.mail.resend(one.id)
    with pytest.raises(errors.InvalidArgument, match=f"Message {one.id} was already queued again as {new.id}"):
        db.mail.resend(one.id)
    assert (new.text, new.chat, new.address) == ("one", one.chat, one.address)
    assert (new.inbound_id, new.conversation_id) == (message.id, "talk")
    assert (ids(db.mail.due_outgoing("far")), ids(db.mail.failures())) == ([new.id], [two.id])
    db.mail.mark_failed(new.id, "still gone")
    assert ids(db.mail.failures()) == [new.id, two.id]
    assert db.mail.resend(new.id).open


def test_message_that_did_not_fail_or_was_redacted_is_not_resent(db: SessionDB) -> None:
    message = mail.answered(db, "talk", "1")
    (reply,) = db.mail.replies(message.id)
    hung_up = db.mail.post(mail.reply(platform="http"), key="k")
    db.mail.mark_failed(hung_up.id, "gone")
    assert db.mail.failures() == []
    for wrong in (reply.id, 99, hung_up.id):
        with pytest.raises(errors.InvalidArgument):
            db.mail.resend(wrong)
    db.redact("talk", message.seq or 0)
    assert db.mail.failures() == []
    with pytest.raises(errors.InvalidArgument, match="it was redacted"):
        db.mail.resend(reply.id)


def expire(db: SessionDB) -> list[int]:
    """Expire all mail older than 30 days; the number of rows that each step deleted."""
    cursor: queue_status.ExpiryCursor | None = queue_status.ExpiryCursor()
    deleted = list[int]()
    while cursor is not None:
        done = db.mail.expire(30, cursor)
        deleted.append(done.deleted)
        cursor = done.next
    return deleted


@pytest.mark.parametrize(("batch", "rounds"), [(500, 1), (1, 2)])
def test_expiry_deletes_finished_mail_and_keeps_the_last_of_a_conversation(
    db: SessionDB, clock: Clock, monkeypatch: pytest.MonkeyPatch, batch: int, rounds: int
) -> None:
    monkeypatch.setattr(queue_status, "EXPIRY_BATCH", batch)
    a, b = mail.came(db, "a", "b")
    lease = db.mail.acquire_chat_lease(mail.CLAIM)
    db.mail.begin_inbound(lease, a.id, "talk", [b.id])
    where = {"seq": mail.said(db, "talk", "a"), "conversation_id": "talk"}
    db.mail.settle_inbound(lease, a.id, "answered", outgoing=[mail.reply()], release=True, **where)
    unsent, last = (mail.answered(db, "talk", key, "one", "two") for key in ("unsent", "last"))
    (ignored,) = mail.came(db, "ignored")
    conversations.begin(db, "quiet", "a")
    db.mail.settle_inbound(None, ignored.id, "ignored", conversation_id="quiet")
    (waiting,) = mail.came(db, "waiting")
    posted, pending = db.mail.post(mail.reply(), key="posted"), db.mail.post(mail.reply(), key="pending")
    for sent in (*db.mail.replies(a.id), *db.mail.replies(unsent.id)[:1], *db.mail.replies(last.id), posted):
        db.mail.mark_delivered(sent.id, "there")
    assert db.contacts.mark_stranger_notified("far", "eve")
    assert sum(expire(db)) == 0
    assert not db.contacts.mark_stranger_notified("far", "eve")
    clock.advance(31 * conversations.DAY)
    (young,) = mail.came(db, "young")
    db.mail.settle_inbound(None, young.id, "ignored")
    # A message that others were joined to goes after them: in batches of one, in the next round.
    assert sum(sum(expire(db)) for _ in range(rounds)) >= 4
    assert sum(expire(db)) == 0
    assert [db.mail.inbound(each.id) for each in (a, b)] == [None, None]
    assert all(db.mail.inbound(each.id) for each in (unsent, last, ignored, waiting, young))
    assert [db.mail.outgoing(each.id) is None for each in (posted, pending)] == [True, False]
    assert [len(db.mail.replies(each.id)) for each in (unsent, last)] == [2, 2]
    assert db.mail.add_inbound(mail.new("a"))[1]
    assert not db.mail.add_inbound(mail.new("last"))[1]
    assert db.contacts.mark_stranger_notified("far", "eve")


def test_expiry_keeps_the_chats_of_linked_senders(db: SessionDB, clock: Clock) -> None:
    old = mail.answered(db, "talk", "old")
    clock.advance(1)
    last = mail.answered(db, "talk", "last")
    db.bind_route(last.route, "talk", version=db.route(last.route).version)
    db.contacts.link(last.platform, last.sender, db.conversation("talk").owner)
    (home,) = db.mail.linked_chats("talk")
    for each in (old, last):
        db.mail.mark_delivered(db.mail.replies(each.id)[0].id, "there")
    clock.advance(31 * conversations.DAY)
    (elsewhere,) = mail.came(db, "elsewhere", route="agent:main:near:dm:7", platform="near")
    db.mail.settle_inbound(None, elsewhere.id, "ignored", conversation_id="talk")
    assert (sum(expire(db)), db.mail.inbound(old.id)) == (2, None)
    assert db.mail.linked_chats("talk") == [home]
    db.contacts.unlink(last.platform, last.sender)
    assert (sum(expire(db)), db.mail.inbound(last.id)) == (2, None)
    db.contacts.link(last.platform, last.sender, db.conversation("talk").owner)
    (ignored,) = mail.came(db, "ignored")
    db.mail.settle_inbound(None, ignored.id, "ignored")
    clock.advance(31 * conversations.DAY)
    assert (sum(expire(db)), db.mail.linked_chats("talk")) == (0, [home])


def test_expiry_batch_is_limited(db: SessionDB, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_status, "EXPIRY_BATCH", 4)
    for message in mail.came(db, *map(str, range(10))):
        db.mail.settle_inbound(None, message.id, "ignored", outgoing=[mail.reply()])
        db.mail.mark_failed(db.mail.replies(message.id)[0].id, "gone")
    clock.advance(31 * conversations.DAY)
    assert [each for each in expire(db) if each] == [8, 8, 4]
