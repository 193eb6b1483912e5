"""Metadata of conversations and messages: stored, merged, exported and redacted, and never seen by a model."""

from __future__ import annotations

import io
from typing import Any

import pytest

from holdfast import AsyncSessionDB, NewConversation, NewMessage, SessionDB, errors, types
from tests.support import conversations

GOOD: dict[str, Any] = {"ticket": 4711, "tags": ["a", "ü"], "nested": {"deep": [None, True, 0.5]}, "": "\0"}


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"bottom": 1}
    for _ in range(depth - 1):
        value = {"in": value}
    return value


BAD: dict[str, object] = {
    "a list": [1], "text": "x", "a number": 5, "a number as key": {1: 2}, "bytes": {"x": b"x"},
    "NaN": {"x": float("nan")}, "a tuple": {"x": (1,)}, "an unpaired surrogate": {"x": "\ud800"},
    "an object": {"x": object()}, "too large": {"x": "é" * 2048}, "too deep": nested(10), "bottomless": nested(5000),
}  # fmt: skip


# --- conversations -----------------------------------------------------------------------------------------


def test_conversation_is_created_with_metadata(db: SessionDB) -> None:
    made = db.create_session("made", source="test", metadata=GOOD)
    create = NewConversation(source="test", metadata=GOOD)
    db.append_message("said", role="user", content="a", create=create)
    db.begin_conversation("begun", NewMessage(role="user"), create)
    conversations.begin(db, "plain", "a")
    assert made.metadata == GOOD
    assert {each.id: each.metadata for each in db.list_sessions()} == {
        "made": GOOD, "said": GOOD, "begun": GOOD, "plain": {},
    }  # fmt: skip
    assert db.conversation("said").metadata == db.head("said").metadata == GOOD
    assert db.admin.fsck().ok


def test_metadata_is_merged_key_by_key(db: SessionDB) -> None:
    db.create_session("talk", source="test", metadata={"a": 1, "b": {"x": 1, "y": 2}, "c": [1]})
    merged = db.set_session_metadata("talk", {"a": None, "b": {"y": 3, "z": {"w": None}}, "c": {"d": 4}, "e": "new"})
    assert merged == {"b": {"x": 1, "y": 3, "z": {}}, "c": {"d": 4}, "e": "new"}
    assert db.get_session("talk").metadata == merged
    assert db.set_session_metadata("talk", {}) == merged
    assert db.set_session_metadata("talk", dict.fromkeys("bce")) == db.head("talk").metadata == {}
    assert db.admin.fsck().ok


def test_metadata_belongs_to_the_conversation_whichever_session_is_given(db: SessionDB) -> None:
    db.create_session("talk", source="test", metadata={"a": 1})
    conversations.say(db, "talk", "x")
    head = conversations.compact(db, "talk", 1)
    assert head.metadata == {"a": 1}
    db.set_session_metadata("talk", {"b": 2})
    assert [session.metadata for session in db.sessions(head.id)] == [{"a": 1, "b": 2}] * 2


