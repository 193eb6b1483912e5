"""Chat Completions streams: what servers send, tidy or not, is understood in one way."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Sequence
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies

from holdfast import content_parts, errors, types
from holdfast.model import base, provider_errors, reply_builder
from holdfast.model.openai import stream

ASKED = provider_errors.Advice(model="some/model")


def parser(**more: Any) -> stream.Parser:
    count = itertools.count(1)
    return stream.Parser(ASKED, provider="some", new_call_id=lambda: f"minted_{next(count)}", **more)


def heard(*events: Any, **more: Any) -> list[base.Delta]:
    """The deltas of a whole stream; an event is what its data says, text as it is."""
    one = parser(**more)
    deltas: list[base.Delta] = []
    for event in events:
        deltas += one.feed("message", event if isinstance(event, str) else json.dumps(event))
    return deltas + one.end()


def reply(*events: Any, **more: Any) -> base.Reply:
    got = reply_builder.ReplyBuilder("some/model")
    for delta in heard(*events, **more):
        got.add(delta)
    return got.reply()


def chunk(finish: str | None = None, /, **delta: Any) -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def piece(index: int | None = None, id: str | None = None, name: str | None = None, arguments: Any = None) -> Any:
    """A piece of a call, with only what is given."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    given = {"index": index, "id": id, "function": function or None}
    return {key: value for key, value in given.items() if value is not None}


def calls(*pieces: Any) -> dict[str, Any]:
    return chunk(tool_calls=list(pieces))


def made(*given: tuple[str, str, str]) -> tuple[types.ToolCall, ...]:
    return tuple(types.ToolCall(*one) for one in given)


CALLED = chunk("tool_calls")
DONE = "[DONE]"

CALLS: list[tuple[str, list[Any], tuple[types.ToolCall, ...]]] = [
    (
        "one, in pieces",
        [calls(piece(0, "1", "f", "")), calls(piece(0, arguments='{"a"')), calls(piece(0, arguments=":1}"))],
        made(("1", "f", '{"a":1}')),
    ),
    (
        "two, interleaved",
        [
            calls(piece(0, "1", "f", ""), piece(1, "2", "g", "")),
            calls(piece(1, arguments="{")),
            calls(piece(0, arguments="{"), piece(1, arguments="}")),
            calls(piece(0, arguments="}")),
        ],
        made(("1", "f", "{}"), ("2", "g", "{}")),
    ),
    (
        "whole in one",
        [calls(piece(0, "1", "f", '{"a":1}'), piece(1, "2", "g", "{}"))],
        made(("1", "f", '{"a":1}'), ("2", "g", "{}")),
    ),
    (
        "all at index 0, with new ids",
        [calls(piece(0, "1", "f", "{}")), calls(piece(0, "2", "g", "{}"))],
        made(("1", "f", "{}"), ("2", "g", "{}")),
    ),
    (
        "all at index 0, in one event",
        [calls(piece(0, "1", "f", "{}"), piece(0, "2", "f", "{}"))],
        made(("1", "f", "{}"), ("2", "f", "{}")),
    ),
    (
        "all at index 0, in pieces",
        [
            calls(piece(0, "1", "f", "{")),
            calls(piece(0, arguments="}")),
            calls(piece(0, "2", "f", "{")),
            calls(piece(0, arguments="}")),
        ],
        made(("1", "f", "{}"), ("2", "f", "{}")),
    ),
    (
        "all at index 0, without ids",
        [calls(piece(0, name="f", arguments='{"a":1}')), calls(piece(0, name="f", arguments='{"a":2}'))],
        made(("minted_1", "f", '{"a":1}'), ("minted_2", "f", '{"a":2}')),
    ),
    (
        "without index",
        [calls(piece(None, "1", "f", "{")), calls(piece(arguments="}")), calls(piece(None, "2", "g", "{}"))],
        made(("1", "f", "{}"), ("2", "g", "{}")),
    ),
    (
        "without index, by id",
        [
            calls(piece(None, "1", "f", "{"), piece(None, "2", "g", "{")),
            calls(piece(None, "1", arguments="}"), piece(None, "2", arguments="}")),
        ],
        made(("1", "f", "{}"), ("2", "g", "{}")),
    ),
    (
        "without index and id",
        [calls(piece(name="f", arguments="{}"), piece(name="g", arguments="{}"))],
        made(("minted_1", "f", "{}"), ("minted_2", "g", "{}")),
    ),
    (
        "id and name in every piece",
        [calls(piece(0, "1", "f", "{")), calls(piece(0, "1", "f", '"a":')), calls(piece(0, "1", "f", "1}"))],
        made(("1", "f", '{"a":1}')),
    ),
    (
        "name in every piece, no id",
        [calls(piece(0, None, "f", "{")), calls(piece(0, None, "f", '"a":1}'))],
        made(("minted_1", "f", '{"a":1}')),
    ),
    (
        "id that comes late",
        [calls(piece(0, None, "f", "{")), calls(piece(0, "late", None, "}"))],
        made(("late", "f", "{}")),
    ),
    (
        "a new id without a name",
        [calls(piece(0, "1", "f", "{")), calls(piece(0, "2", None, "}"))],
        made(("1", "f", "{}")),
    ),
    (
        "one id for two",
        [calls(piece(0, "1", "f", "{}")), calls(piece(1, "1", "g", "{}"))],
        made(("1", "f", "{}"), ("minted_1", "g", "{}")),
    ),
    ("empty id", [calls(piece(0, "", "f", "{}"))], made(("minted_1", "f", "{}"))),
    ("arguments as an object", [calls(piece(0, "1", "f", {"a": [1, "ü"]}))], made(("1", "f", '{"a":[1,"ü"]}'))),
    ("no arguments", [calls(piece(0, "1", "f"))], made(("1", "f", ""))),
    ("no name", [calls(piece(0, "1", "", "{}"))], made(("1", "", "{}"))),
    ("name that comes late", [calls(piece(0, "1", "", "")), calls(piece(0, None, "f", "{}"))], made(("1", "f", "{}"))),
    (
        "indexes that begin anywhere",
        [calls(piece(5, "1", "f", "{}"), piece(7, "2", "g", "{}"))],
        made(("1", "f", "{}"), ("2", "g", "{}")),
    ),
    ("broken arguments stay what they are", [calls(piece(0, "1", "f", '{"a'))], made(("1", "f", '{"a'))),
]


