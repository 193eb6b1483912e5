"""Append: once, in order, at the head, whatever id was given and however often it is repeated."""

from __future__ import annotations

import pytest

from holdfast import NewConversation, NewMessage, SessionDB, errors, types
from tests.support import conversations


def test_receipt_says_where_the_message_is(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    receipt = db.append_message("talk", role="user", content="hello", uid="u1")
    assert receipt == types.Receipt(1, "u1", "talk", "talk", 1)
    (message,) = db.transcript("talk")
    assert (message.seq, message.uid, message.session_id, message.role) == (1, "u1", "talk", "user")
    assert (message.content, message.at) == ("hello", conversations.NOON)


def test_seqs_have_no_gaps_over_sessions(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a", "b")
    conversations.compact(db, "talk", 1)
    conversations.say(db, "talk", "c")
    db.end_conversation("talk", "done")
    conversations.say(db, "talk", "d")
    assert [message.seq for message in db.transcript("talk")] == [1, 2, 3, 4]
    assert [session.message_count for session in db.sessions("talk")] == [2, 1, 1]


def test_a_uid_is_minted_when_none_is_given(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    uids = {receipt.uid for receipt in conversations.say(db, "talk", *"abcdef")}
    assert len(uids) == 6


def test_time_given_is_kept(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    db.append_message("talk", role="user", content="late", at=12.5)
    assert db.transcript("talk")[0].at == 12.5


# --- repeating -----------------------------------------------------------------------------------------


def test_known_uid_with_the_same_content_is_a_duplicate(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    first = db.append_message("talk", role="user", content="x", uid="u")
    again = db.append_message("talk", role="user", content="x", uid="u")
    assert (again.seq, again.session_id, again.duplicate, first.duplicate) == (first.seq, "talk", True, False)
    assert len(db.transcript("talk")) == 1


@pytest.mark.parametrize("other", [{"content": "y"}, {"role": "assistant"}, {"tool_call_id": "c"}])
def test_known_uid_with_other_content_is_refused(db: SessionDB, other: dict[str, str]) -> None:
    conversations.begin(db, "talk")
    db.append_message("talk", role="user", content="x", uid="u")
    with conversations.nothing_changes(db), pytest.raises(errors.UidReused) as refusal:
        db.append_message("talk", **{"role": "user", "content": "x", "uid": "u", **other})
    assert (refusal.value.uid, refusal.value.seq) == ("u", 1)


def test_duplicate_returns_the_session_as_stored_and_the_epoch_as_now(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    db.append_message("talk", role="user", content="x", uid="u")
    head = conversations.compact(db, "talk", 1)
    again = db.append_message(head.id, role="user", content="x", uid="u")
    assert (again.session_id, again.epoch, again.duplicate) == ("talk", 2, True)


def test_duplicate_never_resumes_an_ended_conversation(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    db.append_message("talk", role="user", content="x", uid="u")
    db.end_conversation("talk", "done")
    again = db.append_message("talk", role="user", content="x", uid="u")
    assert (again.duplicate, again.resumed) == (True, False)
    assert not db.conversation("talk").live


def test_stored_message_stays_acknowledged_after_the_head_moved(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    db.append_message("talk", role="user", content="x", uid="u", expect_head=True)
    conversations.compact(db, "talk", 1)
    again = db.append_message("talk", role="user", content="x", uid="u", expect_head=True)
    assert (again.duplicate, again.seq) == (True, 1)


def test_stored_message_stays_acknowledged_after_its_lease_was_lost(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    lease = db.acquire_lease("talk", "turn")
    db.append_message("talk", role="user", content="x", uid="u", lease=lease)
    db.release_lease(lease)
    assert db.append_message("talk", role="user", content="x", uid="u", lease=lease).duplicate


def test_uids_of_different_conversations_are_strangers(db: SessionDB) -> None:
    for name in ("one", "two"):
        conversations.begin(db, name)
        assert not db.append_message(name, role="user", content=name, uid="u").duplicate


# --- batches -------------------------------------------------------------------------------------------


def test_batch_gets_the_next_numbers_in_order(db: SessionDB) -> None:
    conversations.begin(db, "talk", "first")
    batch = [NewMessage(role="user", content="a"), {"role": "assistant", "content": "b"}]
    assert [receipt.seq for receipt in db.append_messages("talk", batch)] == [2, 3]
    assert conversations.contents(db.transcript("talk")) == ["first", "a", "b"]


def test_batch_skips_what_it_knows(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    db.append_message("talk", role="user", content="b", uid="b")
    batch = [NewMessage(role="user", content=text, uid=text) for text in "abc"]
    receipts = db.append_messages("talk", batch)
    assert [(receipt.seq, receipt.duplicate) for receipt in receipts] == [(2, False), (1, True), (3, False)]


def test_the_same_message_twice_in_a_batch_is_stored_once(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    receipts = db.append_messages("talk", [NewMessage(role="user", content="x", uid="u")] * 2)
    assert [(receipt.seq, receipt.duplicate) for receipt in receipts] == [(1, False), (1, True)]


def test_one_uid_for_two_messages_of_a_batch_is_refused(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    batch = [NewMessage(role="user", content=text, uid="u") for text in ("x", "y")]
    with conversations.nothing_changes(db), pytest.raises(errors.UidReused):
        db.append_messages("talk", batch)


def test_batch_with_one_bad_message_writes_nothing(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    db.append_message("talk", role="user", content="x", uid="taken")
    good, bad = NewMessage(role="user", content="new"), NewMessage(role="user", content="other", uid="taken")
    with conversations.nothing_changes(db), pytest.raises(errors.UidReused):
        db.append_messages("talk", [good, bad])


def test_empty_batch_does_nothing(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    assert db.append_messages("talk", []) == []


# --- old ids, strict mode ------------------------------------------------------------------------------


def test_old_id_lands_at_the_head_and_says_so(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    head = conversations.compact(db, "talk", 1)
    receipt = db.append_message("talk", role="user", content="b")
    assert (receipt.session_id, receipt.moved_from, receipt.conversation_id) == (head.id, "talk", "talk")


def test_id_of_the_head_was_not_moved(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    head = conversations.compact(db, "talk", 1)
    assert db.append_message(head.id, role="user", content="b").moved_from is None


def test_strict_append_to_an_old_id_is_refused_with_the_head(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    head = conversations.compact(db, "talk", 1)
    with conversations.nothing_changes(db), pytest.raises(errors.Superseded) as refusal:
        db.append_message("talk", role="user", content="b", expect_head=True)
    assert (refusal.value.head, refusal.value.epoch) == (head.id, 2)
    assert db.append_message(head.id, role="user", content="b", expect_head=True).seq == 2


# --- ended conversations ------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["done", "compression", "orphaned_compression"])
def test_ended_conversation_never_refuses_a_message(db: SessionDB, reason: str) -> None:
    conversations.begin(db, "talk", "a")
    db.end_conversation("talk", reason)
    receipt = db.append_message("talk", role="user", content="b")
    assert receipt.resumed
    assert receipt.session_id == db.head("talk").id != "talk"
    assert conversations.seen(db, "talk") == ["a", "b"]
    assert db.get_session("talk").end_reason == reason


def test_only_the_first_message_after_an_end_resumes(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    db.end_conversation("talk", "done")
    assert [receipt.resumed for receipt in conversations.say(db, "talk", "b", "c")] == [True, False]


# --- fenced by a turn lease ----------------------------------------------------------------------------


def test_append_within_its_turn_is_accepted(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    lease = db.acquire_lease("talk", "turn")
    assert db.append_message("talk", role="user", content="x", lease=lease).seq == 1


def test_append_after_its_turn_ran_out_is_refused(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "talk")
    lease = db.acquire_lease("talk", "turn", ttl=30)
    clock.advance(30)
    with conversations.nothing_changes(db), pytest.raises(errors.LeaseLost):
        db.append_message("talk", role="user", content="x", lease=lease)


def test_append_after_its_turn_was_taken_over_is_refused(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    lease = db.acquire_lease("talk", "turn", "one")
    db.acquire_lease("talk", "turn", "one")
    with conversations.nothing_changes(db), pytest.raises(errors.LeaseLost):
        db.append_message("talk", role="user", content="x", lease=lease)


def test_lease_of_another_conversation_fences_nothing(db: SessionDB) -> None:
    conversations.begin(db, "one")
    conversations.begin(db, "two")
    lease = db.acquire_lease("one", "turn")
    with conversations.nothing_changes(db), pytest.raises(errors.LeaseLost):
        db.append_message("two", role="user", content="x", lease=lease)


# --- born with its first message ------------------------------------------------------------------------


def test_unknown_id_is_refused(db: SessionDB) -> None:
    with pytest.raises(errors.NoSuchSession) as refusal:
        db.append_message("nobody", role="user", content="x")
    assert refusal.value.session_id == "nobody"


def test_conversation_is_born_with_its_first_message_and_its_route(db: SessionDB) -> None:
    birth = NewConversation(source="chat", model="m", title="A  title", owner="me", route="chat:42")
    receipt = db.append_message("new", role="user", content="x", create=birth)
    session = db.get_session("new")
    assert (receipt.seq, receipt.session_id) == (1, "new")
    assert (session.source, session.model, session.title, session.owner) == ("chat", "m", "A title", "me")
    assert db.route("chat:42") == types.Route("chat:42", "new", 1)


def test_conversation_can_be_born_without_an_id(db: SessionDB) -> None:
    birth = NewConversation(source="chat")
    ids = {db.append_message(None, role="user", content="x", create=birth).conversation_id for _ in range(3)}
    assert len(ids) == 3


def test_birth_with_a_known_id_is_an_append(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    birth = NewConversation(source="other", title="unused", route="r")
    assert db.append_message("talk", role="user", content="b", create=birth).seq == 2
    assert (db.get_session("talk").title, db.route("r").conversation_id) == (None, None)


def test_repeated_birth_is_a_duplicate(db: SessionDB) -> None:
    birth = NewConversation(source="chat", title="t", route="r")
    for _ in range(2):
        receipt = db.append_message("new", role="user", content="x", uid="u", create=birth)
    assert (receipt.duplicate, db.route("r").version, len(db.transcript("new"))) == (True, 1, 1)


def test_birth_whose_route_is_bound_elsewhere_is_rolled_back(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    db.bind_route("r", "talk", version=0)
    with conversations.nothing_changes(db), pytest.raises(errors.RouteMoved) as refusal:
        db.append_message("new", role="user", content="x", create=NewConversation(source="s", route="r"))
    assert (refusal.value.conversation, refusal.value.version) == ("talk", 1)
    assert db.get_session("new") is None


def test_birth_takes_a_route_that_names_nothing(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    db.bind_route("r", "talk", version=0)
    db.bind_route("r", None, version=1)
    db.append_message("new", role="user", content="x", create=NewConversation(source="s", route="r"))
    assert db.route("r") == types.Route("r", "new", 3)


def test_birth_with_a_taken_title_is_rolled_back(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a", title="mine")
    with conversations.nothing_changes(db), pytest.raises(errors.TitleTaken):
        db.append_message("new", role="user", content="x", create=NewConversation(source="s", title="mine"))


def test_deleted_id_is_never_born_again(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    db.delete_conversation("talk")
    with pytest.raises(errors.ConversationDeleted):
        db.append_message("talk", role="user", content="x", create=NewConversation(source="s"))
    with pytest.raises(errors.ConversationDeleted):
        db.append_message("talk", role="user", content="x")


# --- many at once --------------------------------------------------------------------------------------


def test_many_threads_lose_nothing_and_leave_no_gap(db: SessionDB) -> None:
    conversations.begin(db, "talk")

    def work(name: int) -> list[int]:
        return [db.append_message("talk", role="user", content=f"{name}:{n}").seq for n in range(25)]

    seqs = conversations.at_once(*(lambda name=name: work(name) for name in range(8)))
    assert all(own == sorted(own) for own in seqs)
    assert sorted(seq for own in seqs for seq in own) == list(range(1, 201))
    for name in range(8):
        mine = [text for text in conversations.contents(db.transcript("talk")) if text.startswith(f"{name}:")]
        assert mine == [f"{name}:{n}" for n in range(25)]


def test_the_same_uid_from_many_threads_is_one_message(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    receipts = conversations.at_once(*[lambda: db.append_message("talk", role="user", content="x", uid="u")] * 8)
    assert [receipt.seq for receipt in receipts] == [1] * 8
    assert sum(not receipt.duplicate for receipt in receipts) == 1


def test_racing_births_of_one_id_are_one_conversation(db: SessionDB) -> None:
    birth = NewConversation(source="s", route="r")

    def born(name: int) -> types.Receipt:
        return db.append_message("new", role="user", content=str(name), create=birth)

    receipts = conversations.at_once(*(lambda name=name: born(name) for name in range(6)))
    assert sorted(receipt.seq for receipt in receipts) == [1, 2, 3, 4, 5, 6]
    assert db.route("r").version == 1


def test_racing_births_of_one_route_leave_one_conversation(db: SessionDB) -> None:
    birth = NewConversation(source="s", route="r")
    calls = [lambda: db.append_message(None, role="user", content="x", create=birth)] * 6
    outcomes = conversations.at_once(*calls)
    winners = [outcome for outcome in outcomes if isinstance(outcome, types.Receipt)]
    assert len(winners) == 1
    assert all(isinstance(loser, errors.RouteMoved) for loser in outcomes if loser not in winners)
    assert [session.id for session in db.list_sessions()] == [winners[0].conversation_id]


def test_racing_messages_after_an_end_open_one_continuation(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    db.end_conversation("talk", "done")
    receipts = conversations.at_once(*[lambda: db.append_message("talk", role="user", content="x")] * 6)
    assert sum(receipt.resumed for receipt in receipts) == 1
    assert len({receipt.session_id for receipt in receipts}) == 1
    assert len(db.sessions("talk")) == 2


def test_a_repeated_uid_is_told_where_its_message_is(db: SessionDB) -> None:
    db.create_session("first", source="test")
    db.append_message("first", role="user", content="x", uid="u")
    head = db.commit_compaction(db.snapshot("first"), summary="s", cut_seq=1).id
    again, from_head = (db.append_message(each, role="user", content="x", uid="u") for each in ("first", head))
    assert (again.session_id, again.moved_from) == ("first", None)
    assert (from_head.session_id, from_head.moved_from) == ("first", head)


def test_create_never_writes_into_another_owners_conversation(db: SessionDB) -> None:
    db.append_message("chat", role="user", content="x", create=NewConversation(source="test", owner="anna"))
    with pytest.raises(errors.IdTaken):
        db.append_message("chat", role="user", content="y", create=NewConversation(source="test", owner="ben"))
    assert len(db.transcript("chat")) == 1


def test_another_role_under_a_redacted_uid_is_refused(db: SessionDB) -> None:
    db.create_session("chat", source="test")
    db.append_message("chat", role="user", content="x", uid="u")
    db.redact("chat", 1)
    with pytest.raises(errors.UidReused):
        db.append_message("chat", role="assistant", content="x", uid="u")


def test_what_a_provider_sent_with_a_call_comes_back(db: SessionDB) -> None:
    db.create_session("chat", source="test")
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}, "signature": {"s": "SIG"}}
    db.append_message("chat", role="assistant", tool_calls=[call])
    (kept,) = db.transcript("chat")[0].tool_calls
    assert (kept.name, kept.extra) == ("f", {"signature": {"s": "SIG"}})
