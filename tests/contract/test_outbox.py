"""The outbox: sent in order, tried until it is delivered or given up, and that is final."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from holdfast import AsyncSessionDB, SessionDB, errors, types
from tests.support import conversations, mail

MakeDb = Callable[..., SessionDB]


def found(db: SessionDB, id_: int) -> types.Outgoing:
    outgoing = db.mail.outgoing(id_)
    assert outgoing is not None
    return outgoing


def test_first_undelivered_of_each_chat_is_due(db: SessionDB, clock: conversations.Clock) -> None:
    first = db.mail.replies(mail.answered(db, "talk", "1", "one", "two").id)
    other = db.mail.post(mail.reply(chat="2"), key="other")
    db.mail.post(mail.reply(platform="near"), key="near")
    assert [each.id for each in db.mail.due_outgoing("far")] == [first[0].id, other.id]
    assert [each.id for each in db.mail.due_outgoing("far", limit=1)] == [first[0].id]
    db.mail.mark_failed(first[0].id, "busy", conversations.NOON + 10)
    assert [each.id for each in db.mail.due_outgoing("far")] == [other.id]
    db.mail.mark_delivered(other.id, "x")
    assert db.mail.due_outgoing("far") == []
    assert [each.id for each in db.mail.due_outgoing("far", now=conversations.NOON + 10)] == [first[0].id]
    clock.advance(10)
    (due,) = db.mail.due_outgoing("far")
    assert (due.id, due.error, due.due_at, due.open) == (first[0].id, "busy", conversations.NOON + 10, True)
    db.mail.mark_failed(due.id, "refused", None)
    assert [each.id for each in db.mail.due_outgoing("far")] == [first[1].id]
    assert db.mail.counts()["outgoing_failed"] == 1
    assert db.mail.counts()["outgoing_open"] == 2


def test_questions_are_listed_newest_first(db: SessionDB) -> None:
    for name in ("talk", "other"):
        db.create_session(name, source="test")
    asks = mail.reply("May I?", kind="question")
    asked = [db.mail.post(asks, key=f"question:{each}:r:0:1", conversation_id="talk").id for each in (1, 2)]
    db.mail.post(asks, key="question:1:x:0:1", conversation_id="other")
    db.mail.post(asks, key="again:7", conversation_id="talk")
    db.mail.post(mail.reply(), key="question:3:r:0:1", conversation_id="talk")
    assert [each.id for each in db.mail.questions("talk")] == asked[::-1]
    assert [each.key for each in db.mail.questions("talk", limit=1)] == ["question:2:r:0:1"]
    with pytest.raises(errors.NoSuchSession):
        db.mail.questions("nowhere")
    with pytest.raises(errors.InvalidArgument):
        db.mail.questions("talk", limit="1")  # type: ignore[arg-type]


def test_every_attempt_is_counted_and_a_lost_lease_sends_nothing(db: SessionDB) -> None:
    sent = db.mail.post(mail.reply(), key="k")
    stale = db.mail.acquire_chat_lease("out:far:1", holder="me")
    begun = db.mail.begin_sending(stale, sent.id)
    assert begun is not None
    assert begun.attempts == 1
    assert begun.text == "a reply"
    fresh = db.mail.acquire_chat_lease("out:far:1", holder="me")
    with mail.nothing_changes(db), pytest.raises(errors.LeaseLost):
        db.mail.begin_sending(stale, sent.id)
    again = db.mail.begin_sending(fresh, sent.id)
    assert again is not None
    assert again.attempts == 2
    assert db.mail.mark_delivered(sent.id, "there")
    with mail.nothing_changes(db):
        assert db.mail.begin_sending(fresh, sent.id) is None
        assert db.mail.begin_sending(fresh, 99) is None


def test_delivery_is_recorded_once(db: SessionDB, clock: conversations.Clock) -> None:
    out, lost = (db.mail.post(mail.reply(), key=key) for key in "ab")
    assert db.mail.mark_delivered(out.id, "17")
    assert db.mail.mark_failed(lost.id, "refused", None)
    clock.advance(5)
    with mail.nothing_changes(db):
        for id_ in (out.id, lost.id, 99):
            assert not db.mail.mark_delivered(id_, "18")
            assert not db.mail.mark_failed(id_, "late", None)
            assert not db.mail.mark_failed(id_, "late", conversations.NOON + 50)
    assert (found(db, out.id).external, found(db, out.id).delivered_at) == ("17", conversations.NOON)
    assert (found(db, lost.id).error, found(db, lost.id).failed_at) == ("refused", conversations.NOON)


def test_delivery_is_recorded_without_the_lease(db: SessionDB) -> None:
    sent = db.mail.post(mail.reply(), key="k")
    db.mail.begin_sending(db.mail.acquire_chat_lease("out:far:1", holder="me"), sent.id)
    db.mail.acquire_chat_lease("out:far:1", holder="me")
    assert db.mail.mark_delivered(sent.id, "there")


def test_same_key_is_posted_once(db: SessionDB) -> None:
    conversations.begin(db, "talk", "x")
    first = db.mail.post(mail.reply("may I?", kind="question"), key="k", conversation_id="talk")
    assert (first.kind, first.key, first.part, first.conversation_id) == ("question", "k", None, "talk")
    with mail.nothing_changes(db):
        assert db.mail.post(mail.reply("something else"), key="k") == first
    assert db.mail.post(mail.reply()).id != db.mail.post(mail.reply()).id


def test_concurrent_posts_with_one_key_are_one_message(make_db: MakeDb) -> None:
    one, other = make_db(), make_db()
    for key in map(str, range(20)):
        made = conversations.at_once(
            *(lambda db=db, key=key: db.mail.post(mail.reply(), key=key) for db in (one, other))
        )
        assert made[0] == made[1]


def test_texts_of_a_platform_are_cleaned_and_cut(db: SessionDB) -> None:
    out, lost = (db.mail.post(mail.reply(), key=key) for key in "ab")
    db.mail.mark_delivered(out.id, "a\0b\n" + "x" * 300)
    db.mail.mark_failed(lost.id, "\x1b[31mno\0" + "y" * 900, None)
    assert found(db, out.id).external == "a b " + "x" * 196
    assert (found(db, lost.id).error or "").startswith(" [31mno yyy")
    assert len(found(db, lost.id).error or "") == 500


@pytest.mark.parametrize(
    "more",
    [
        {"platform": ""},
        {"chat": ""},
        {"address": None},
        {"kind": "shout"},
        {"text": 5},
        {"text": "\ud800"},
        {"seq": -1},
        {"attachments": [5]},
    ],
)
def test_invalid_outbound_message_is_refused(db: SessionDB, more: dict[str, object]) -> None:
    (arrival,) = mail.came(db, "1")
    with mail.nothing_changes(db):
        with pytest.raises(errors.InvalidArgument):
            db.mail.post(mail.reply(**more))
        with pytest.raises(errors.InvalidArgument):
            db.mail.settle_inbound(None, arrival.id, "answered", outgoing=[mail.reply(), mail.reply(**more)])


def test_attachments_are_stored_by_digest(db: SessionDB) -> None:
    sent = db.mail.post(mail.reply(attachments=["a" * 64, "b" * 64]), key="k")
    assert found(db, sent.id).attachments == ["a" * 64, "b" * 64]


def test_sending_without_a_lease_is_counted(db: SessionDB) -> None:
    sent = db.mail.post(mail.reply(), key="one")
    assert [getattr(db.mail.begin_sending(None, sent.id), "attempts", None) for _ in range(2)] == [1, 2]
    db.mail.mark_delivered(sent.id, "x")
    with mail.nothing_changes(db):
        assert db.mail.begin_sending(None, sent.id) is None
        assert db.mail.begin_sending(None, 99) is None
        with pytest.raises(errors.InvalidArgument):
            db.mail.begin_sending("no claim", sent.id)  # type: ignore[arg-type]
    assert db.mail.chat_leases() == []


def test_two_attempts_in_one_group_commit_are_counted_twice(make_db: MakeDb) -> None:
    db = make_db()
    sent = db.mail.post(mail.reply(), key="reply")

    async def both() -> list[types.Outgoing | None]:
        async with AsyncSessionDB(db) as store:
            return await asyncio.gather(*(store.mail.begin_sending(None, sent.id) for _ in range(2)))

    assert sorted(begun.attempts for begun in asyncio.run(both()) if begun is not None) == [1, 2]
