"""Values of the store: frozen, decoded on access, readable by older and newer versions."""

from __future__ import annotations

import pytest

from holdfast import errors, types


def message(body: str) -> types.Message:
    return types.Message(1, "u", "talk", "assistant", 0.0, body)


def test_body_is_decoded_on_access_only() -> None:
    broken = message("{not json")
    assert (broken.seq, broken.role, broken.redacted) == (1, "assistant", False)
    with pytest.raises(errors.StoreCorrupt):
        _ = broken.content
    newer = message('{"content":"x","invented":{"later":true}}')
    assert (newer.content, newer.tool_calls, newer.tool_call_id) == ("x", (), None)
    redacted = message("")
    assert (redacted.redacted, redacted.content, redacted.tool_calls, redacted.tool_call_id) == (True, "", (), None)


@pytest.mark.parametrize(("first", "last", "count"), [(1, 0, 0), (5, 9, 5)])
@pytest.mark.parametrize("ended_at", [None, 5.0])
def test_session_derives_message_count_and_state(first: int, last: int, count: int, ended_at: float | None) -> None:
    reason = None if ended_at is None else "done"
    session = types.Session("s", "s", 1, None, "", "t", None, None, 0.0, ended_at, reason, first, last, 0.0)
    assert (session.message_count, session.live) == (count, ended_at is None)


def test_context_is_a_sequence_with_its_snapshot() -> None:
    said = [message("{}"), message('{"content":"x"}')]
    context = types.Context(said, conversation_id="c", session_id="s", epoch=3, last_seq=2)
    assert (len(context), list(context), context[-1], context[:1]) == (2, said, said[1], (said[0],))
    assert (said[1] in context, context.count(said[0]), list(reversed(context))) == (True, 1, said[::-1])
    assert (context.summary, context.compaction, context.running, context.cut_seq) == (None, None, frozenset(), 0)
    assert repr(context) == "<Context of c: 2 messages, epoch 3, last_seq 2>"
