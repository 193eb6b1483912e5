"""Long messages are shortened for a request, which stays valid; nothing is stored."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import content_parts, types
from holdfast.compaction import excerpts
from holdfast.model import tokens
from tests.support.messages import message

METER = tokens.Meter()
POINTER = re.compile(r"\[… ([\d,]+) characters left out; recall message (\d+) …\]")


def prose(words: int) -> str:
    return " ".join(f"word{number}" for number in range(words))


def total(messages: list[types.Message]) -> int:
    return sum(map(METER.of, messages))


def test_huge_text_becomes_head_tail_and_a_pointer_with_the_number_of_characters() -> None:
    text = prose(40_000)
    shown = excerpts.shorten(message(17, "user", text), 500, METER.of)
    assert 350 < METER.of(shown) <= 500
    head, count, seq, tail = POINTER.split(str(shown.content))
    assert text.startswith(head.rstrip("\n"))
    assert text.endswith(tail.lstrip("\n"))
    assert len(head) - 1 + len(tail) - 1 + int(count.replace(",", "")) == len(text)
    assert seq == "17"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"path": "a", "n": 3}', '{"path": "a", "n": 3}'),
        ('{"broken": "' + prose(900), ["text"]),
        ('{"text": "' + prose(900) + '", "n": 3}', ["n", "text"]),
        ({f"name{number}": number for number in range(900)}, ["shortened"]),
    ],
    ids=["short text", "not JSON", "text", "many short values"],
)
def test_long_arguments_become_an_object(arguments: Any, expected: Any) -> None:
    long = message(1, "assistant", prose(900), tool_calls=[types.ToolCall("c", "tool", arguments, {"signature": "s"})])
    (call,) = excerpts.shorten(long, 150, METER.of).tool_calls
    assert (call.id, call.name, call.extra) == ("c", "tool", {"signature": "s"})
    if isinstance(expected, list):
        assert isinstance(call.arguments, dict)
        assert sorted(call.arguments) == expected
        assert POINTER.search(str(call.arguments))
    else:
        assert call.arguments == expected


def test_image_stays_if_there_is_room() -> None:
    image = {"type": "image", "media_type": "image/png", "data": "AAAA"}
    long = message(9, "tool", [{"type": "text", "text": prose(5_000)}, image], tool_call_id="c")
    for room, kind in ((tokens.PER_IMAGE + 300, content_parts.Image), (300, content_parts.Text)):
        shown = excerpts.shorten(long, room, METER.of)
        assert [type(part) for part in content_parts.parse(shown.content)] == [content_parts.Text, kind]
        assert METER.of(shown) <= room
    assert "recall message 9" in str(shown.content)


def test_signed_and_unknown_parts_are_unchanged() -> None:
    kept = [
        {"type": "reasoning", "text": prose(300), "signature": "sig"},
        {"type": "sculpture", "text": prose(300)},
        {"type": "text", "text": "short"},
    ]
    long = message(3, "assistant", [*kept, {"type": "text", "text": prose(9_000)}])
    shown = excerpts.shorten(long, METER.of(message(3, "assistant", kept)) + 200, METER.of)
    assert shown.content[:3] == kept
    assert POINTER.search(shown.content[3]["text"])


@pytest.mark.parametrize("content", [[{"type": "reasoning", "hidden": "h" * 9_000}], "short", ""], ids=str)
def test_message_that_fits_or_cannot_be_shortened_is_returned(content: types.Content) -> None:
    given = message(1, "assistant", content)
    assert excerpts.shorten(given, 1, METER.of) is given
    assert excerpts.shorten(given, METER.of(given), METER.of) is given


def history(outputs: list[int], request: str = "go on", newer: list[int] | None = None) -> list[types.Message]:
    """Return a request with tool outputs of these lengths in words, then the last request, and newer outputs."""
    messages = [message(1, "user", prose(300))]

    def add_calls(sizes: list[int]) -> None:
        for words in sizes:
            seq = len(messages) + 1
            messages.append(message(seq, "assistant", tool_calls=[types.ToolCall(f"c{seq}", "tool", "{}")]))
            messages.append(message(seq + 1, "tool", prose(words), tool_call_id=f"c{seq}"))

    add_calls(outputs)
    messages.append(message(len(messages) + 1, "user", request))
    add_calls(newer or [])
    return messages


@pytest.mark.parametrize(
    ("messages", "less", "changed"),
    [
        (history([300, 300]), 0, []),
        (history([10, 2_000, 2_000, 2_000]), 1_500, [5]),
        (history([1_000], newer=[4_000]), 5_000, [3, 6]),
    ],
    ids=["fits", "oldest large output", "output of the turn"],
)
def test_oldest_large_outputs_are_shortened_first(messages: list[types.Message], less: int, changed: list[int]) -> None:
    budget = total(messages) - less
    shown = excerpts.shorten_all(messages, METER.of, budget)
    assert [old.seq for old, new in zip(messages, shown, strict=True) if old != new] == changed
    assert total(shown) <= budget


def test_last_request_is_shortened_last_and_a_summary_never() -> None:
    messages = history([200], request=prose(300))
    shown = excerpts.shorten_all(messages, METER.of, METER.of(messages[3]) + 150)
    assert [old is new for old, new in zip(messages, shown, strict=True)] == [False, True, False, True]
    messages = history([200], request=prose(5_000))
    assert excerpts.shorten_all(messages, METER.of, METER.of(messages[3]) + 10)[3] is messages[3]
    shown = excerpts.shorten_all(messages, METER.of, 1_000)
    assert total(shown) <= 1_000
    assert POINTER.search(str(shown[3].content))
    summary = types.Message(4, "summary:2", "talk", "user", 1.0, message(4, "user", prose(900)).body)
    assert excerpts.shorten_all([summary, *history([900])], METER.of, 100)[0] is summary


WORDS = st.sampled_from([0, 5, 60, 700, 4_000])
HISTORIES = st.builds(history, st.lists(WORDS, max_size=6), WORDS.map(prose), st.none() | st.lists(WORDS, max_size=4))


@given(HISTORIES, st.integers(100, 6_000))
def test_shape_of_any_context_is_kept_and_no_message_grows(messages: list[types.Message], budget: int) -> None:
    shown = excerpts.shorten_all(messages, METER.of, budget)
    before, after = (
        [(m.seq, m.uid, m.role, m.tool_call_id, [call.id for call in m.tool_calls]) for m in some]
        for some in (messages, shown)
    )
    assert before == after
    assert all(METER.of(new) <= METER.of(old) for old, new in zip(messages, shown, strict=True))
    request = next(m for m in reversed(messages) if m.role == "user")
    least = min(METER.of(request), budget) + excerpts.TOKEN_LEVELS[-1] * (len(messages) - 1)
    assert total(shown) <= max(budget, least)