@pytest.mark.parametrize(("events", "expected"), [case[1:] for case in CALLS], ids=[case[0] for case in CALLS])
def test_calls_are_understood(events: list[Any], expected: tuple[types.ToolCall, ...]) -> None:
    got = reply(*events, CALLED, DONE)
    assert got.calls == expected
    assert got.finish == "calls"


def test_names_lead_back_to_the_tools() -> None:
    got = reply(calls(piece(0, "1", "f_g", "{}")), calls(piece(0, "2", "f_g", "{}")), CALLED, names={"f_g": "f.g"})
    assert [call.name for call in got.calls] == ["f.g", "f.g"]


FINISHES: list[tuple[str, list[Any], base.Finish]] = [
    ("stop", [chunk(content="a"), chunk("stop"), DONE], "stop"),
    ("with the last words", [chunk("stop", content="a"), DONE], "stop"),
    ("no mark of the end", [chunk("stop", content="a")], "stop"),
    ("only the mark of the end", [chunk(content="a"), DONE], "stop"),
    ("an unknown reason", [chunk("eos", content="a")], "stop"),
    ("length", [chunk("length", content="a")], "length"),
    ("in capitals", [chunk("MAX_TOKENS", content="a")], "length"),
    ("a filter", [chunk("content_filter", content="a")], "refused"),
    ("a refusal", [chunk(refusal="I cannot"), chunk("stop")], "refused"),
    ("stop, though it called", [calls(piece(0, "1", "f", "{}")), chunk("stop")], "calls"),
    ("calls, though there are none", [chunk("tool_calls", content="a")], "stop"),
    ("length within a call", [calls(piece(0, "1", "f", "{")), chunk("length")], "length"),
    ("nothing said at all", [chunk("stop"), DONE], "stop"),
    ("said again at the end", [chunk("stop", content="a"), chunk(content=""), DONE], "stop"),
]


@pytest.mark.parametrize(("events", "finish"), [case[1:] for case in FINISHES], ids=[case[0] for case in FINISHES])
def test_reply_ends_for_a_reason(events: list[Any], finish: base.Finish) -> None:
    deltas = heard(*events)
    assert deltas[-1] == base.FinishDelta(finish)
    assert sum(isinstance(delta, base.FinishDelta) for delta in deltas) == 1


