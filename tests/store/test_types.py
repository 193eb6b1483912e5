"""The values the store speaks in: frozen, decoded only when looked at, readable by older and newer versions."""

from __future__ import annotations

import msgspec
import pytest

from holdfast import errors, types
from holdfast.store import message_codec


def message(body: str) -> types.Message:
    return types.Message(1, "u", "talk", "assistant", 0.0, body)


def test_body_is_decoded_when_it_is_looked_at_and_not_before() -> None:
    broken = message("{not json")
    assert (broken.seq, broken.role, broken.redacted) == (1, "assistant", False)
    with pytest.raises(errors.StoreCorrupt):
        _ = broken.content


def test_body_is_decoded_once() -> None:
    said = message(message_codec.encode([{"a": 1}]))
    assert said.content is said.content


def test_keys_of_a_newer_version_are_ignored() -> None:
    said = message('{"content":"x","invented":{"later":true}}')
    assert (said.content, said.tool_calls, said.tool_call_id) == ("x", (), None)


def test_redacted_message_is_empty() -> None:
    said = message("")
    assert (said.redacted, said.content, said.tool_calls, said.tool_call_id) == (True, "", (), None)


VALUES = [
    message("{}"),
    types.Snapshot("talk", "talk", 1, 0),
    types.Lease(types.Snapshot("talk", "talk", 1, 0), "turn", 1, "me", 30.0),
    types.Receipt(1, "u", "talk", "talk", 1),
    types.NewMessage(role="user"),
    types.NewConversation(source="s"),
    types.Route("r", None, 0),
    types.Hide(1, 1, 1, None),
    types.ToolCall("c"),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_are_frozen(value: msgspec.Struct) -> None:
    with pytest.raises(AttributeError):
        setattr(value, value.__struct_fields__[0], "changed")


def test_equal_values_are_equal() -> None:
    assert types.Snapshot("talk", "talk", 1, 0) == types.Snapshot("talk", "talk", 1, 0)
    assert message("{}") != message('{"content":"x"}')


def session(first: int, last: int, ended_at: float | None = None) -> types.Session:
    reason = None if ended_at is None else "done"
    return types.Session("s", "s", 1, None, "", "t", None, None, 0.0, ended_at, reason, first, last, 0.0)


@pytest.mark.parametrize(("first", "last", "count"), [(1, 0, 0), (1, 1, 1), (5, 9, 5), (6, 5, 0)])
def test_message_count_is_derived(first: int, last: int, count: int) -> None:
    assert session(first, last).message_count == count


def test_session_lives_until_it_ended() -> None:
    assert (session(1, 0).live, session(1, 0, 5.0).live) == (True, False)


def test_context_is_a_sequence_that_says_what_it_stands_on() -> None:
    said = [message("{}"), message('{"content":"x"}')]
    context = types.Context(said, conversation_id="c", session_id="s", epoch=3, last_seq=2)
    assert (len(context), list(context), context[-1], context[:1]) == (2, said, said[1], (said[0],))
    assert (said[1] in context, context.count(said[0]), list(reversed(context))) == (True, 1, said[::-1])
    assert (context.summary, context.compaction, context.running, context.cut_seq) == (None, None, frozenset(), 0)
    assert repr(context) == "<Context of c: 2 messages, epoch 3, last_seq 2>"


def test_report_is_ok_when_nothing_was_found() -> None:
    violation = types.Violation("P1", "talk", "message 1 is not what was written")
    assert types.Report(1, 1, 1, (), 0.1).ok
    assert not types.Report(1, 1, 1, (violation,), 0.1).ok
