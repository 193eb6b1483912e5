"""Titles, folders and metadata belong to the conversation: set at creation or later, copied to branches, exported."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import NewConversation, NewMessage, SessionDB, errors, types
from tests.support import conversations

GOOD: dict[str, Any] = {"ticket": 4711, "tags": ["a", "ü"], "nested": {"deep": [None, True, 0.5]}, "": "\0"}


def listed(db: SessionDB, folder: str | None, **other: object) -> list[str]:
    return [each.conversation_id for each in db.list_sessions(folder=folder, **other)]


def test_title_is_unique_per_owner(db: SessionDB) -> None:
    for owner in ("", "one", "two"):
        conversations.begin(db, f"talk of {owner}", "a", title="plan", owner=owner)
    conversations.begin(db, "other", "a")
    with conversations.nothing_changes(db):
        with pytest.raises(errors.TitleTaken) as refusal:
            db.set_session_title("other", "plan")
        with pytest.raises(errors.TitleTaken):
            db.create_session("new", source="test", title="plan")
        assert db.set_session_title("talk of ", "plan") == "plan"
    assert (refusal.value.title, refusal.value.conversation) == ("plan", "talk of ")
    assert isinstance(refusal.value, ValueError)
    db.set_session_title("talk of ", "free again")
    db.set_session_title("other", "plan")
    db.delete_conversation("other")
    db.set_session_title("talk of ", "plan")


def test_conversation_is_created_in_a_folder_and_with_metadata(db: SessionDB) -> None:
    made = db.create_session("made", source="test", folder="/work/one", metadata=GOOD)
    assert (made.folder, made.metadata) == ("/work/one", GOOD)
    create = NewConversation(source="test", folder="/work/two/", metadata=GOOD)
    db.append_message("said", role="user", content="a", create=create)
    db.begin_conversation("begun", NewMessage(role="user"), create)
    conversations.begin(db, "plain", "a")
    assert {each.id: (each.folder, each.metadata) for each in db.list_sessions()} == {
        "made": ("/work/one", GOOD),
        "said": ("/work/two", GOOD),
        "begun": ("/work/two", GOOD),
        "plain": (None, {}),
    }
    for found in (db.conversation("said"), db.head("said")):
        assert (found.folder, found.metadata) == ("/work/two", GOOD)


def test_title_folder_and_metadata_are_set_by_any_session(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    head = conversations.compact(db, "talk", 1)
    assert db.set_session_title("talk", " My \t plan\n") == "My plan"
    assert db.set_session_folder("talk", "/work//x/../one/") == "/work/one"
    assert db.set_session_metadata("talk", {"a": 1}) == {"a": 1}
    conversations.compact(db, "talk", 1)
    labels = [(each.title, each.folder, each.metadata) for each in db.sessions("talk")]
    assert labels == [("My plan", "/work/one", {"a": 1})] * 3
    assert db.set_session_folder(head.id, None) is db.get_session("talk").folder is None
    assert db.set_session_title(head.id, None) is db.get_session("talk").title is None


def test_metadata_is_merged_key_by_key_up_to_a_limit(db: SessionDB) -> None:
    db.create_session("talk", source="test", metadata={"a": 1, "b": {"x": 1, "y": 2}, "c": [1]})
    merged = db.set_session_metadata("talk", {"a": None, "b": {"y": 3, "z": {"w": None}}, "c": {"d": 4}, "e": "new"})
    assert merged == {"b": {"x": 1, "y": 3, "z": {}}, "c": {"d": 4}, "e": "new"}
    assert db.get_session("talk").metadata == merged == db.set_session_metadata("talk", {})
    assert db.set_session_metadata("talk", dict.fromkeys("bce")) == db.head("talk").metadata == {}
    db.set_session_metadata("talk", {"a": "x" * 4000})
    with conversations.nothing_changes(db), pytest.raises(errors.InvalidArgument, match="at most 4,096 bytes"):
        db.set_session_metadata("talk", {"b": "x" * 100})
    db.set_session_metadata("talk", {"a": None})
    assert db.set_session_metadata("talk", {"b": "x" * 4088}) == {"b": "x" * 4088}


@pytest.mark.parametrize("how", ["branch", "child", "continuation"])
def test_branch_and_child_have_the_folder_and_metadata_of_their_origin_unless_given(db: SessionDB, how: str) -> None:
    db.create_session("talk", source="test", folder="/one", metadata={"a": 1})
    conversations.say(db, "talk", "x")
    if how == "branch":
        same, other = db.branch("talk"), db.branch("talk", folder="/two")
    else:
        more: dict[str, Any] = {"source": "test", "parent_session_id": "talk"}
        if how == "continuation":
            db.end_session("talk", "compression")
        same = db.create_session("same", **more)
        if how == "continuation":
            db.end_session("same", "compression")
            more["parent_session_id"] = "same"
        other = db.create_session("other", **more, folder="/two", metadata={"b": 2})
        assert other.metadata == ({"a": 1, "b": 2} if how == "continuation" else {"b": 2})
    assert (same.folder, same.metadata, other.folder) == ("/one", {"a": 1}, "/two")
    if how != "continuation":
        db.set_session_metadata(same.id, {"a": 3})
        assert db.get_session("talk").metadata == {"a": 1}


def test_any_absolute_path_is_returned_unchanged(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    paths = ("/", "/a b/ü/漢字", "/with\nlines and\ttabs", "/" + "x" * 4095, "C:\\Users\\ann", "\\\\host\\share\\work")
    for folder in paths:
        assert db.set_session_folder("talk", folder) == folder
        assert (db.get_session("talk").folder, listed(db, folder)) == (folder, ["talk"])


def test_list_of_a_folder_has_the_conversations_of_it_and_of_none(db: SessionDB) -> None:
    for name, folder in (("one", "/work/one"), ("below", "/work/one/below"), ("two", "/work/two"), ("none", None)):
        db.create_session(name, source="test", folder=folder, owner="me" if name == "none" else "")
    assert sorted(listed(db, "/work/one")) == ["none", "one"]
    assert sorted(listed(db, "/work/./two/")) == ["none", "two"]
    assert listed(db, "/elsewhere") == ["none"]
    assert listed(db, "/work/one", owner="") == ["one"]
    assert len(listed(db, None)) == 4
    db.end_conversation("two", "done")
    assert listed(db, "/work/two", live=False, every=True) == ["two"]
    db.set_session_folder("two", "/work/one")
    db.delete_conversation("one")
    assert sorted(listed(db, "/work/one")) == ["none", "two"]


def test_message_keeps_its_metadata_until_it_is_redacted(db: SessionDB) -> None:
    conversations.begin(db, "talk", "hello")
    call = types.ToolCall("c", "look")
    db.append_message("talk", role="user", content="apple", metadata={"note": "banana"}, uid="u")
    db.append_messages("talk", [NewMessage(role="assistant", tool_calls=[call], metadata=GOOD), {"role": "user"}])
    db.append_message("talk", role="user", content="hello", metadata={})
    assert [message.metadata for message in db.transcript("talk")] == [{}, {"note": "banana"}, GOOD, {}, {}]
    assert db.transcript("talk")[2].tool_calls == (call,)
    assert [db.transcript("talk")[place].body for place in (0, -1)] == ['{"content":"hello"}'] * 2
    assert [len(db.search(word, own=True)) for word in ("apple", "banana")] == [1, 0]
    assert db.append_message("talk", role="user", content="apple", metadata={"note": "banana"}, uid="u").duplicate
    with pytest.raises(errors.UidReused):
        db.append_message("talk", role="user", content="apple", metadata={"note": "else"}, uid="u")
    db.redact("talk", 2)
    assert db.transcript("talk")[1].metadata == {}
