"""Tool calls and results: any log is arranged as every provider accepts it, and no message is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import types
from holdfast.store import message_codec, tool_pairs


def said(seq: int, role: str, text: str = "", calls: tuple[str, ...] = (), answers: str | None = None) -> types.Message:
    tool_calls = [types.ToolCall(name, "tool") for name in calls]
    body = message_codec.encode(text or f"text {seq}", tool_calls, answers)
    return types.Message(seq, f"u{seq}", "talk", role, 0.0, body)


def log(*script: str) -> list[types.Message]:
    """`user`, `calls a b`, `result a`: a log in words."""
    messages = []
    for seq, line in enumerate(script, 1):
        kind, *names = line.split()
        if kind == "calls":
            messages.append(said(seq, "assistant", calls=tuple(names)))
        elif kind == "result":
            messages.append(said(seq, "tool", answers=names[0] if names else None))
        else:
            messages.append(said(seq, kind))
    return messages


def describe(messages: list[types.Message]) -> list[str]:
    """Describe messages in the same words; `closed` is a synthetic result, `note` a result without a call."""
    words = []
    for message in messages:
        if message.role == "tool":
            words.append(
                ("closed " if message.content == tool_pairs.NO_RESULT else "result ") + str(message.tool_call_id)
            )
        elif message.tool_calls:
            words.append("calls " + " ".join(call.id for call in message.tool_calls))
        else:
            words.append("note" if "earlier tool call" in message.content else message.role)
    return words


TABLE = {
    "another message between": (["calls a", "user", "result a"], ["calls a", "result a", "user"]),
    "results in another order": (["calls a b", "result b", "result a"], ["calls a b", "result a", "result b"]),
    "one of two": (["calls a b", "result b"], ["calls a b", "closed a", "result b"]),
    "call not in view": (["result a", "user"], ["note", "user"]),
    "result without a call id": (["calls a", "result"], ["calls a", "closed a", "note"]),
    "answered twice": (["calls a", "result a", "result a"], ["calls a", "result a", "note"]),
    "id used again before its result": (
        ["calls a", "calls a", "result a"],
        ["calls a", "closed a", "calls a", "result a"],
    ),
    "id twice in one message": (["calls a a", "result a"], ["calls a a", "result a", "result a"]),
}


@pytest.mark.parametrize("case", TABLE)
def test_log_is_arranged_for_providers(case: str) -> None:
    script, expected = TABLE[case]
    arranged, running = tool_pairs.arrange(log(*script), None)
    assert (describe(arranged), running) == (expected, frozenset())


def test_late_result_becomes_a_note_with_its_text() -> None:
    ((note,), _) = tool_pairs.arrange([said(1, "tool", "forty-two", answers="c9")], None)
    assert (note.role, note.tool_call_id, note.uid) == ("user", None, "late:u1")
    assert note.content == tool_pairs.LATE_RESULT.format(id="c9") + "forty-two"
    arranged, _ = tool_pairs.arrange(log("user", "calls a"), None)
    assert (arranged[2].seq, arranged[2].uid, arranged[2].session_id) == (2, "u2:a", "talk")
    assert not tool_pairs.has_calls([said(1, "user", '{"tool_calls": [{"id": "x"}]}')])


names = st.sampled_from(["a", "b", "c"])
lines = st.one_of(
    st.sampled_from(["user", "assistant", "system", "result"]),
    names.map(lambda name: f"result {name}"),
    st.lists(names, min_size=1, max_size=3, unique=True).map(lambda some: "calls " + " ".join(some)),
)
logs = st.lists(lines, max_size=14).map(lambda script: log(*script))
turns = st.none() | st.integers(0, 14)


@given(logs, turns)
def test_every_call_is_followed_by_its_results(messages: list[types.Message], turn_began: int | None) -> None:
    arranged, running = tool_pairs.arrange(messages, turn_began)
    place = 0
    while place < len(arranged):
        message = arranged[place]
        assert message.role != "tool"
        place += 1
        for call in message.tool_calls if message.role == "assistant" else ():
            if place < len(arranged) and arranged[place].tool_call_id == call.id:
                place += 1
            else:
                assert call.id in running
                assert message.seq > turn_began


@given(logs, turns)
def test_no_message_is_lost_repeated_changed_or_moved(messages: list[types.Message], turn_began: int | None) -> None:
    arranged, running = tool_pairs.arrange(messages, turn_began)
    written = [message for message in arranged if ":" not in message.uid or tool_pairs.is_late(message)]
    assert sorted(message.seq for message in written) == [message.seq for message in messages]
    for message in written:
        original = messages[message.seq - 1]
        assert message == original or (original.role == "tool" and message.content.endswith(original.content))
    spoken = [message.seq for message in arranged if message.role != "tool"]
    assert spoken == sorted(spoken)
    if turn_began is None:
        assert tool_pairs.arrange(arranged, None) == (arranged, frozenset())
    if not tool_pairs.has_calls(messages):
        assert (arranged, running) == (messages, frozenset())
