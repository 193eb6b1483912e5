"""Arrivals: one row however often delivered, worked in one place, settled once, with what is to be sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from holdfast import AsyncSessionDB, SessionDB, errors, fault_points, types
from holdfast.store.mail import inbound
from tests.support import backends, conversations, mail

MakeDb = Callable[..., SessionDB]


# --- coming in -----------------------------------------------------------------------------------------


def test_repeated_delivery_is_one_inbound_message(db: SessionDB, clock: conversations.Clock) -> None:
    first, new = db.mail.add_inbound(mail.new(name="Ada", parts=[{"type": "image", "blob": "a" * 64}]))
    assert new
    clock.advance(5)
    for text in ("hello", "edited since"):
        assert db.mail.add_inbound(mail.new(text=text)) == (first, False)
    assert (first.text, first.name, first.at, first.address) == ("hello", "Ada", conversations.NOON, {"chat": 1})
    assert (first.platform, first.home, first.attempts, first.target, first.outcome) == ("far", "far", 0, None, None)
    assert db.mail.open_inbound(mail.ROUTE) == [first]
    assert db.mail.open_routes() == [mail.ROUTE]
    assert db.mail.inbound_by_key("far", "1") == first == db.mail.inbound(first.id)


def test_same_key_of_another_platform_is_another_message(db: SessionDB) -> None:
    here = db.mail.add_inbound(mail.new())
    other = types.NewInboundMessage(platform="near", key="1", route="r", chat="1", sender="7", address={}, home="far")
    there = db.mail.add_inbound(other)
    assert here[1]
    assert there[1]
    assert here[0].id != there[0].id
    assert there[0].home == "far"


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"key": ""}, errors.InvalidArgument),
        ({"key": "x" * 201}, errors.InvalidArgument),
        ({"key": "a\nb"}, errors.InvalidArgument),
        ({"platform": "p" * 41}, errors.InvalidArgument),
        ({"platform": ""}, errors.InvalidArgument),
        ({"home": ""}, errors.InvalidArgument),
        ({"route": ""}, errors.InvalidArgument),
        ({"chat": "x" * 501}, errors.InvalidArgument),
        ({"sender": ""}, errors.InvalidArgument),
        ({"text": 5}, errors.InvalidArgument),
        ({"text": "x" * 1_000_001}, errors.InvalidArgument),
        ({"text": "\ud800"}, errors.InvalidArgument),
        ({"name": 5}, errors.InvalidArgument),
        ({"parts": "no list"}, errors.InvalidArgument),
        ({"parts": [{"blob": b"bytes"}]}, errors.InvalidArgument),
        ({"address": []}, errors.InvalidArgument),
        ({"address": {"x": "y" * 20_000}}, errors.InvalidArgument),
        ({"address": {"x": float("nan")}}, errors.InvalidArgument),
        ({"at": -1}, errors.InvalidArgument),
    ],
)
def test_invalid_inbound_message_is_refused(db: SessionDB, more: dict[str, object], error: type[Exception]) -> None:
    given = {"platform": "far", "key": "1", "route": "r", "chat": "c", "sender": "s", "address": {}, **more}
    with mail.nothing_changes(db), pytest.raises(error):
        db.mail.add_inbound(types.NewInboundMessage(**given))
    with pytest.raises(errors.InvalidArgument):
        db.mail.add_inbound("text")


@pytest.mark.parametrize("text", ["", "a\0b", "\U0010ffff", "ü — 漢字 🎈", "'; DROP TABLE arrivals; --"])
def test_any_text_is_returned_unchanged(db: SessionDB, text: str) -> None:
    parts, where = [{"type": "text", "text": text}], {"chat": text, "thread": [1, None]}
    stored, _ = db.mail.add_inbound(mail.new(text=text, name=text, parts=parts, address=where))
    found = mail.again(db, stored)
    assert (found.text, found.name, found.parts, found.address) == (text, text, parts, where)


def test_concurrent_deliveries_store_one_message(make_db: MakeDb) -> None:
    one, other = make_db(), make_db()
    for key in map(str, range(20)):
        found = conversations.at_once(
            *(lambda db=db, key=key: db.mail.add_inbound(mail.new(key)) for db in (one, other))
        )
        assert sorted(new for _, new in found) == [False, True]
        assert len({arrival.id for arrival, _ in found}) == 1
    assert len(one.mail.open_inbound(mail.ROUTE)) == 20


def test_retry_after_a_lost_commit_reports_its_message_as_new(db: SessionDB) -> None:
    """The step is run again, as after a commit whose end nobody heard."""
    step = conversations.prepared(db.mail.add_inbound, mail.new())
    assert [found[1] for found in db.driver.write("arrive", lambda tx: [step.run(tx), step.run(tx)])] == [True, True]
    assert not db.mail.add_inbound(mail.new())[1]


def test_group_commit_returns_each_task_its_own_message(make_db: MakeDb) -> None:
    db, committed = make_db(), list[str]()

    async def burst() -> list[tuple[types.InboundMessage, bool]]:
        async with AsyncSessionDB(db) as store:
            return await asyncio.gather(*(store.mail.add_inbound(mail.new(str(n // 2))) for n in range(100)))

    fault_points.hook = lambda point: committed.append(point) if point == "arrive.committed" else None
    try:
        found = asyncio.run(burst())
    finally:
        fault_points.hook = None
    assert [arrival.key for arrival, _ in found] == [str(n // 2) for n in range(100)]
    assert [new for _, new in found] == [True, False] * 50
    assert [arrival.id for arrival, new in found if new] == sorted({arrival.id for arrival, _ in found})
    assert len(committed) < 20 or db.driver.concurrent_writes


# --- looking -------------------------------------------------------------------------------------------


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


def test_inbound_messages_of_a_route_are_counted_since_a_time(db: SessionDB, clock: conversations.Clock) -> None:
    for key in "abc":
        mail.came(db, key)
        clock.advance(10)
    mail.came(db, "d", route="other")
    assert [db.mail.count_inbound_on(mail.ROUTE, conversations.NOON + late) for late in (0, 1, 20, 21)] == [3, 2, 1, 0]


def test_deletions_are_not_counted_as_messages(db: SessionDB) -> None:
    mail.came(db, "a")
    mail.came(db, "delete:a")
    assert (db.mail.count_inbound_on(mail.ROUTE, 0.0), db.mail.count_inbound_from("far", "7", 0.0)) == (1, 1)


def test_inbound_messages_of_a_sender_are_counted_on_all_routes(db: SessionDB, clock: conversations.Clock) -> None:
    mail.came(db, "a")
    clock.advance(10)
    mail.came(db, "b", route="other")
    mail.came(db, "c", sender="8")
    mail.came(db, "d", platform="near")
    assert [db.mail.count_inbound_from("far", "7", conversations.NOON + late) for late in (0, 10, 11)] == [2, 1, 0]
    assert db.mail.count_inbound_from("far", "9", 0.0) == 0


# --- beginning -----------------------------------------------------------------------------------------


def test_first_target_is_final_and_every_attempt_is_counted(db: SessionDB) -> None:
    (arrival,) = mail.came(db, "1")
    claim = db.mail.acquire_chat_lease(mail.CLAIM)
    first = db.mail.begin_inbound(claim, arrival.id, "minted")
    assert first is not None
    assert (first.target, first.attempts) == ("minted", 1)
    second = db.mail.begin_inbound(db.mail.acquire_chat_lease(mail.CLAIM, holder=claim.holder), arrival.id, "another")
    assert second is not None
    assert (second.target, second.attempts) == ("minted", 2)


def test_lost_chat_lease_cannot_begin_or_settle(db: SessionDB) -> None:
    (arrival,) = mail.came(db, "1")
    stale = db.mail.acquire_chat_lease(mail.CLAIM, holder="me")
    fresh = db.mail.acquire_chat_lease(mail.CLAIM, holder="me")
    freed = db.mail.acquire_chat_lease("route:else")
    db.mail.release_chat_lease(freed)
    with mail.nothing_changes(db):
        for claim in (stale, freed, types.ChatLease("unknown", 1, "me", 30.0)):
            with pytest.raises(errors.LeaseLost):
                db.mail.begin_inbound(claim, arrival.id, "talk")
            with pytest.raises(errors.LeaseLost):
                db.mail.settle_inbound(claim, arrival.id, "answered", outgoing=[mail.reply()])
    assert db.mail.settle_inbound(fresh, arrival.id, "ignored")


def test_settled_message_cannot_begin_again(db: SessionDB) -> None:
    (arrival,) = mail.came(db, "1")
    claim = db.mail.acquire_chat_lease(mail.CLAIM)
    db.mail.settle_inbound(claim, arrival.id, "ignored")
    with mail.nothing_changes(db):
        assert db.mail.begin_inbound(claim, arrival.id, "talk") is None
        assert db.mail.begin_inbound(claim, 99, "talk") is None


def test_first_attempt_joins_messages_and_they_share_the_outcome(db: SessionDB) -> None:
    a, b, c = mail.came(db, "a", "b", "c")
    claim = db.mail.acquire_chat_lease(mail.CLAIM)
    db.mail.begin_inbound(claim, a.id, "talk", [b.id])
    db.mail.begin_inbound(claim, a.id, "talk", [c.id])
    assert [arrival.id for arrival in db.mail.joined_inbound(a.id)] == [b.id]
    assert [arrival.id for arrival in db.mail.open_inbound(mail.ROUTE)] == [a.id, c.id]
    with pytest.raises(errors.InvalidArgument):
        db.mail.begin_inbound(claim, b.id, "talk")
    seq = mail.said(db, "talk", "a")
    db.mail.settle_inbound(claim, a.id, "answered", seq=seq, conversation_id="talk", outgoing=[mail.reply()])
    told = [(each.outcome, each.conversation_id, each.seq) for each in (mail.again(db, a), mail.again(db, b))]
    assert told == [("answered", "talk", 1)] * 2
    assert mail.again(db, c).outcome is None
    assert len(db.mail.replies(a.id)) == 1
    assert db.mail.replies(b.id) == []


def test_only_open_messages_of_the_same_route_are_joined(db: SessionDB) -> None:
    a, begun = mail.came(db, "a", "begun")
    (elsewhere,) = mail.came(db, "b", route="other")
    claim = db.mail.acquire_chat_lease(mail.CLAIM)
    db.mail.begin_inbound(claim, begun.id, "talk")
    for other in (elsewhere, begun, a):
        with mail.nothing_changes(db), pytest.raises(errors.StoreRefused):
            db.mail.begin_inbound(claim, a.id, "talk", [other.id])


# --- taking up ------------------------------------------------------------------------------------------


def first_in(target: str, *joined: int) -> inbound.ChooseMessage:
    return lambda waiting, _: (waiting[0].id, target, joined)


def test_begin_next_acquires_the_lease_and_begins_the_message(db: SessionDB) -> None:
    a, b, c = mail.came(db, "a", "b", "c")
    db.create_session("talk", source="test")
    db.bind_route(mail.ROUTE, "talk", version=0)
    seen = list[object]()

    def choose(waiting: Sequence[types.InboundMessage], route: types.Route) -> tuple[int, str, list[int]]:
        seen.append(([each.id for each in waiting], route.conversation_id))
        return a.id, "talk", [b.id]

    taken = db.mail.begin_next_inbound(mail.ROUTE, choose, limit=2)
    assert seen == [([a.id, b.id], "talk")]
    assert taken.waiting == [a, b]
    assert (taken.begun, mail.again(db, a).attempts) == (mail.again(db, a), 1)
    assert (mail.again(db, a).target, mail.again(db, b).joined) == ("talk", a.id)
    assert [(held.key, held.token) for held in db.mail.chat_leases()] == [
        (mail.CLAIM, taken.lease and taken.lease.token)
    ]
    assert db.mail.settle_inbound(taken.lease, a.id, "ignored")
    again = db.mail.begin_next_inbound(mail.ROUTE, first_in("other"), lease=taken.lease)
    assert (again.lease, again.begun) == (taken.lease, mail.again(db, c))


def test_begin_next_without_a_choice_acquires_the_lease_only(db: SessionDB) -> None:
    (arrival,) = mail.came(db, "a")
    taken = db.mail.begin_next_inbound(mail.ROUTE, lambda *_: None)
    assert (taken.waiting, taken.begun, mail.again(db, arrival)) == ([arrival], None, arrival)
    assert taken.lease is not None
    db.mail.renew_chat_lease(taken.lease)


def test_begin_next_without_open_messages_acquires_a_lease_only_if_idle(db: SessionDB) -> None:
    assert db.mail.begin_next_inbound(mail.ROUTE, first_in("talk")) == types.NextInbound(None, [])
    assert db.mail.chat_leases() == []
    idle = db.mail.begin_next_inbound(mail.ROUTE, first_in("talk"), idle=True)
    assert idle == types.NextInbound(idle.lease, [])
    assert [held.key for held in db.mail.chat_leases()] == [mail.CLAIM]


def test_begin_next_is_busy_while_another_holds_the_lease(db: SessionDB) -> None:
    mail.came(db, "a")
    old = db.mail.acquire_chat_lease(mail.CLAIM, holder="me")
    db.mail.release_chat_lease(old)
    db.mail.acquire_chat_lease(mail.CLAIM, holder="other")
    with mail.nothing_changes(db), pytest.raises(errors.Busy):
        db.mail.begin_next_inbound(mail.ROUTE, first_in("talk"))
    with mail.nothing_changes(db), pytest.raises(errors.LeaseLost):
        db.mail.begin_next_inbound(mail.ROUTE, first_in("talk"), lease=old)


def test_begin_next_refuses_a_choice_that_is_not_open_on_the_route(db: SessionDB) -> None:
    mail.came(db, "a")
    (elsewhere,) = mail.came(db, "b", route="other")
    with mail.nothing_changes(db), pytest.raises(errors.InvalidArgument):
        db.mail.begin_next_inbound(mail.ROUTE, lambda *_: (elsewhere.id, "talk", []))
    assert db.mail.chat_leases() == []


# --- settling ------------------------------------------------------------------------------------------


def test_outcome_and_replies_are_written_together(db: SessionDB) -> None:
    arrival = mail.answered(db, "talk", "1", "one", "two")
    assert (arrival.outcome, arrival.conversation_id, arrival.seq) == ("answered", "talk", 1)
    sent = db.mail.replies(arrival.id)
    assert [(each.part, each.text, each.kind, each.inbound_id) for each in sent] == [
        (0, "one", "reply", arrival.id),
        (1, "two", "reply", arrival.id),
    ]
    assert {each.at for each in sent} == {arrival.settled_at}


def test_second_settlement_writes_nothing(db: SessionDB) -> None:
    arrival = mail.answered(db)
    claim = db.mail.acquire_chat_lease(mail.CLAIM, holder="other")
    with mail.nothing_changes(db):
        assert not db.mail.settle_inbound(claim, arrival.id, "failed", outgoing=[mail.reply("again")])
        assert not db.mail.settle_inbound(None, arrival.id, "answered", outgoing=[mail.reply("again")])
        assert not db.mail.settle_inbound(None, 99, "answered", outgoing=[mail.reply("again")])


def test_concurrent_settlements_have_one_winner(make_db: MakeDb) -> None:
    one, other = make_db(), make_db()
    for arrival in mail.came(one, *map(str, range(20))):
        found = conversations.at_once(
            lambda: one.mail.settle_inbound(None, arrival.id, "one", outgoing=[mail.reply("one")]),  # noqa: B023
            lambda: other.mail.settle_inbound(None, arrival.id, "other", outgoing=[mail.reply("other")]),  # noqa: B023
        )
        assert sorted(map(bool, found)) == [False, True]
        (sent,) = one.mail.replies(arrival.id)
        assert sent.text == mail.again(one, arrival).outcome


def test_reply_to_another_chat_is_refused(db: SessionDB) -> None:
    (arrival,) = mail.came(db, "1")
    (hooked,) = mail.came(db, "2", home="near", chat="9")
    for id_, more in (
        (arrival.id, {"chat": "2"}),
        (arrival.id, {"platform": "near"}),
        (arrival.id, {"address": {"chat": 2}}),
        (hooked.id, {}),
        (hooked.id, {"chat": "9"}),
    ):
        with mail.nothing_changes(db), pytest.raises(errors.StoreRefused):
            db.mail.settle_inbound(None, id_, "answered", outgoing=[mail.reply(**more)])
        with mail.nothing_changes(db), pytest.raises(errors.StoreRefused):
            db.mail.post(mail.reply(**more), inbound_id=id_)
    assert db.mail.settle_inbound(None, hooked.id, "answered", outgoing=[mail.reply(platform="near", chat="9")])


def test_inbound_message_becomes_only_the_message_with_its_key(db: SessionDB) -> None:
    (arrival,) = mail.came(db, "1")
    conversations.begin(db, "talk", "somebody else's")
    for where in ({"seq": 1, "conversation_id": "talk"}, {"seq": 7, "conversation_id": "talk"}, {"seq": 1}):
        with mail.nothing_changes(db), pytest.raises(errors.InvalidArgument):
            db.mail.settle_inbound(None, arrival.id, "answered", outgoing=[mail.reply()], **where)
    with mail.nothing_changes(db), pytest.raises(errors.NoSuchSession):
        db.mail.settle_inbound(None, arrival.id, "answered", conversation_id="unknown", outgoing=[mail.reply()])
    assert db.find_seq("talk", "inbox:far:1") is None
    seq = mail.said(db, "talk")
    assert db.find_seq("talk", "inbox:far:1") == seq == 2
    assert db.mail.settle_inbound(
        None, arrival.id, "answered", seq=seq, conversation_id="talk", outgoing=[mail.reply()]
    )
    with pytest.raises(errors.NoSuchSession):
        db.find_seq("unknown", "inbox:far:1")


def test_settlement_releases_the_lease_on_request(db: SessionDB) -> None:
    a, b = mail.came(db, "a", "b")
    claim = db.mail.acquire_chat_lease(mail.CLAIM)
    db.mail.settle_inbound(claim, a.id, "ignored")
    assert len(db.mail.chat_leases()) == 1
    db.mail.settle_inbound(claim, b.id, "ignored", release=True)
    assert db.mail.chat_leases() == []


def test_inbox_entry_is_settled_with_its_replies(db: SessionDB) -> None:
    mail.answered(db)
    row = db.mail.add_inbox_entry("talk", "k", "a process ended")
    assert db.mail.settle_inbox_entry(row.id, "answered", outgoing=[mail.reply("one"), mail.reply("two")])
    assert not db.mail.settle_inbox_entry(row.id, "answered", outgoing=[mail.reply("again")])
    sent = [db.mail.outgoing(id_) for id_ in (2, 3)]
    assert [(each.inbox_entry_id, each.part, each.text, each.conversation_id) for each in sent if each] == [
        (row.id, 0, "one", "talk"),
        (row.id, 1, "two", "talk"),
    ]
    assert db.mail.outgoing(4) is None


def test_home_is_the_chat_of_the_last_inbound_message(db: SessionDB) -> None:
    conversations.begin(db, "other", "from a terminal")
    assert db.mail.last_chat("other") is None
    mail.answered(db, "talk", "1")
    (arrival,) = mail.came(db, "2", chat="2", address={"chat": 2}, route="another")
    db.mail.settle_inbound(None, arrival.id, "ignored", conversation_id=conversations.compact(db, "talk", 1).id)
    assert db.mail.last_chat("talk") == ("far", "2", {"chat": 2}, "another")
    with pytest.raises(errors.NoSuchSession):
        db.mail.last_chat("unknown")


# --- going ---------------------------------------------------------------------------------------------


def test_deleting_a_conversation_redacts_its_mail_and_keeps_the_keys(db: SessionDB) -> None:
    arrival = mail.answered(db, "talk", "1")
    (waiting, joined) = mail.came(db, "2", "3")
    (untouched,) = mail.came(db, "4")
    db.mail.begin_inbound(db.mail.acquire_chat_lease(mail.CLAIM), waiting.id, "talk", [joined.id])
    db.mail.post(mail.reply(kind="question"), inbound_id=waiting.id, conversation_id="talk")
    db.delete_conversation("talk")
    for gone, outcome in ((arrival, "answered"), (waiting, "deleted"), (joined, "deleted")):
        found = mail.again(db, gone)
        assert (found.outcome, found.text, found.address, found.redacted) == (outcome, "", {}, True)
        assert (found.conversation_id, found.seq) == (None, None)
        assert db.mail.add_inbound(mail.new(gone.key)) == (found, False)
    assert db.mail.replies(arrival.id) == []
    assert db.mail.due_outgoing("far") == []
    assert not db.mail.settle_inbound(None, waiting.id, "answered", outgoing=[mail.reply()])
    assert db.mail.open_inbound(mail.ROUTE) == [untouched]


def test_redacting_a_message_redacts_its_inbound_message_and_replies(db: SessionDB) -> None:
    told, quiet = mail.answered(db, "talk", "1", "quotes it"), mail.answered(db, "talk", "2", "something else")
    assert told.seq is not None
    (pending,) = db.mail.replies(quiet.id)
    db.redact("talk", told.seq)
    assert (mail.again(db, told).text, mail.again(db, told).redacted) == ("", True)
    (gone,) = db.mail.replies(told.id)
    assert (gone.text, gone.redacted, gone.error, gone.open) == ("", True, "redacted", False)
    assert mail.again(db, quiet).text == "hello"
    assert db.mail.replies(quiet.id) == [pending]
    assert db.mail.last_chat("talk") is not None


def test_message_redacted_before_settlement_redacts_its_inbound_message(db: SessionDB) -> None:
    first, joined, other = mail.came(db, "1", "2", "3")
    claim = db.mail.acquire_chat_lease(mail.CLAIM)
    db.mail.begin_inbound(claim, first.id, "talk", [joined.id])
    where = {"seq": mail.said(db, "talk", "1"), "conversation_id": "talk"}
    db.redact("talk", 1)
    assert db.mail.settle_inbound(claim, first.id, "answered", outgoing=[mail.reply()], **where)
    assert [(mail.again(db, each).text, mail.again(db, each).redacted) for each in (first, joined)] == [("", True)] * 2
    assert db.mail.settle_inbound(claim, other.id, "silent", seq=mail.said(db, "talk", "3"), conversation_id="talk")
    assert mail.again(db, other).text == "hello"


def test_fsck_finds_the_text_of_a_redacted_message(db: SessionDB) -> None:
    arrival = mail.answered(db, "talk")
    db.redact("talk", arrival.seq or 0)
    assert db.admin.fsck().ok
    backends.drop_triggers(db)
    backends.raw(db, "UPDATE arrivals SET body = '{}', redacted_at = NULL")
    assert "arrivals" in {each.promise for each in db.admin.fsck().violations}


def test_reply_part_is_redacted_with_the_message_it_names(db: SessionDB) -> None:
    (arrival,) = mail.came(db, "1")
    seq = mail.said(db, "talk")
    said = db.append_message("talk", role="assistant", content="a reply").seq
    outgoing = [mail.reply("of the reply", seq=said), mail.reply("of no message")]
    db.mail.settle_inbound(None, arrival.id, "answered", seq=seq, conversation_id="talk", outgoing=outgoing)
    for sent in db.mail.replies(arrival.id):
        db.mail.mark_delivered(sent.id, "there")
    db.redact("talk", seq)
    assert [sent.text for sent in db.mail.replies(arrival.id)] == ["of the reply", ""]
    db.redact("talk", said)
    assert [(sent.text, sent.external) for sent in db.mail.replies(arrival.id)] == [("", "there")] * 2


def test_expiry_keeps_the_last_message_of_a_conversation(db: SessionDB, clock: conversations.Clock) -> None:
    a, b = mail.came(db, "a", "b")
    claim = db.mail.acquire_chat_lease(mail.CLAIM)
    db.mail.begin_inbound(claim, a.id, "talk", [b.id])
    where = {"seq": mail.said(db, "talk", "a"), "conversation_id": "talk"}
    db.mail.settle_inbound(claim, a.id, "answered", outgoing=[mail.reply()], release=True, **where)
    kept = [mail.answered(db, "talk", key) for key in ("unsent", "last")]
    (waiting,) = mail.came(db, "waiting")
    for arrival in (a, kept[1]):
        db.mail.mark_delivered(db.mail.replies(arrival.id)[0].id, "there")
    assert db.mail.expire(30).deleted == 0
    clock.advance(31 * conversations.DAY)
    assert db.mail.expire(30).deleted == 3
    assert db.mail.inbound(a.id) is db.mail.inbound(b.id) is None
    assert all(db.mail.inbound(arrival.id) is not None for arrival in (*kept, waiting))
    assert [len(db.mail.replies(arrival.id)) for arrival in kept] == [1, 1]
    assert db.mail.add_inbound(mail.new("a"))[1]
    assert not db.mail.add_inbound(mail.new("last"))[1]


def test_open_mail_keeps_its_conversation_from_being_pruned(db: SessionDB, clock: conversations.Clock) -> None:
    arrival = mail.answered(db, "unsent", "1")
    (waiting,) = mail.came(db, "2")
    conversations.begin(db, "begun", "x")
    claim = db.mail.acquire_chat_lease(mail.CLAIM)
    db.mail.begin_inbound(claim, waiting.id, "begun")
    clock.advance(100 * conversations.DAY)
    plan = db.admin.plan_prune(older_than_days=50)
    assert {each.conversation_id for each in plan.needed} == {"unsent", "begun"}
    assert plan.going == ()
    db.mail.mark_delivered(db.mail.replies(arrival.id)[0].id)
    db.mail.settle_inbound(claim, waiting.id, "ignored")
    assert {each.conversation_id for each in db.admin.plan_prune(older_than_days=50).going} == {"unsent", "begun"}


def test_attachment_of_open_mail_is_not_collected(db: SessionDB, clock: conversations.Clock) -> None:
    came, sent, nobody = (db.blobs.put(content).digest for content in (b"came", b"sent", b"nobody's"))
    (arrival,) = mail.came(db, "1", parts=[{"type": "image", "blob": came}])
    db.mail.post(mail.reply(attachments=[sent]), key="k")
    clock.advance(2 * conversations.DAY)
    assert db.blobs.collect().blobs == 1
    assert db.blobs.get(nobody) is None
    db.mail.settle_inbound(None, arrival.id, "ignored")
    db.mail.mark_failed(1, "gone", None)
    assert db.blobs.collect().blobs == 2


def test_inbound_messages_are_found_by_key_prefix_and_by_conversation(db: SessionDB) -> None:
    a, b, _ = mail.came(db, "aa1", "aa2", "ab1")
    mail.came(db, "aa3", platform="near")
    assert db.mail.inbound_with_prefix("far", "aa") == [b, a]
    assert db.mail.inbound_with_prefix("far", "aa", limit=1) == [b]
    assert db.mail.inbound_with_prefix("far", "aa1") == [a]
    assert db.mail.inbound_with_prefix("far", "b") == []
    for key in ("c", "d"):
        mail.answered(db, "talk", key)
    assert (found := db.mail.last_inbound("talk", "far")) is not None
    assert (found.key, db.mail.last_inbound("talk", "near")) == ("d", None)