def test_metadata_raises_no_epoch(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    work = db.acquire_lease("talk", "compact")
    db.set_session_metadata("talk", {"a": 1})
    assert db.conversation("talk").epoch == 1
    assert db.commit_compaction(work, summary="s", cut_seq=1).metadata == {"a": 1}


def test_branch_and_child_start_with_the_metadata_of_their_origin(db: SessionDB) -> None:
    db.create_session("talk", source="test", metadata={"a": 1})
    conversations.say(db, "talk", "x")
    assert db.branch("talk", branch_id="branch").metadata == {"a": 1}
    assert db.create_session("same", source="test", parent_session_id="talk").metadata == {"a": 1}
    other = db.create_session("other", source="test", parent_session_id="talk", metadata={"b": 2})
    assert other.metadata == {"b": 2}
    db.set_session_metadata("branch", {"a": 3})
    assert db.get_session("talk").metadata == {"a": 1}


def test_continuation_of_two_calls_merges_its_metadata(db: SessionDB) -> None:
    db.create_session("talk", source="test", metadata={"a": 1})
    db.end_session("talk", "compression")
    next_ = db.create_session("next", source="test", parent_session_id="talk", metadata={"b": 2})
    assert next_.metadata == {"a": 1, "b": 2}


def test_metadata_of_a_deleted_conversation_cannot_be_set(db: SessionDB) -> None:
    db.create_session("talk", source="test", metadata={"a": 1})
    db.delete_conversation("talk")
    with pytest.raises(errors.ConversationDeleted):
        db.set_session_metadata("talk", {"a": 2})


@pytest.mark.parametrize("name", BAD)
def test_invalid_metadata_is_refused(db: SessionDB, name: str) -> None:
    bad: Any = BAD[name]
    conversations.begin(db, "talk", "a")
    with conversations.nothing_changes(db):
        for call in (
            lambda: db.set_session_metadata("talk", bad),
            lambda: db.create_session("new", source="test", metadata=bad),
            lambda: db.append_message("talk", role="user", metadata=bad),
            lambda: db.append_message("new", role="user", create=NewConversation(source="test", metadata=bad)),
        ):
            with pytest.raises(errors.InvalidArgument) as refusal:
                call()
            assert len(str(refusal.value)) < 200


def test_setting_no_metadata_is_refused(db: SessionDB) -> None:
    db.create_session("talk", source="test", metadata={"a": 1})
    nothing: Any = None
    with (
        conversations.nothing_changes(db),
        pytest.raises(errors.InvalidArgument, match="must be an object, not None"),
    ):
        db.set_session_metadata("talk", nothing)


def test_merge_beyond_the_limit_is_refused(db: SessionDB) -> None:
    db.create_session("talk", source="test", metadata={"a": "x" * 4000})
    with conversations.nothing_changes(db), pytest.raises(errors.InvalidArgument, match="at most 4,096 bytes"):
        db.set_session_metadata("talk", {"b": "x" * 100})
    db.set_session_metadata("talk", {"a": None})
    assert db.set_session_metadata("talk", {"b": "x" * 4088}) == {"b": "x" * 4088}
    assert db.admin.fsck().ok


# --- messages ----------------------------------------------------------------------------------------------


def test_message_keeps_its_metadata(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    call = types.ToolCall("c", "look")
    db.append_message("talk", role="user", content="hello", metadata=GOOD)
    db.append_messages("talk", [NewMessage(role="assistant", tool_calls=[call], metadata={"a": 1}), {"role": "user"}])
    assert [message.metadata for message in db.transcript("talk")] == [GOOD, {"a": 1}, {}]
    assert db.transcript("talk")[1].tool_calls == (call,)
    assert db.admin.fsck().ok


def test_message_without_metadata_is_stored_as_before(db: SessionDB) -> None:
    conversations.begin(db, "talk", "hello")
    db.append_message("talk", role="user", content="hello", metadata={})
    assert [message.body for message in db.transcript("talk")] == ['{"content":"hello"}'] * 2


def test_metadata_is_part_of_what_a_repeated_uid_must_repeat(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    first = db.append_message("talk", role="user", content="x", uid="u", metadata={"a": 1, "b": 2})
    again = db.append_message("talk", role="user", content="x", uid="u", metadata={"b": 2, "a": 1})
    assert (again.seq, again.duplicate) == (first.seq, True)
    with pytest.raises(errors.UidReused):
        db.append_message("talk", role="user", content="x", uid="u", metadata={"a": 3})


def test_redaction_removes_the_metadata_of_a_message(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    db.append_message("talk", role="user", content="x", metadata={"secret": "word"})
    db.redact("talk", 1)
    assert db.transcript("talk")[0].metadata == {}
    assert db.admin.fsck().ok


def test_metadata_is_not_searched(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    db.append_message("talk", role="user", content="apple", metadata={"note": "banana"})
    assert [len(db.search(word)) for word in ("apple", "banana")] == [1, 0]


async def test_async_append_takes_metadata(db: SessionDB) -> None:
    async with AsyncSessionDB(db) as adb:
        await adb.create_session("talk", source="test", metadata={"a": 1})
        await adb.append_message("talk", role="user", content="x", metadata={"b": 2})
        assert await adb.set_session_metadata("talk", {"c": 3}) == {"a": 1, "c": 3}
        assert (await adb.transcript("talk"))[0].metadata == {"b": 2}


# --- export and import -------------------------------------------------------------------------------------


def test_metadata_is_exported_and_imported(db: SessionDB) -> None:
    db.create_session("talk", source="test", metadata=GOOD)
    db.append_message("talk", role="user", content="x", metadata=GOOD)
    conversations.begin(db, "plain", "a")
    out = io.StringIO()
    db.admin.export_to(out)
    assert out.getvalue().count('"metadata"') == 2
    with SessionDB(":memory:") as there:
        assert there.admin.import_from(io.StringIO(out.getvalue())).ok
        assert there.get_session("talk").metadata == there.transcript("talk")[0].metadata == GOOD
        again = io.StringIO()
        there.admin.export_to(again)
        assert again.getvalue() == out.getvalue()
        there.set_session_metadata("talk", {"ticket": 1})
        assert there.admin.import_from(io.StringIO(out.getvalue())).ids("already_there") == ["talk", "plain"]
