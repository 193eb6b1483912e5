"""Shortening: less is shown, nothing is stored, and a request that was valid stays valid."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import content_parts, types
from holdfast.compaction import excerpts
from holdfast.model import tokens
from holdfast.store import message_codec

METER = tokens.Meter()
POINTER = re.compile(r"\[… ([\d,]+) characters left out; recall message (\d+) …\]")


def said(seq: int, role: types.Role, content: types.Content, **more: Any) -> types.Message:
    return types.Message(seq, f"u{seq}", "talk", role, 1.0, message_codec.encode(content, **more))


def prose(words: int) -> str:
    return " ".join(f"word{number}" for number in range(words))


def total(messages: list[types.Message]) -> int:
    return sum(map(METER.of, messages))


# --- one message -----------------------------------------------------------------------------------------


def test_message_that_fits_is_left_as_it_is() -> None:
    message = said(1, "user", prose(20))
    assert excerpts.shorten(message, METER.of(message), METER.of) is message


def test_huge_text_is_shown_as_head_tail_and_a_pointer_that_accounts_for_every_character() -> None:
    text = prose(40_000)
    shown = excerpts.shorten(said(17, "user", text), 500, METER.of)
    assert 350 < METER.of(shown) <= 500
    content = shown.content
    assert isinstance(content, str)
    head, count, seq, tail = POINTER.split(content)
    assert text.startswith(head.rstrip("\n"))
    assert text.endswith(tail.lstrip("\n"))
    assert len(head) - 1 + len(tail) - 1 + int(count.replace(",", "")) == len(text)
    assert seq == "17"


def test_shortened_message_is_the_same_in_all_but_its_length() -> None:
    call = types.ToolCall("c1", "write", {"path": "a.py", "text": prose(5_000)}, {"signature": "s"})
    usage = types.Usage(3, 4)
    message = said(5, "assistant", prose(5_000), tool_calls=[call], model="m", usage=usage)
    shown = excerpts.shorten(message, 300, METER.of)
    assert METER.of(shown) <= 300
    assert (shown.seq, shown.uid, shown.session_id, shown.role, shown.at) == (5, "u5", "talk", "assistant", 1.0)
    assert (shown.model, shown.usage) == ("m", usage)
    (less,) = shown.tool_calls
    assert (less.id, less.name, less.extra) == ("c1", "write", {"signature": "s"})
    assert isinstance(less.arguments, dict)
    assert (list(less.arguments), less.arguments["path"]) == (["path", "text"], "a.py")
    assert POINTER.search(less.arguments["text"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"path": "a", "n": 3}', '{"path": "a", "n": 3}'),
        ({"path": "a", "n": 3}, {"path": "a", "n": 3}),
        ('{"broken": "' + prose(900), ["text"]),
        ('{"text": "' + prose(900) + '", "n": 3}', ["text", "n"]),
        ({"deep": {"text": prose(900)}, "n": 3}, ["deep", "n"]),
        ({f"name{number}": number for number in range(900)}, ["shortened"]),
    ],
    ids=["short text", "short object", "not JSON", "text", "nested", "many short values"],
)
def test_long_arguments_become_an_object_and_short_ones_are_left_alone(arguments: Any, expected: Any) -> None:
    message = said(1, "assistant", prose(900), tool_calls=[types.ToolCall("c", "tool", arguments)])
    (call,) = excerpts.shorten(message, 150, METER.of).tool_calls
    if isinstance(expected, list):
        assert isinstance(call.arguments, dict)
        assert sorted(call.arguments) == sorted(expected)
        assert POINTER.search(str(call.arguments))
    else:
        assert call.arguments == expected


def test_result_keeps_the_id_of_its_call() -> None:
    shown = excerpts.shorten(said(2, "tool", prose(900), tool_call_id="c1"), 100, METER.of)
    assert (shown.role, shown.tool_call_id) == ("tool", "c1")


def image() -> dict[str, Any]:
    return {"type": "image", "media_type": "image/png", "data": "AAAA"}


def kinds(message: types.Message) -> list[type]:
    return [type(part) for part in content_parts.parse(message.content)]


def test_image_stays_while_there_is_room_for_it() -> None:
    message = said(9, "tool", [{"type": "text", "text": prose(5_000)}, image()], tool_call_id="c")
    with_room = excerpts.shorten(message, tokens.PER_IMAGE + 300, METER.of)
    assert kinds(with_room) == [content_parts.Text, content_parts.Image]
    without = excerpts.shorten(message, 300, METER.of)
    assert kinds(without) == [content_parts.Text, content_parts.Text]
    assert "recall message 9" in str(without.content)
    assert 150 < METER.of(without) <= 300


def test_what_a_provider_signed_and_what_nobody_knows_is_left_alone() -> None:
    kept = [
        {"type": "reasoning", "text": prose(300), "signature": "sig"},
        {"type": "sculpture", "text": prose(300)},
        {"type": "text", "text": "short"},
    ]
    message = said(3, "assistant", [*kept, {"type": "text", "text": prose(9_000)}])
    shown = excerpts.shorten(message, METER.of(said(3, "assistant", kept)) + 200, METER.of)
    assert isinstance(shown.content, list)
    assert shown.content[:3] == kept
    assert POINTER.search(shown.content[3]["text"])


@pytest.mark.parametrize("content", [[{"type": "reasoning", "hidden": "h" * 9_000}], "short", ""], ids=str)
def test_what_cannot_be_shortened_is_given_back(content: types.Content) -> None:
    message = said(1, "assistant", content)
    assert excerpts.shorten(message, 1, METER.of) is message


TEXTS = {
    "nothing to hold on to": "x" * 300_000,
    "chinese": "你好世界" * 20_000,
    "emoji": "🦀" * 20_000,
    "lines": "a\n" * 90_000,
}


@pytest.mark.parametrize("name", TEXTS)
def test_any_kind_of_text_comes_down_to_its_room_in_few_steps(name: str) -> None:
    steps = 0

    def counting(message: types.Message) -> int:
        nonlocal steps
        steps += 1
        return METER.of(message)

    shown = excerpts.shorten(said(1, "user", TEXTS[name]), 1_000, counting)
    assert 300 < METER.of(shown) <= 1_000
    assert steps < 15


# --- a whole context -------------------------------------------------------------------------------------


def working(outputs: list[int], ask: str = "go on", newer: list[int] | None = None) -> list[types.Message]:
    """An ask with calls and outputs of so many words, then the last ask, and newer calls."""
    messages = [said(1, "user", prose(300))]
    for words in outputs:
        messages += _call(len(messages) + 1, words)
    messages.append(said(len(messages) + 1, "user", ask))
    for words in newer or []:
        messages += _call(len(messages) + 1, words)
    return messages


def _call(seq: int, words: int) -> list[types.Message]:
    call = said(seq, "assistant", "", tool_calls=[types.ToolCall(f"c{seq}", "tool", "{}")])
    return [call, said(seq + 1, "tool", prose(words), tool_call_id=f"c{seq}")]


def changed(before: list[types.Message], after: list[types.Message]) -> list[int]:
    return [old.seq for old, new in zip(before, after, strict=True) if old != new]


def test_what_fits_is_shown_whole() -> None:
    messages = working([300, 300])
    assert excerpts.shorten_all(messages, METER.of, total(messages)) == messages


def test_oldest_of_the_big_outputs_go_first_and_no_more_than_needed() -> None:
    messages = working([10, 2_000, 2_000, 2_000])
    shown = excerpts.shorten_all(messages, METER.of, total(messages) - 1_500)
    assert changed(messages, shown) == [5]
    shown = excerpts.shorten_all(messages, METER.of, total(messages) - 4_000)
    assert changed(messages, shown) == [5, 7]
    assert total(shown) <= total(messages) - 4_000


def test_many_outputs_of_which_none_is_big_come_down_too() -> None:
    messages = working([100] * 300)
    budget = total(messages) * 6 // 10
    shown = excerpts.shorten_all(messages, METER.of, budget)
    assert budget * 0.95 < total(shown) <= budget
    assert changed(messages, shown) == list(range(3, max(changed(messages, shown)) + 1, 2))


def test_outputs_of_the_running_turn_are_touched_after_older_ones() -> None:
    messages = working([1_000], newer=[4_000])
    slight = excerpts.shorten_all(messages, METER.of, total(messages) - 500)
    assert changed(messages, slight) == [3]
    more = excerpts.shorten_all(messages, METER.of, total(messages) - 5_000)
    assert changed(messages, more) == [3, 6]


def test_what_people_said_is_touched_last_and_the_last_ask_not_at_all() -> None:
    messages = working([200], ask=prose(300))
    shown = excerpts.shorten_all(messages, METER.of, METER.of(messages[3]) + 150)
    assert changed(messages, shown) == [1, 3]
    assert shown[3] is messages[3]


def test_last_ask_is_shortened_only_if_it_alone_is_too_big() -> None:
    messages = working([200], ask=prose(5_000))
    shown = excerpts.shorten_all(messages, METER.of, 1_000)
    assert total(shown) <= 1_000
    assert POINTER.search(str(shown[3].content))
    fits = excerpts.shorten_all(messages, METER.of, METER.of(messages[3]) + 10)
    assert fits[3] is messages[3]


def test_summary_is_never_shortened() -> None:
    summary = types.Message(4, "summary:2", "talk", "user", 1.0, message_codec.encode(prose(900)))
    shown = excerpts.shorten_all([summary, *working([900])], METER.of, 100)
    assert shown[0] is summary


# --- for any context -------------------------------------------------------------------------------------

words = st.sampled_from([0, 5, 60, 700, 4_000])
contexts = st.builds(
    working, st.lists(words, max_size=6), words.map(prose), st.none() | st.lists(words, max_size=4)
)  # fmt: skip


@given(contexts, st.integers(100, 6_000))
def test_for_any_context_shape_is_kept_and_size_never_grows(messages: list[types.Message], budget: int) -> None:
    shown = excerpts.shorten_all(messages, METER.of, budget)
    shapes = [
        [(m.seq, m.uid, m.role, m.tool_call_id, [call.id for call in m.tool_calls]) for m in some]
        for some in (messages, shown)
    ]
    assert shapes[0] == shapes[1]
    assert all(METER.of(new) <= METER.of(old) for old, new in zip(messages, shown, strict=True))
    # What is left then is the last ask, and of every other message no more than the least.
    ask = next(m for m in reversed(messages) if m.role == "user")
    least = min(METER.of(ask), budget) + excerpts.TOKEN_LEVELS[-1] * (len(messages) - 1)
    assert total(shown) <= max(budget, least)


@given(st.text(max_size=3_000), st.integers(0, 400))
def test_for_any_text_shortening_twice_is_shortening_once(text: str, room: int) -> None:
    once = excerpts.shorten(said(1, "user", text), room, METER.of)
    assert METER.of(once) <= max(room, 40)
    assert METER.of(excerpts.shorten(once, room, METER.of)) <= METER.of(once)
