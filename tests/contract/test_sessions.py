"""Sessions: created, ended once, resumed by one continuation; compaction by two calls; the store over time."""

from __future__ import annotations

import re

import pytest

from holdfast import SessionDB, errors, types
from holdfast.store import conversation_row
from tests.support import conversations


def test_session_and_conversation_describe_themselves(db: SessionDB) -> None:
    made = db.create_session("talk", source="cli", model="m", title="T", owner="me")
    assert made == types.Session(
        "talk", "talk", 1, None, "me", "cli", "m", "T", conversations.NOON, None, None, 1, 0, conversations.NOON
    )
    assert (made.message_count, made.live) == (0, True)
    assert db.get_session("talk") == made == db.head("talk")
    conversations.say(db, "talk", *"abc")
    head = conversations.compact(db, "talk", 1)
    conversations.say(db, "talk", "d")
    assert db.conversation("talk") == types.Conversation(
        "talk", "me", "cli", "T", conversations.NOON, head.id, True, 2, 4, 2, None, None, None
    )
    assert [session.message_count for session in db.sessions("talk")] == [3, 1]


def test_generated_ids_contain_the_time_and_are_unique(db: SessionDB, monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.fullmatch(r"20260921_141320_[0-9a-f]{6}", db.create_session(source="cli").id)
    conversations.begin(db, "gone")
    db.delete_conversation("gone")
    drawn = iter(["gone", "one", "one", "two", "two", "three", "three", "four"])
    monkeypatch.setattr(conversation_row, "generate_session_id", lambda now: next(drawn))
    create = types.NewConversation(source="chat")
    assert [db.create_session(source="cli").id for _ in range(2)] == ["one", "two"]
    assert db.append_message(None, role="user", content="x", create=create).session_id == "three"
    db.end_conversation("one", "done")
    assert db.resume("one").id == "four"


def test_repeated_creation_returns_the_session_and_another_one_is_refused(db: SessionDB) -> None:
    first = db.create_session("talk", source="cli", title="T", owner="me")
    conversations.say(db, "talk", "a")
    child = conversations.compact(db, "talk", 0)
    with conversations.nothing_changes(db):
        assert db.create_session("talk", source="cli", title="T", owner="me").id == first.id
        for name, owner in (("talk", "you"), (child.id, "me")):
            with pytest.raises(errors.IdTaken):
                db.create_session(name, source="cli", owner=owner)


def test_resume_opens_one_continuation_with_the_same_context(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abc", model="m")
    ended = conversations.compact(db, "talk", 2, "gist")
    with conversations.nothing_changes(db):
        assert db.resume("talk").id == ended.id
    db.end_conversation("talk", "done")
    resumed = db.resume("talk")
    assert (resumed.parent_session_id, resumed.live, resumed.source, resumed.model) == (ended.id, True, "test", "m")
    assert (conversations.seen(db, "talk"), db.conversation("talk").epoch) == (["gist", "c"], 4)


def test_two_calls_make_a_continuation_with_a_context_of_its_own(db: SessionDB) -> None:
    conversations.begin(db, "parent", "a", "b", title="T")
    conversations.begin(db, "other", title="taken")
    db.end_session("parent", "compression")
    with conversations.nothing_changes(db), pytest.raises(errors.TitleTaken):
        db.create_session("child", source="s", parent_session_id="parent", title="taken")
    child = db.create_session("child", source="gateway", model="m", parent_session_id="parent", title="new")
    assert (child.conversation_id, child.parent_session_id, child.ordinal) == ("parent", "parent", 2)
    assert (child.source, child.model, db.get_session("parent").title) == ("gateway", "m", "new")
    assert conversations.seen(db, "child") == []
    conversations.say(db, "child", "summary of a and b", "c")
    assert conversations.seen(db, "parent") == ["summary of a and b", "c"]
    assert conversations.contents(db.transcript("child")) == ["a", "b", "summary of a and b", "c"]
    db.undo_compaction("child")
    assert conversations.seen(db, "child") == ["a", "b", "summary of a and b", "c"]


@pytest.mark.parametrize("committed", [False, True], ids=["two calls", "commit"])
def test_second_continuation_is_refused_with_the_id_of_the_first(db: SessionDB, committed: bool) -> None:
    conversations.begin(db, "parent", "a")
    if committed:
        conversations.compact(db, "parent", 1, child_id="child")
    else:
        db.end_session("parent", "compression")
        db.create_session("child", source="s", parent_session_id="parent")
    with conversations.nothing_changes(db):
        assert db.create_session("child", source="s", parent_session_id="parent").id == "child"
        for name in ("second", None):
            with pytest.raises(errors.ForkRefused) as refusal:
                db.create_session(name, source="s", parent_session_id="parent")
            assert refusal.value.continuation == "child"


@pytest.mark.parametrize("state", ["live", "done", "Compression", "resumed"])
def test_child_of_any_other_parent_is_a_new_conversation(db: SessionDB, state: str) -> None:
    conversations.begin(db, "parent", "a", owner="me")
    if state != "live":
        db.end_session("parent", state)
    if state == "resumed":
        db.resume("parent")
    child = db.create_session("child", source="s", parent_session_id="parent")
    assert (child.conversation_id, child.parent_session_id, child.ordinal) == ("child", "parent", 1)
    assert (conversations.seen(db, "child"), db.conversation("child").forked_at) == ([], 0)
    assert db.branches("parent") == ["child"]


def test_id_of_another_child_or_of_a_deleted_session_is_refused(db: SessionDB) -> None:
    conversations.begin_each(db, ("one", "two", "gone"))
    db.create_session("child", source="s", parent_session_id="one")
    db.delete_conversation("gone")
    with conversations.nothing_changes(db):
        for name, parent, error in (
            ("child", "two", errors.IdTaken),
            ("child", None, errors.IdTaken),
            ("gone", None, errors.ConversationDeleted),
        ):
            with pytest.raises(error):
                db.create_session(name, source="s", parent_session_id=parent)
