"""Inbound messages: one row however often delivered, begun under one lease, settled once together with the replies."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from holdfast import AsyncSessionDB, SessionDB, errors, types
from holdfast.store.mail import inbound
from tests.support import backends, conversations, mail
from tests.support.backends import AtPoint, MakeDb
from tests.support.conversations import Clock


def first_in(target: str, *joined: int) -> inbound.ChooseMessage:
    return lambda waiting, _: (waiting[0].id, target, joined)


def test_repeated_delivery_is_one_inbound_message(db: SessionDB, clock: Clock) -> None:
    first, new = db.mail.add_inbound(mail.new(name="Ada", parts=[{"type": "image", "blob": "a" * 64}]))
    assert new
    clock.advance(5)
    for text in ("hello", "edited since"):
        assert db.mail.add_inbound(mail.new(text=text)) == (first, False)
    assert (first.text, first.name, first.at, first.address) == ("hello", "Ada", conversations.NOON, {"chat": 1})
    assert (first.platform, first.home, first.attempts, first.target, first.outcome) == ("far", "far", 0, None, None)
    assert db.mail.open_inbound(mail.ROUTE) == [first]
    assert db.mail.inbound_by_key("far", "1") == first == db.mail.inbound(first.id)
    other, new = db.mail.add_inbound(mail.new(platform="near", home="far", route="r"))
    assert (new, other.id != first.id, other.home) == (True, True, "far")


async def test_group_commit_returns_each_task_its_own_message(make_db: MakeDb, at_point: AtPoint) -> None:
    points: list[str] = []
    async with AsyncSessionDB(make_db()) as store:
        at_point(points.append)
        found = await asyncio.gather(*(store.mail.add_inbound(mail.new(str(n // 2))) for n in range(100)))
        sent = await store.mail.post(mail.reply(), key="reply")
        begun = await asyncio.gather(*(store.mail.begin_sending(None, sent.id) for _ in range(2)))
        assert points.count("arrive.committed") < 20 or store.db.driver.concurrent_writes
    assert [message.key for message, _ in found] == [str(n // 2) for n in range(100)]
    assert [new for _, new in found] == [True, False] * 50
    assert [message.id for message, new in found if new] == sorted({message.id for message, _ in found})
    assert sorted(each.attempts for each in begun if each is not None) == [1, 2]


def test_open_messages_and_routes_are_listed_oldest_first(db: SessionDB) -> None:
    a, b, c = mail.came(db, "a", "b", "c")
    (d,) = mail.came(db, "d", route="other")
    assert db.mail.open_routes() == [a.route, d.route]
    assert db.mail.open_routes(limit=1) == [a.route]
    assert db.mail.open_inbound(mail.ROUTE) == [a, b, c]
    assert db.mail.open_inbound(mail.ROUTE, limit=2) == [a, b]
    db.mail.settle_inbound(None, a.id, "ignored")
    assert db.mail.open_routes() == [b.route, d.route]
    assert db.mail.open_inbound("nowhere") == []
    assert db.mail.inbound(99) is db.mail.inbound_by_key("far", "z") is None
    assert db.mail.counts() == {"arrivals_open": 3, "routes_waiting": 2, "outgoing_open": 0, "outgoing_failed": 0}


def test_messages_are_counted_by_route_and_by_sender_without_deletions(db: SessionDB, clock: Clock) -> None:
    for key in "abc":
        mail.came(db, key)
        clock.advance(10)
    mail.came(db, "delete:a")
    mail.came(db, "d", route="other")
    mail.came(db, "e", route="other", sender="8")
    mail.came(db, "f", route="other", platform="near")
    times = [conversations.NOON + late for late in (0, 1, 20, 21, 31)]
    assert [db.mail.count_inbound_on(mail.ROUTE, at) for at in times] == [3, 2, 1, 0, 0]
    assert [db.mail.count_inbound_from("far", "7", at) for at in times] == [4, 3, 2, 1, 0]
    assert db.mail.count_inbound_from("far", "9", 0.0) == 0


def test_newest_message_of_each_active_chat_is_found(db: SessionDB, clock: Clock) -> None:
    mail.came(db, "old", chat="quiet")
    clock.advance(86_401)
    _, b, *_ = mail.came(db, "a", "b", "b:edit")
    (c,) = mail.came(db, "c", chat="2")
    mail.came(db, "d", platform="near")
    mail.answered(db, "gone", "e")
    db.delete_conversation("gone")
    assert db.mail.newest_inbound("far", 1) == [c, b]
    assert db.mail.newest_inbound("far", 1, limit=1) == [c]


def test_messages_are_found_by_key_prefix_and_by_conversation(db: SessionDB) -> None:
    a, b, _ = mail.came(db, "aa1", "aa2", "ab1")
    mail.came(db, "aa3", platform="near")
    assert db.mail.inbound_with_prefix("far", "aa") == [b, a]
    assert db.mail.inbound_with_prefix("far", "aa", limit=1) == [b]
    assert db.mail.inbound_with_prefix("far", "b") == []
    conversations.begin(db, "terminal", "x")
    for key in ("c", "d"):
        mail.answered(db, "talk", key)
    assert (db.mail.last_inbound("talk", "far").key, db.mail.last_inbound("talk", "near")) == ("d", None)
    (moved,) = mail.came(db, "2", chat="2", address={"chat": 2}, route="another")
    db.mail.settle_inbound(None, moved.id, "ignored", conversation_id=conversations.compact(db, "talk", 1).id)
    assert db.mail.last_chat("talk") == ("far", "2", {"chat": 2}, "another", "7", "", None)
    assert db.mail.last_chat("talk", mail.ROUTE) == ("far", b.chat, b.address, mail.ROUTE, "7", "", None)
    assert db.mail.last_chat("talk", "agent:main:far:dm:none") is db.mail.last_chat("terminal") is None


def test_first_target_is_final_and_every_attempt_is_counted(db: SessionDB) -> None:
    (message,) = mail.came(db, "1")
    for attempt, target in enumerate(("minted", "another"), 1):
        lease = db.mail.acquire_chat_lease(mail.CLAIM, holder="me")
        begun = db.mail.begin_inbound(lease, message.id, target)
        assert (begun.target, begun.attempts) == ("minted", attempt)
    db.mail.settle_inbound(lease, message.id, "ignored")
    with mail.nothing_changes(db):
        assert db.mail.begin_inbound(lease, message.id, "talk") is None
        assert db.mail.begin_inbound(lease, 99, "talk") is None


def test_first_attempt_joins_messages_and_they_share_the_outcome(db: SessionDB) -> None:
    a, b, c = mail.came(db, "a", "b", "c")
    lease = db.mail.acquire_chat_lease(mail.CLAIM)
    db.mail.begin_inbound(lease, a.id, "talk", [b.id])
    db.mail.begin_inbound(lease, a.id, "talk", [c.id])
    assert [message.id for message in db.mail.joined_inbound(a.id)] == [b.id]
    (elsewhere,) = mail.came(db, "d", route="other")
    for other in (elsewhere, a, c):  # of another route, begun, itself
        with mail.nothing_changes(db), pytest.raises(errors.StoreRefused):
            db.mail.begin_inbound(lease, c.id, "talk", [other.id])
    assert [message.id for message in db.mail.open_inbound(mail.ROUTE)] == [a.id, c.id]
    with pytest.raises(errors.InvalidArgument):
        db.mail.begin_inbound(lease, b.id, "talk")
    seq = mail.said(db, "talk", "a")
    db.mail.settle_inbound(lease, a.id, "answered", seq=seq, conversation_id="talk", outgoing=[mail.reply()])
    outcomes = [(each.outcome, each.conversation_id, each.seq) for each in (mail.again(db, a), mail.again(db, b))]
    assert outcomes == [("answered", "talk", 1)] * 2
    assert mail.again(db, c).outcome is None
    assert (len(db.mail.replies(a.id)), db.mail.replies(b.id)) == (1, [])


def test_begin_next_acquires_the_lease_and_begins_the_message(db: SessionDB) -> None:
    a, b, c = mail.came(db, "a", "b", "c")
    db.create_session("talk", source="test")
    db.bind_route(mail.ROUTE, "talk", version=0)
    seen = list[object]()

    def choose(waiting: Sequence[types.InboundMessage], route: types.Route) -> tuple[int, str, list[int]]:
        seen.append(([each.id for each in waiting], route.conversation_id))
        return a.id, "talk", [b.id]

    taken = db.mail.begin_next_inbound(mail.ROUTE, choose, limit=2)
    assert (seen, taken.waiting) == ([([a.id, b.id], "talk")], [a, b])
    assert (taken.begun, mail.again(db, a).attempts, taken.inbox_empty) == (mail.again(db, a), 1, True)
    assert (mail.again(db, a).target, mail.again(db, b).joined) == ("talk", a.id)
    assert [(held.key, held.token) for held in db.mail.chat_leases()] == [
        (mail.CLAIM, taken.lease and taken.lease.token)
    ]
    assert db.mail.settle_inbound(taken.lease, a.id, "ignored")
    again = db.mail.begin_next_inbound(mail.ROUTE, first_in("other"), lease=taken.lease)
    assert (again.lease, again.begun, again.inbox_empty) == (taken.lease, mail.again(db, c), False)


def test_begin_next_without_a_choice_or_message_begins_nothing(db: SessionDB) -> None:
    assert db.mail.begin_next_inbound(mail.ROUTE, first_in("talk")) == types.NextInbound(None, [])
    assert db.mail.chat_leases() == []
    idle = db.mail.begin_next_inbound(mail.ROUTE, first_in("talk"), idle=True)
    assert idle == types.NextInbound(idle.lease, [])
    assert [held.key for held in db.mail.chat_leases()] == [mail.CLAIM]
    db.mail.release_chat_lease(idle.lease)
    (message,) = mail.came(db, "a")
    taken = db.mail.begin_next_inbound(mail.ROUTE, lambda *_: None)
    assert (taken.waiting, taken.begun, mail.again(db, message)) == ([message], None, message)
    db.mail.renew_chat_lease(taken.lease)


def test_begin_next_needs_the_lease_and_an_open_message_of_the_route(db: SessionDB) -> None:
    mail.came(db, "a")
    (elsewhere,) = mail.came(db, "b", route="other")
    with mail.nothing_changes(db), pytest.raises(errors.InvalidArgument):
        db.mail.begin_next_inbound(mail.ROUTE, lambda *_: (elsewhere.id, "talk", []))
    assert db.mail.chat_leases() == []
    old = db.mail.acquire_chat_lease(mail.CLAIM, holder="me")
    db.mail.release_chat_lease(old)
    db.mail.acquire_chat_lease(mail.CLAIM, holder="other")
    for lease, error in ((None, errors.Busy), (old, errors.LeaseLost)):
        with mail.nothing_changes(db), pytest.raises(error):
            db.mail.begin_next_inbound(mail.ROUTE, first_in("talk"), lease=lease)


def test_outcome_and_replies_are_written_together_and_once(db: SessionDB) -> None:
    message = mail.answered(db, "talk", "1", "one", "two")
    assert (message.outcome, message.conversation_id, message.seq) == ("answered", "talk", 1)
    sent = db.mail.replies(message.id)
    assert [(each.part, each.text, each.kind, each.inbound_id, each.at) for each in sent] == [
        (0, "one", "reply", message.id, message.settled_at),
        (1, "two", "reply", message.id, message.settled_at),
    ]
    lease = db.mail.acquire_chat_lease(mail.CLAIM, holder="other")
    with mail.nothing_changes(db):
        for held, id_, outcome in ((lease, message.id, "failed"), (None, message.id, "answered"), (None, 99, "x")):
            assert not db.mail.settle_inbound(held, id_, outcome, outgoing=[mail.reply("again")], release=True)
    assert len(db.mail.chat_leases()) == 1
    for number, (message, release) in enumerate(zip(mail.came(db, "a", "b"), (False, True), strict=True)):
        db.mail.settle_inbound(lease, message.id, "ignored", release=release)
        assert len(db.mail.chat_leases()) == 1 - number


def test_reply_to_another_chat_is_refused(db: SessionDB) -> None:
    (message,) = mail.came(db, "1")
    (hooked,) = mail.came(db, "2", home="near", chat="9")
    for id_, more in (
        (message.id, {"chat": "2"}),
        (message.id, {"platform": "near"}),
        (message.id, {"address": {"chat": 2}}),
        (hooked.id, {}),
        (hooked.id, {"chat": "9"}),
    ):
        with mail.nothing_changes(db), pytest.raises(errors.StoreRefused):
            db.mail.settle_inbound(None, id_, "answered", outgoing=[mail.reply(**more)])
        with mail.nothing_changes(db), pytest.raises(errors.StoreRefused):
            db.mail.post(mail.reply(**more), inbound_id=id_)
    assert db.mail.settle_inbound(None, hooked.id, "answered", outgoing=[mail.reply(platform="near", chat="9")])


def test_inbound_message_is_settled_only_as_the_message_with_its_key(db: SessionDB) -> None:
    (message,) = mail.came(db, "1")
    conversations.begin(db, "talk", "of another sender")
    for where, error in (
        ({"seq": 1, "conversation_id": "talk"}, errors.InvalidArgument),
        ({"seq": 7, "conversation_id": "talk"}, errors.InvalidArgument),
        ({"seq": 1}, errors.InvalidArgument),
        ({"conversation_id": "unknown"}, errors.NoSuchSession),
    ):
        with mail.nothing_changes(db), pytest.raises(error):
            db.mail.settle_inbound(None, message.id, "answered", outgoing=[mail.reply()], **where)
    assert db.find_seq("talk", "inbox:far:1") is None
    seq = mail.said(db, "talk")
    assert db.find_seq("talk", "inbox:far:1") == seq == 2
    assert db.mail.settle_inbound(None, message.id, "silent", seq=seq, conversation_id="talk")


def test_deleting_a_conversation_redacts_its_mail_and_keeps_the_keys(db: SessionDB) -> None:
    message = mail.answered(db, "talk", "1")
    (waiting, joined) = mail.came(db, "2", "3")
    (untouched,) = mail.came(db, "4")
    db.mail.begin_inbound(db.mail.acquire_chat_lease(mail.CLAIM), waiting.id, "talk", [joined.id])
    db.mail.post(mail.reply(kind="question"), inbound_id=waiting.id, conversation_id="talk")
    db.delete_conversation("talk")
    for gone, outcome in ((message, "answered"), (waiting, "deleted"), (joined, "deleted")):
        found = mail.again(db, gone)
        assert (found.outcome, found.text, found.address, found.redacted) == (outcome, "", {}, True)
        assert (found.conversation_id, found.seq) == (None, None)
        assert db.mail.add_inbound(mail.new(gone.key)) == (found, False)
    assert (db.mail.replies(message.id), db.mail.due_outgoing("far")) == ([], [])
    assert not db.mail.settle_inbound(None, waiting.id, "answered", outgoing=[mail.reply()])
    assert db.mail.open_inbound(mail.ROUTE) == [untouched]


def test_redacting_a_message_redacts_its_inbound_message_and_replies(db: SessionDB) -> None:
    quoted, quiet = mail.answered(db, "talk", "1", "quotes it"), mail.answered(db, "talk", "2", "something else")
    (pending,) = db.mail.replies(quiet.id)
    db.redact("talk", quoted.seq or 0)
    assert (mail.again(db, quoted).text, mail.again(db, quoted).redacted) == ("", True)
    (gone,) = db.mail.replies(quoted.id)
    assert (gone.text, gone.redacted, gone.error, gone.open) == ("", True, "redacted", False)
    assert mail.again(db, quiet).text == "hello"
    assert db.mail.replies(quiet.id) == [pending]
    assert db.mail.last_chat("talk") is not None
    assert db.admin.fsck().ok
    backends.drop_triggers(db)
    backends.raw(db, "UPDATE arrivals SET body = '{}', redacted_at = NULL")
    assert "arrivals" in {each.promise for each in db.admin.fsck().violations}


def test_message_redacted_before_settlement_redacts_its_inbound_message(db: SessionDB) -> None:
    first, joined, other = mail.came(db, "1", "2", "3")
    lease = db.mail.acquire_chat_lease(mail.CLAIM)
    db.mail.begin_inbound(lease, first.id, "talk", [joined.id])
    where = {"seq": mail.said(db, "talk", "1"), "conversation_id": "talk"}
    db.redact("talk", 1)
    assert db.mail.settle_inbound(lease, first.id, "answered", outgoing=[mail.reply()], **where)
    assert [(mail.again(db, each).text, mail.again(db, each).redacted) for each in (first, joined)] == [("", True)] * 2
    assert db.mail.settle_inbound(lease, other.id, "silent", seq=mail.said(db, "talk", "3"), conversation_id="talk")
    assert mail.again(db, other).text == "hello"


def test_reply_part_is_redacted_with_the_message_it_names(db: SessionDB) -> None:
    (message,) = mail.came(db, "1")
    seq = mail.said(db, "talk")
    said = db.append_message("talk", role="assistant", content="a reply").seq
    outgoing = [mail.reply("of the reply", seq=said), mail.reply("of no message")]
    db.mail.settle_inbound(None, message.id, "answered", seq=seq, conversation_id="talk", outgoing=outgoing)
    for sent in db.mail.replies(message.id):
        db.mail.mark_delivered(sent.id, "there")
    db.redact("talk", seq)
    assert [sent.text for sent in db.mail.replies(message.id)] == ["of the reply", ""]
    db.redact("talk", said)
    assert [(sent.text, sent.external) for sent in db.mail.replies(message.id)] == [("", "there")] * 2


def test_open_mail_keeps_its_conversation_and_its_attachments(db: SessionDB, clock: Clock) -> None:
    digests = [db.blobs.put(content).digest for content in (b"came", b"sent", b"unused")]
    answered = mail.answered(db, "unsent", "1")
    (waiting,) = mail.came(db, "2", parts=[{"type": "image", "blob": digests[0]}])
    conversations.begin(db, "begun", "x")
    lease = db.mail.acquire_chat_lease(mail.CLAIM)
    db.mail.begin_inbound(lease, waiting.id, "begun")
    posted = db.mail.post(mail.reply(attachments=[digests[1]]), key="k")
    clock.advance(100 * conversations.DAY)
    plan = db.admin.plan_prune(older_than_days=50)
    assert ({each.conversation_id for each in plan.needed}, plan.going) == ({"unsent", "begun"}, ())
    assert (db.blobs.collect().blobs, db.blobs.get(digests[2])) == (1, None)
    db.mail.mark_delivered(db.mail.replies(answered.id)[0].id)
    db.mail.mark_failed(posted.id, "gone", None)
    db.mail.settle_inbound(lease, waiting.id, "ignored")
    assert {each.conversation_id for each in db.admin.plan_prune(older_than_days=50).going} == {"unsent", "begun"}
    assert db.blobs.collect().blobs == 2
