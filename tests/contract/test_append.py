"""Append: stored once, in order, at the head, whichever session id is given and however often it is repeated."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import NewConversation, NewMessage, SessionDB, errors, types
from tests.support import backends, conversations
from tests.support.conversations import Clock


def test_receipt_and_message_name_their_place(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    receipt = db.append_message("talk", role="user", content="hello", uid="u1")
    assert receipt == types.Receipt(1, "u1", "talk", "talk", 1)
    minted = [db.append_message("talk", role="user", content="late", at=12.5).uid for _ in range(2)]
    assert len({receipt.uid, *minted}) == 3
    first, second, _ = db.transcript("talk")
    assert (first.seq, first.uid, first.session_id, first.role) == (1, "u1", "talk", "user")
    assert (first.content, first.at, second.at) == ("hello", conversations.NOON, 12.5)


def test_repeated_uid_is_a_duplicate_after_the_head_moved_and_the_lease_was_lost(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    lease = db.acquire_lease("talk", "turn")
    message: dict[str, Any] = {"role": "user", "content": "x", "uid": "u", "expect_head": True, "lease": lease}
    first = db.append_message("talk", **message)
    again = db.append_message("talk", **message)
    assert (first.duplicate, again.duplicate, again.moved_from) == (False, True, None)
    db.release_lease(lease)
    head = conversations.compact(db, "talk", 1)
    by_old_id, by_head = (db.append_message(name, **message) for name in ("talk", head.id))
    assert (by_old_id.seq, by_old_id.session_id, by_old_id.epoch, by_old_id.moved_from) == (1, "talk", 2, None)
    assert (by_head.session_id, by_head.moved_from) == ("talk", head.id)
    db.end_conversation("talk", "done")
    late = db.append_message("talk", **message)
    assert (late.duplicate, late.resumed, db.conversation("talk").live) == (True, False, False)
    assert len(db.transcript("talk")) == 1
    conversations.begin(db, "other")
    assert not db.append_message("other", role="user", content="y", uid="u").duplicate


@pytest.mark.parametrize("redacted", [False, True], ids=["stored", "redacted"])
@pytest.mark.parametrize("other", [{"content": "y"}, {"role": "assistant"}, {"tool_call_id": "c"}], ids=str)
def test_repeated_uid_with_another_message_is_refused(db: SessionDB, other: dict[str, str], redacted: bool) -> None:
    conversations.begin(db, "talk")
    db.append_message("talk", role="user", content="x", uid="u")
    repeated = {"role": "user", "content": "x", "uid": "u", **other}
    if redacted:
        db.redact("talk", 1)
        if "role" not in other:
            assert db.append_message("talk", **repeated).duplicate, "the text it had is unknown"
            return
    with conversations.nothing_changes(db), pytest.raises(errors.UidReused) as refusal:
        db.append_message("talk", **repeated)
    assert (refusal.value.uid, refusal.value.seq) == ("u", 1)


def test_batch_is_stored_in_order_without_the_messages_it_repeats(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    db.append_message("talk", role="user", content="b", uid="b")
    batch = [NewMessage(role="user", content=text, uid=text) for text in "abca"]
    receipts = db.append_messages("talk", [*batch, {"role": "assistant", "content": "d"}])
    assert [receipt.seq for receipt in receipts] == [2, 1, 3, 2, 4]
    assert [receipt.duplicate for receipt in receipts] == [False, True, False, True, False]
    assert conversations.contents(db.transcript("talk")) == ["b", "a", "c", "d"]
    assert db.append_messages("talk", []) == []
    for reused in ("a", "new"):
        other = {"role": "user", "content": "other", "uid": reused}
        with conversations.nothing_changes(db), pytest.raises(errors.UidReused):
            db.append_messages("talk", [{"role": "user", "uid": "new"}, other])


def test_append_by_an_old_id_lands_at_the_head_unless_strict(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    head = conversations.compact(db, "talk", 1)
    receipt = db.append_message("talk", role="user", content="b")
    assert (receipt.session_id, receipt.moved_from, receipt.conversation_id) == (head.id, "talk", "talk")
    with conversations.nothing_changes(db), pytest.raises(errors.Superseded) as refusal:
        db.append_message("talk", role="user", content="c", expect_head=True)
    assert (refusal.value.head, refusal.value.epoch) == (head.id, 2)
    assert db.append_message(head.id, role="user", content="c", expect_head=True).moved_from is None


def test_append_is_fenced_by_its_turn_lease(db: SessionDB, clock: Clock) -> None:
    conversations.begin_each(db, ("talk", "other"))
    lease = db.acquire_lease("talk", "turn", "one", ttl=30)
    assert db.append_message("talk", role="user", content="x", lease=lease).seq == 1
    impostor = types.Lease(lease.snapshot, "turn", lease.token, "another", 30)
    clock.advance(30)
    for name, wrong in (("other", lease), ("talk", impostor), ("talk", lease)):
        with conversations.nothing_changes(db), pytest.raises(errors.LeaseLost):
            db.append_message(name, role="user", content="x", lease=wrong)
    taken = db.acquire_lease("talk", "turn", "one")
    with conversations.nothing_changes(db), pytest.raises(errors.LeaseLost):
        db.append_message("talk", role="user", content="x", lease=lease)
    db.release_lease(taken)
    with conversations.nothing_changes(db), pytest.raises(errors.LeaseLost):
        db.append_message("talk", role="user", content="x", lease=taken)


def test_conversation_is_created_with_its_first_message_and_its_route(db: SessionDB) -> None:
    create = NewConversation(source="chat", model="m", title="A  title", owner="me", route="chat:42")
    for duplicate in (False, True):
        receipt = db.append_message("new", role="user", content="x", uid="u", create=create)
        assert (receipt.seq, receipt.session_id, receipt.duplicate) == (1, "new", duplicate)
    session = db.get_session("new")
    assert (session.source, session.model, session.title, session.owner) == ("chat", "m", "A title", "me")
    assert db.route("chat:42") == types.Route("chat:42", "new", 1, "me")
    minted = {db.append_message(None, role="user", create=NewConversation(source="s")).session_id for _ in range(3)}
    assert len(minted) == 3
    assert (
        db.append_message(
            "new", role="user", content="b", create=NewConversation(source="s", owner="me", route="r")
        ).seq
        == 2
    )
    assert db.route("r").conversation_id is None, "for a known id, it appends only"


def test_create_never_writes_into_a_conversation_of_another_owner(db: SessionDB) -> None:
    db.append_message("chat", role="user", content="x", create=NewConversation(source="test", owner="anna"))
    with conversations.nothing_changes(db), pytest.raises(errors.IdTaken):
        db.append_message("chat", role="user", content="y", create=NewConversation(source="test", owner="ben"))


def test_create_with_a_deleted_id_or_a_taken_route_or_title_is_rolled_back(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a", title="mine")
    db.bind_route("r", "talk", version=0)
    conversations.begin(db, "gone", "a")
    db.delete_conversation("gone")
    with conversations.nothing_changes(db):
        with pytest.raises(errors.ConversationDeleted):
            db.append_message("gone", role="user", content="x", create=NewConversation(source="s"))
        with pytest.raises(errors.RouteMoved) as refusal:
            db.append_message("new", role="user", content="x", create=NewConversation(source="s", route="r"))
        with pytest.raises(errors.TitleTaken):
            db.append_message("new", role="user", content="x", create=NewConversation(source="s", title="mine"))
    assert (refusal.value.conversation, refusal.value.version) == ("talk", 1)
    db.bind_route("r", None, version=1)
    db.append_message("new", role="user", content="x", create=NewConversation(source="s", route="r"))
    assert db.route("r") == types.Route("r", "new", 3)


@backends.on_files
def test_appends_of_many_threads_are_all_stored_in_each_threads_order(db: SessionDB) -> None:
    conversations.begin(db, "talk")

    def append_many(name: int) -> list[int]:
        return [db.append_message("talk", role="user", content=f"{name}:{n}").seq for n in range(25)]

    seqs = conversations.at_once(*(lambda name=name: append_many(name) for name in range(8)))
    assert all(own == sorted(own) for own in seqs)
    assert sorted(seq for own in seqs for seq in own) == list(range(1, 201))
    texts = conversations.contents(db.transcript("talk"))
    for name in range(8):
        assert [text for text in texts if text.startswith(f"{name}:")] == [f"{name}:{n}" for n in range(25)]
