"""Sessions: created, ended once, resumed by one continuation, and the way of two calls to compact."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from holdfast import SessionDB, errors, types
from holdfast.store import conversation_row
from tests.contract.conftest import MakeDb
from tests.support import conversations


def test_session_tells_all_about_itself(db: SessionDB) -> None:
    made = db.create_session("talk", source="cli", model="m", title="T", owner="me")
    assert made == types.Session(
        "talk", "talk", 1, None, "me", "cli", "m", "T", conversations.NOON, None, None, 1, 0, conversations.NOON
    )
    assert (made.message_count, made.live) == (0, True)
    assert db.get_session("talk") == made == db.head("talk")


def test_conversation_tells_where_it_stands(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a", title="T")
    head = conversations.compact(db, "talk", 1)
    assert db.conversation("talk") == types.Conversation(
        "talk", "", "test", "T", conversations.NOON, head.id, True, 2, 1, 2, None, None, None
    )


def test_minted_ids_say_when_the_session_began(db: SessionDB) -> None:
    assert re.fullmatch(r"20260921_141320_[0-9a-f]{6}", db.create_session(source="cli").id)


def test_chance_never_gives_two_conversations_one_id(db: SessionDB, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter(["one", "one", "two", "two", "three", "three", "four"])
    monkeypatch.setattr(conversation_row, "generate_session_id", lambda now: next(drawn))
    birth = types.NewConversation(source="chat")
    assert db.create_session(source="cli").id == "one"
    assert db.create_session(source="cli").id == "two"
    assert db.append_message(None, role="user", content="x", create=birth).session_id == "three"
    db.end_conversation("one", "done")
    assert db.resume("one").id == "four"


def test_unknown_session_is_none(db: SessionDB) -> None:
    assert db.get_session("nobody") is None
    for look in (db.head, db.sessions, db.continuations, db.branches, db.conversation, db.context, db.transcript):
        with pytest.raises(errors.NoSuchSession):
            look("nobody")


def test_same_call_again_returns_the_session_it_made(db: SessionDB) -> None:
    first = db.create_session("talk", source="cli", title="T")
    conversations.say(db, "talk", "a")
    with conversations.nothing_changes(db):
        assert db.create_session("talk", source="cli", title="T").id == first.id


def test_id_of_another_owner_is_taken(db: SessionDB) -> None:
    db.create_session("talk", source="cli", owner="me")
    with pytest.raises(errors.IdTaken):
        db.create_session("talk", source="cli", owner="you")


def test_id_of_a_continuation_is_taken(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    child = conversations.compact(db, "talk", 1)
    with pytest.raises(errors.IdTaken):
        db.create_session(child.id, source="cli")


def test_message_count_is_of_the_sessions_own_messages(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abc")
    child = conversations.compact(db, "talk", 1)
    conversations.say(db, "talk", "d")
    assert [session.message_count for session in db.sessions("talk")] == [3, 1]
    assert db.get_session(child.id).message_count == 1


# --- the end -------------------------------------------------------------------------------------------


def test_first_end_wins(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "talk", "a")
    assert db.end_session("talk", "first") is True
    clock.advance(5)
    assert db.end_session("talk", "second") is False
    assert db.end_conversation("talk", "third") is False
    ended = db.get_session("talk")
    assert (ended.end_reason, ended.ended_at) == ("first", conversations.NOON)


def test_racing_ends_have_one_winner(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    outcomes = conversations.at_once(*(lambda n=n: (db.end_session("talk", f"reason {n}"), n) for n in range(6)))
    (winner,) = [n for ended, n in outcomes if ended]
    assert db.get_session("talk").end_reason == f"reason {winner}"
    assert db.conversation("talk").epoch == 2


def test_end_session_acts_on_that_very_session(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    conversations.compact(db, "talk", 1)
    with conversations.nothing_changes(db):
        assert db.end_session("talk", "late") is False


def test_end_conversation_ends_the_head_by_any_id(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    head = conversations.compact(db, "talk", 1)
    assert db.end_conversation("talk", "done") is True
    assert db.get_session(head.id).end_reason == "done"
    assert (db.conversation("talk").live, db.head("talk").live) == (False, False)


def test_end_raises_the_epoch_and_keeps_the_context(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    db.end_conversation("talk", "done")
    assert (db.conversation("talk").epoch, conversations.seen(db, "talk")) == (2, ["a"])


@pytest.mark.parametrize("reason", ["", "x" * 101, "a\nb", None, 5, b"x", "\ud800"])
def test_end_without_a_proper_reason_is_refused(db: SessionDB, reason: object) -> None:
    conversations.begin(db, "talk", "a")
    for end in (db.end_session, db.end_conversation):
        with conversations.nothing_changes(db), pytest.raises(errors.InvalidArgument):
            end("talk", reason)


# --- resume --------------------------------------------------------------------------------------------


def test_resume_of_a_live_conversation_is_its_head(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    head = conversations.compact(db, "talk", 1)
    with conversations.nothing_changes(db):
        assert db.resume("talk").id == head.id


def test_resume_opens_a_continuation_with_the_same_context(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abc", model="m")
    conversations.compact(db, "talk", 2, "gist")
    ended = db.head("talk")
    db.end_conversation("talk", "done")
    resumed = db.resume("talk")
    assert (resumed.parent_session_id, resumed.live, resumed.source, resumed.model) == (ended.id, True, "test", "m")
    assert (conversations.seen(db, "talk"), db.conversation("talk").epoch) == (["gist", "c"], 4)


def test_racing_resumes_get_the_winner(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    db.end_conversation("talk", "done")
    outcomes = conversations.at_once(*[lambda: db.resume("talk").id] * 6)
    assert len(set(outcomes)) == 1
    assert len(db.sessions("talk")) == 2


def test_racing_ends_and_resumes_leave_one_chain(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")

    def ends() -> None:
        for _ in range(10):
            db.end_conversation("talk", "done")

    def resumes() -> None:
        for _ in range(10):
            db.resume("talk")

    conversations.at_once(ends, resumes, ends, resumes)
    chain = db.sessions("talk")
    assert [session.parent_session_id for session in chain] == [None, *(session.id for session in chain[:-1])]


# --- the two-call way ----------------------------------------------------------------------------------


def test_two_calls_make_a_continuation_whose_context_is_its_own(db: SessionDB) -> None:
    conversations.begin(db, "parent", "a", "b", title="T")
    db.end_session("parent", "compression")
    child = db.create_session("child", source="gateway", model="m", parent_session_id="parent")
    assert (child.conversation_id, child.parent_session_id, child.ordinal) == ("parent", "parent", 2)
    assert (child.source, child.model, child.title) == ("gateway", "m", "T")
    assert conversations.seen(db, "child") == []
    conversations.say(db, "child", "summary of a and b", "c")
    assert conversations.seen(db, "parent") == ["summary of a and b", "c"]
    assert conversations.contents(db.transcript("child")) == ["a", "b", "summary of a and b", "c"]


def test_two_call_compaction_can_be_undone(db: SessionDB) -> None:
    conversations.begin(db, "parent", "a")
    db.end_session("parent", "compression")
    db.create_session("child", source="s", parent_session_id="parent")
    conversations.say(db, "child", "b")
    db.undo_compaction("child")
    assert conversations.seen(db, "child") == ["a", "b"]


def test_continuation_may_bring_a_title(db: SessionDB) -> None:
    conversations.begin(db, "parent", "a", title="old")
    conversations.begin(db, "other", title="taken")
    db.end_session("parent", "compression")
    with conversations.nothing_changes(db), pytest.raises(errors.TitleTaken):
        db.create_session("child", source="s", parent_session_id="parent", title="taken")
    assert db.create_session("child", source="s", parent_session_id="parent", title="new").title == "new"
    assert db.get_session("parent").title == "new"


def test_second_continuation_is_refused_and_told_where_to_go_on(db: SessionDB) -> None:
    conversations.begin(db, "parent", "a")
    db.end_session("parent", "compression")
    db.create_session("child", source="s", parent_session_id="parent")
    with conversations.nothing_changes(db):
        assert db.create_session("child", source="s", parent_session_id="parent").id == "child"
        with pytest.raises(errors.ForkRefused) as refusal:
            db.create_session("second", source="s", parent_session_id="parent")
        with pytest.raises(errors.ForkRefused):
            db.create_session(source="s", parent_session_id="parent")
    assert refusal.value.continuation == "child"


def test_continuation_of_a_committed_compaction_is_the_only_one(db: SessionDB) -> None:
    conversations.begin(db, "parent", "a")
    child = conversations.compact(db, "parent", 1)
    with conversations.nothing_changes(db), pytest.raises(errors.ForkRefused) as refusal:
        db.create_session("second", source="s", parent_session_id="parent")
    assert refusal.value.continuation == child.id


def test_two_racing_callers_of_the_two_calls_make_one_continuation(db: SessionDB) -> None:
    conversations.begin(db, "parent", "a")

    def caller(name: str) -> str:
        db.end_session("parent", "compression")
        try:
            return db.create_session(name, source="s", parent_session_id="parent").id
        except errors.ForkRefused as refusal:
            return refusal.continuation

    heads = conversations.at_once(*(lambda name=name: caller(name) for name in ("one", "two", "three")))
    assert len(set(heads)) == 1
    assert [session.id for session in db.continuations("parent")] == [heads[0]]
    assert conversations.say(db, "parent", "b")[0].session_id == heads[0]


def test_killed_between_the_calls_the_next_message_is_accepted(make_db: MakeDb) -> None:
    first = make_db()
    conversations.begin(first, "parent", "a")
    first.end_session("parent", "compression")
    first.close()
    db = make_db()
    receipt = db.append_message("parent", role="user", content="b")
    assert receipt.resumed
    assert conversations.seen(db, "parent") == ["a", "b"]
    with pytest.raises(errors.ForkRefused) as refusal:
        db.create_session("child", source="s", parent_session_id="parent")
    assert refusal.value.continuation == receipt.session_id


End = Callable[[SessionDB], object]


@pytest.mark.parametrize(
    "end",
    [lambda db: None, lambda db: db.end_session("parent", "done"), lambda db: db.end_session("parent", "Compression")],
    ids=["live", "ended otherwise", "nearly compression"],
)
def test_child_of_any_other_parent_is_a_new_conversation(db: SessionDB, end: End) -> None:
    conversations.begin(db, "parent", "a", owner="me")
    end(db)
    child = db.create_session("child", source="s", parent_session_id="parent")
    assert (child.conversation_id, child.parent_session_id, child.ordinal) == ("child", "parent", 1)
    assert (conversations.seen(db, "child"), db.conversation("child").forked_at) == ([], 0)
    assert db.branches("parent") == ["child"]
    assert db.continuations("parent") == []


def test_child_of_a_resumed_parent_is_a_new_conversation(db: SessionDB) -> None:
    conversations.begin(db, "parent", "a")
    db.end_session("parent", "done")
    db.resume("parent")
    assert db.create_session("child", source="s", parent_session_id="parent").conversation_id == "child"


def test_same_child_of_another_parent_is_refused(db: SessionDB) -> None:
    for name in ("one", "two"):
        conversations.begin(db, name)
    db.create_session("child", source="s", parent_session_id="one")
    for parent in ("two", None):
        with conversations.nothing_changes(db), pytest.raises(errors.IdTaken):
            db.create_session("child", source="s", parent_session_id=parent)


def test_child_of_an_unknown_or_deleted_parent_is_refused(db: SessionDB) -> None:
    with pytest.raises(errors.NoSuchSession):
        db.create_session("child", source="s", parent_session_id="nobody")
    conversations.begin(db, "gone", "a")
    db.delete_conversation("gone")
    with pytest.raises(errors.ConversationDeleted):
        db.create_session("child", source="s", parent_session_id="gone")
    with pytest.raises(errors.ConversationDeleted):
        db.create_session("gone", source="s")


def test_of_what_was_deleted_nobody_who_shares_a_store_is_told(db: SessionDB) -> None:
    db.create_session("20260101-000000-secret", source="far", owner="far:ann")
    db.delete_conversation("20260101-000000-secret")
    for text in ("20260101-000000-secret", "20260101-000000-other"):
        with pytest.raises(errors.NoSuchSession) as told:
            db.resolve(text, owner="far:bob")
        assert not isinstance(told.value, errors.ConversationDeleted)
    with pytest.raises(errors.ConversationDeleted):
        db.resolve("20260101-000000-secret", owner="")


# --- the database over time ------------------------------------------------------------------------------


def test_everything_is_there_after_reopening(make_db: MakeDb) -> None:
    first = make_db()
    conversations.begin(first, "talk", *"abc", title="T")
    conversations.compact(first, "talk", 1, "gist", pinned=[1])
    first.hide("talk", 3)
    first.bind_route("r", "talk", version=0)
    before = conversations.everything(first)
    first.close()
    assert conversations.everything(make_db()) == before


def test_another_session_db_sees_what_was_acknowledged(make_db: MakeDb) -> None:
    one, two = make_db(), make_db()
    conversations.begin(one, "talk", "a")
    assert conversations.seen(two, "talk") == ["a"]
    conversations.say(two, "talk", "b")
    assert conversations.seen(one, "talk") == ["a", "b"]


def test_closed_store_says_so(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    db.close()
    db.close()
    for call in (lambda: db.context("talk"), lambda: conversations.say(db, "talk", "a"), db.admin.fsck, db.admin.info):
        with pytest.raises(errors.StoreClosed):
            call()


def test_store_is_a_context_manager(make_db: MakeDb) -> None:
    with make_db() as db:
        conversations.begin(db, "talk", "a")
    with pytest.raises(errors.StoreClosed):
        db.context("talk")


def test_notes_about_the_store_are_kept(db: SessionDB) -> None:
    assert db.admin.get_meta("generation") == "1"
    assert db.admin.get_meta("note") is None
    db.admin.set_meta("note", "one")
    db.admin.set_meta("note", "two")
    assert db.admin.get_meta("note") == "two"