def test_refusal_is_said() -> None:
    assert reply(chunk(refusal="I "), chunk(refusal="cannot"), chunk("stop")).text == "I cannot"


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"choices": []},
        {"choices": None},
        chunk(),
        chunk(content=""),
        chunk(content=None, tool_calls=None, reasoning=None, role="assistant"),
        chunk(tool_calls=[]),
        {"choices": [{"index": 0, "delta": None}]},
        {"choices": [{"index": 1, "delta": {"content": "another choice"}}]},
        {"choices": [], "prompt_filter_results": [{}], "usage": None},
        "",
    ],
)
def test_what_says_nothing_makes_no_delta(event: Any) -> None:
    assert parser().feed("message", event if isinstance(event, str) else json.dumps(event)) == []


def test_whole_message_in_a_stream_is_taken_as_one() -> None:
    whole = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}]}
    assert reply(whole).text == "a"


def half(escaped: str, finish: str | None = None, /, **delta: Any) -> str:
    """An event with an escape in it, where a @ stands: half a character, which no strict writer would write."""
    return json.dumps(chunk(finish, **delta)).replace("@", escaped)


def test_a_character_in_two_events_is_one_character() -> None:
    got = reply(
        half(r"\ud83d", reasoning_content="Hm @"),
        half(r"\ude00", reasoning_content="@!"),
        half(r"\ud83d", content="Hi @"),
        half(r"\ude00", content="@ you"),
        half(r"\ud83d", tool_calls=[piece(0, "a", "one", '{"x": "@')]),
        half(r"\ud83c", tool_calls=[piece(1, "b", "two", '{"y": "@')]),
        half(r"\ude00", tool_calls=[piece(0, arguments='@"}')]),
        half(r"\udf89", tool_calls=[piece(1, arguments='@"}')]),
        chunk("tool_calls"),
    )
    assert [part.text for part in got.parts if isinstance(part, content_parts.Reasoning)] == ["Hm \U0001f600!"]
    assert got.text == "Hi \U0001f600 you"
    assert got.calls == made(("a", "one", '{"x": "\U0001f600"}'), ("b", "two", '{"y": "\U0001f389"}'))


def test_half_a_character_that_stays_alone_is_marked_and_the_rest_is_kept() -> None:
    got = reply(
        half(r"\ud83d", reasoning_content="Hm @"),
        half(r"\ude00", content="@ low"),
        half(r"\ud83d", content=" high @"),
        chunk(content="x"),
        half(r"\ud83d", content="end @"),
        half(r"\ud83d", tool_calls=[piece(0, "i@", "n@", "{@")]),
        chunk("tool_calls"),
    )
    assert [part.text for part in got.parts if isinstance(part, content_parts.Reasoning)] == ["Hm \ufffd"]
    assert got.text == "\ufffd low high \ufffdxend \ufffd"
    assert got.calls == made(("i\ufffd", "n\ufffd", "{\ufffd"))


def test_half_a_character_spoils_nothing_that_is_kept_whole() -> None:
    given = {"x": "@", "@": ["@"]}
    call = {**piece(0, "a", "one", given), "extra_content": given}
    got = reply(
        half(r"\ud83d", reasoning_details=[{"type": "text", "index": 0, "text": "@"}]),
        half(r"\ude00", reasoning_details=[{"type": "text", "index": 0, "text": "@"}]),
        half(r"\ud83d", tool_calls=[call]),
        chunk("tool_calls"),
    )
    mended = {"x": "\ufffd", "\ufffd": ["\ufffd"]}
    (thought,) = (part for part in got.parts if isinstance(part, content_parts.Reasoning))
    assert (thought.text, json.loads(thought.hidden)[0]["text"]) == ("\U0001f600", "\U0001f600")
    assert json.loads(str(got.calls[0].arguments)) == mended
    assert got.calls[0].extra == {"some": {"extra_content": mended}}


@pytest.mark.parametrize("data", [r'{"choices": "\ud83d"}', r'{"x": "\ud83d"', r'{"choices": NaN, "x": "\ud83d"}'])
def test_half_a_character_excuses_nothing_else(data: str) -> None:
    with pytest.raises(errors.ModelServerError):
        parser().feed("message", data)


