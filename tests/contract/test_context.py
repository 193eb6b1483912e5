"""The model's context and the transcript: computed from the log, whichever session id is given."""

from __future__ import annotations

import pytest

from holdfast import SessionDB, types
from holdfast.store import tool_pairs
from tests.support import conversations
from tests.support.conversations import Clock


def ask(db: SessionDB, *ids: str, content: str = "", lease: types.Lease | None = None) -> types.Receipt:
    calls = [types.ToolCall(name, "tool", "{}") for name in ids]
    return db.append_message("talk", role="assistant", content=content, tool_calls=calls, lease=lease)


def answer(db: SessionDB, id: str, content: str = "result") -> types.Receipt:
    return db.append_message("talk", role="tool", content=content, tool_call_id=id)


def shape(db: SessionDB) -> list[tuple[str, str | None, types.Content]]:
    """Role, answered call, and text of each message of the context."""
    return [(message.role, message.tool_call_id, message.content) for message in db.context("talk")]


def test_context_without_a_compaction_is_the_log(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    assert (len(db.context("talk")), db.context("talk").last_seq) == (0, 0)
    conversations.say(db, "talk", *"abc")
    context = db.context("talk")
    assert (context.epoch, context.last_seq, context.cut_seq, context.summary) == (1, 3, 0, None)
    assert (context.conversation_id, context.session_id) == ("talk", "talk")
    assert (len(context), context[0].content, context[-1].content) == (3, "a", "c")
    assert conversations.contents(context[1:]) == ["b", "c"]
    assert context.index(context[1]) == 1
    earlier = db.context("talk", upto=2)
    assert (conversations.contents(earlier), earlier.last_seq) == (["a", "b"], 2)
    assert db.context("talk", upto=99).last_seq == 3
    db.hide("talk", 1, 1)
    assert (db.context("talk").epoch, db.context("talk").last_seq) == (2, 3)


def test_context_is_pinned_messages_summary_and_messages_after_the_cut(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abcde")
    head = conversations.compact(db, "talk", 4, "the gist", pinned=[3, 1])
    conversations.say(db, "talk", "f")
    context = db.context("talk")
    assert conversations.contents(context) == ["a", "c", "the gist", "e", "f"] == conversations.seen(db, head.id)
    assert (context.cut_seq, context.summary, context[2].role) == (4, "the gist", "user")
    assert [message.session_id for message in context[3:]] == ["talk", head.id]
    assert conversations.seen(db, "talk", upto=2) == ["a", "the gist"]
    db.hide("talk", 1, 1)
    assert conversations.seen(db, "talk") == ["c", "the gist", "e", "f"]
    conversations.compact(db, "talk", 5, "")
    assert conversations.seen(db, "talk") == ["f"]


def test_transcript_is_the_whole_log_or_a_range_of_it(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abcde")
    head = conversations.compact(db, "talk", 2)
    db.hide("talk", 4)
    whole = db.transcript("talk")
    assert conversations.contents(whole) == list("abcde")
    assert db.transcript(head.id) == db.transcript("talk", upto=99) == whole
    assert db.transcript("talk", after=1, upto=3) == whole[1:3]
    assert db.transcript("talk", after=2) == whole[2:]
    assert db.transcript("talk", after=5) == []


def test_call_is_open_while_its_turn_holds_the_lease_and_closed_after(db: SessionDB, clock: Clock) -> None:
    conversations.begin(db, "talk")
    ask(db, "old")
    db.acquire_lease("talk", "compact")
    assert (shape(db)[1], db.context("talk").running) == (("tool", "old", tool_pairs.NO_RESULT), frozenset())
    lease = db.acquire_lease("talk", "turn", ttl=30)
    ask(db, "c1", "c2", lease=lease)
    answer(db, "c2", "two")
    assert [call for role, call, _ in shape(db) if role == "tool"] == ["old", "c2"]
    assert db.context("talk").running == frozenset({"c1"})
    clock.advance(30)
    assert shape(db)[3:] == [("tool", "c1", tool_pairs.NO_RESULT), ("tool", "c2", "two")]
    lease = db.acquire_lease("talk", "turn")
    ask(db, "c3")
    assert db.context("talk").running == frozenset({"c3"})
    db.release_lease(lease)
    assert shape(db)[-1] == ("tool", "c3", tool_pairs.NO_RESULT)
    assert len(db.transcript("talk")) == 4, "nothing is stored for a closed call"


def test_hidden_or_redacted_halves_leave_a_valid_context(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    for name in ("c1", "c2", "c3"):
        ask(db, name)
        answer(db, name, f"secret of {name}")
    db.hide("talk", 1, 1)
    db.hide("talk", 4, 4)
    db.redact("talk", 6)
    assert [(role, call) for role, call, _ in shape(db)][:5] == [
        ("user", None), ("assistant", None), ("tool", "c2"), ("assistant", None), ("tool", "c3"),
    ]  # fmt: skip
    assert [text for _, call, text in shape(db) if call] == [tool_pairs.NO_RESULT] * 2
    assert "secret of c3" not in str(shape(db))


@pytest.mark.parametrize("pinned", [[2, 4], [2]], ids=["result before the cut", "result after the cut"])
def test_pinned_call_is_followed_by_its_result(db: SessionDB, pinned: list[int]) -> None:
    conversations.begin(db, "talk", "a")
    ask(db, "c1")
    conversations.say(db, "talk", "b")
    answer(db, "c1", "r")
    conversations.compact(db, "talk", max(pinned), "sum", pinned=pinned)
    assert shape(db)[:3] == [("assistant", None, ""), ("tool", "c1", "r"), ("user", None, "sum")]