def test_content_in_parts_is_text_and_thought() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}, {"type": "?"}]}
    got = reply(chunk(content=[thinking]), chunk(content=[{"type": "text", "text": "a"}, 5]), chunk("stop"))
    assert got.parts == (content_parts.Reasoning("hm", provider="some"), content_parts.Text("a"))


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_is_kept_with_the_field_it_came_in(field: str) -> None:
    got = reply(chunk(**{field: "h"}), chunk(**{field: "m"}), chunk(content="a"), chunk("stop"))
    assert got.parts == (content_parts.Reasoning("hm", field, provider="some"), content_parts.Text("a"))


def test_reasoning_in_both_fields_is_thought_once() -> None:
    got = reply(chunk(reasoning="hm", reasoning_content="hm"), calls(piece(0, "1", "f", "{}")), CALLED)
    assert got.parts == (content_parts.Reasoning("hm", "reasoning_content", provider="some"),)


def test_hidden_reasoning_comes_together_from_its_pieces() -> None:
    def detail(**more: Any) -> list[dict[str, Any]]:
        return [{"type": "reasoning.text", "index": 0, **more}]

    got = reply(
        chunk(reasoning="h", reasoning_details=detail(text="h")),
        chunk(reasoning="m", reasoning_details=detail(text="m", signature=None)),
        chunk(reasoning_details=detail(text="", signature="sig")),
        chunk(reasoning_details=[{"type": "reasoning.encrypted", "data": "xyz", "index": 1}]),
        calls(piece(0, "1", "f", "{}")),
        CALLED,
    )
    (thought,) = got.parts
    assert isinstance(thought, content_parts.Reasoning)
    assert (thought.text, thought.provider) == ("hm", "some")
    assert json.loads(thought.hidden) == [
        {"type": "reasoning.text", "index": 0, "text": "hm", "signature": "sig"},
        {"type": "reasoning.encrypted", "data": "xyz", "index": 1},
    ]


def test_hidden_reasoning_alone_is_thought_in_its_words() -> None:
    got = reply(chunk(reasoning_details=[{"type": "reasoning.summary", "summary": "hm"}]), chunk("stop", content="a"))
    assert isinstance(got.parts[0], content_parts.Reasoning)
    assert got.parts[0].text == "hm"


def test_what_a_provider_adds_to_a_call_is_kept() -> None:
    signed = {**piece(0, "1", "f", "{}"), "extra_content": {"google": {"thought_signature": "x"}}}
    (call,) = reply(calls(signed), CALLED).calls
    assert call.extra == {"some": {"extra_content": {"google": {"thought_signature": "x"}}}}


USAGES: list[tuple[str, dict[str, Any], types.Usage]] = [
    ("plain", {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}, types.Usage(10, 3)),
    (
        "openai",
        {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "total_tokens": 15,
            "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
        types.Usage(10, 5, 4, 0, 2),
    ),
    (
        "openrouter",
        {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "cost": 0.25,
            "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3},
        },
        types.Usage(10, 5, 4, 3, 0, 0.25),
    ),
    ("deepseek", {"prompt_tokens": 10, "completion_tokens": 5, "prompt_cache_hit_tokens": 6}, types.Usage(10, 5, 6)),
    (
        "thought counts in the total only",
        {
            "prompt_tokens": 10,
            "completion_tokens": 1,
            "total_tokens": 31,
            "completion_tokens_details": {"reasoning_tokens": 20},
        },
        types.Usage(10, 21, 0, 0, 20),
    ),
    ("nulls", {"prompt_tokens": 10, "completion_tokens": None, "prompt_tokens_details": None}, types.Usage(10)),
    ("nonsense", {"prompt_tokens": "ten", "completion_tokens": -4, "prompt_tokens_details": []}, types.Usage()),
]


@pytest.mark.parametrize(("given", "usage"), [case[1:] for case in USAGES], ids=[case[0] for case in USAGES])
def test_usage_is_counted(given: dict[str, Any], usage: types.Usage) -> None:
    assert reply(chunk("stop", content="a"), {"choices": [], "usage": given}, DONE).usage == usage
    assert reply(chunk(content="a"), {**chunk("stop"), "usage": given}).usage == usage, "with the last words"


def test_the_last_usage_counts_and_has_a_price() -> None:
    early, late = ({"prompt_tokens": 1_000_000, "completion_tokens": count} for count in (1, 500_000))
    price = base.Price(2.0, 4.0)
    got = reply({**chunk(content="a"), "usage": early}, {**chunk("stop"), "usage": late}, price=price)
    assert got.usage == types.Usage(1_000_000, 500_000, cost=4.0)
    told = reply(chunk("stop", content="a"), {"usage": {"prompt_tokens": 5, "cost": 0}}, price=price)
    assert told.usage.cost == 0


def test_nothing_is_told_before_something_is_said() -> None:
    one = parser()
    assert one.feed("message", json.dumps({**chunk(role="assistant"), "usage": {"prompt_tokens": 5}})) == []


BREAKS: list[tuple[str, list[Any], type[errors.ModelError]]] = [
    ("the end, before anything", [], errors.ModelServerError),
    ("the mark of the end, before anything", [DONE], errors.ModelServerError),
    ("the end, in the midst", [chunk(content="a")], errors.ModelCut),
    ("the end, within a call", [calls(piece(0, "1", "f", "{"))], errors.ModelCut),
    ("no JSON", ["{not json"], errors.ModelServerError),
    ("no JSON, in the midst", [chunk(content="a"), '{"choices":[{"delta":'], errors.ModelCut),
    ("other JSON", ["[1,2]"], errors.ModelServerError),
    ("other types", [{"choices": {"delta": 5}}], errors.ModelServerError),
    ("deep JSON", ['{"error":' + "[" * 100_000], errors.ModelServerError),
    ("a failure said as a reason", [chunk(content="a"), chunk("error")], errors.ModelCut),
    ("an error", [{"error": {"message": "Overloaded", "type": "server_error"}}], errors.ModelBusy),
    (
        "an error, in the midst",
        [chunk(content="a"), {"error": {"message": "Overloaded", "code": 502}}],
        errors.ModelCut,
    ),
    ("an error and an empty choice", [{**chunk("error"), "error": {"code": 429, "message": "slow"}}], errors.ModelBusy),
    (
        "an error without a wrapping",
        [{"object": "error", "message": "maximum context length", "code": 400}],
        errors.ContextOverflow,
    ),
    (
        "too long, in the midst",
        [chunk(content="a"), {"error": {"code": "context_length_exceeded"}}],
        errors.ContextOverflow,
    ),
]


@pytest.mark.parametrize(("events", "kind"), [case[1:] for case in BREAKS], ids=[case[0] for case in BREAKS])
def test_broken_stream_is_the_right_error(events: Sequence[Any], kind: type[errors.ModelError]) -> None:
    with pytest.raises(errors.ModelError) as caught:
        heard(*events)
    assert type(caught.value) is kind
    assert caught.value.model == "some/model"


@pytest.mark.parametrize("data", ['{"message":"Overloaded"}', "Overloaded", '{"error":{"message":"Overloaded"}}'])
def test_event_called_error_is_one(data: str) -> None:
    with pytest.raises(errors.ModelBusy, match="Overloaded"):
        parser().feed("error", data)


def test_what_was_said_before_a_cut_is_kept_and_half_a_call_is_none() -> None:
    one, got = parser(), reply_builder.ReplyBuilder("some/model")
    for event in (chunk(content="The sea is "), calls(piece(0, "1", "f", "{"))):
        for delta in one.feed("message", json.dumps(event)):
            got.add(delta)
    with pytest.raises(errors.ModelCut):
        one.end()
    assert (got.reply().text, got.reply().calls, got.reply().finish) == ("The sea is ", (), "cut")


KEYS = ["content", "tool_calls", "index", "function", "name", "arguments", "id", "error", "usage", "reasoning_details"]
WORDS = (
    strategies.none() | strategies.booleans() | strategies.integers(-2, 9) | strategies.sampled_from(["", "f", "{}"])
)
ANYTHING = strategies.recursive(
    WORDS,
    lambda inner: (
        strategies.lists(inner, max_size=3) | strategies.dictionaries(strategies.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)
FRAMES = strategies.sampled_from(
    [
        lambda given: given,
        lambda given: {"choices": given},
        lambda given: {"choices": [{"delta": given}]},
        lambda given: {"choices": [{"delta": {"tool_calls": [given]}}]},
        lambda given: {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": given}]}}]},
        lambda given: {"choices": [{"delta": {"content": "a"}}], "usage": given},
        lambda given: {"error": given},
    ]
)


@hypothesis.given(strategies.lists(strategies.tuples(FRAMES, ANYTHING), max_size=5))
def test_for_any_json_there_is_a_reply_or_an_error_of_ours(events: list[Any]) -> None:
    with contextlib.suppress(errors.ModelError):
        reply(*(json.dumps(frame(given)) for frame, given in events), DONE)
