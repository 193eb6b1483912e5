"""Streams of Chat Completions: the SDK is the oracle, and whatever else servers send is understood in one way."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Sequence
from typing import Any

import hypothesis
import openai as sdk
import pytest
from hypothesis import strategies
from openai.lib.streaming.chat import ChatCompletionStreamState

from holdfast import content_parts, errors, types
from holdfast.model import base, provider_errors, reply_builder
from holdfast.model.openai import adapter, stream
from tests.support.provider_calls import collect
from tests.support.replay_server import Answer, Server, events

HI = [{"role": "user", "content": "hi"}]


Outcome = tuple[str, tuple[types.ToolCall, ...], str | None, types.Usage]
"""The text, calls, finish reason and usage of a reply, in terms that both sides have."""


async def read_by_sdk(client: sdk.AsyncOpenAI) -> Outcome:
    state = ChatCompletionStreamState()
    async for one in await client.chat.completions.create(model="m", messages=HI, stream=True):  # type: ignore[arg-type, call-overload]
        state.handle_chunk(one)
    whole = state.current_completion_snapshot
    said, usage = whole.choices[0].message, types.Usage()
    if whole.usage is not None:
        prompt, completion = whole.usage.prompt_tokens_details, whole.usage.completion_tokens_details
        cached, thought = prompt.cached_tokens if prompt else 0, completion.reasoning_tokens if completion else 0
        counts = whole.usage.prompt_tokens, whole.usage.completion_tokens
        usage = types.Usage(*counts, cache_read=cached or 0, reasoning=thought or 0)
    calls = [types.ToolCall(each.id, each.function.name, each.function.arguments) for each in said.tool_calls or ()]
    return said.content or said.refusal or "", tuple(calls), whole.choices[0].finish_reason, usage


FINISH = {"stop": "stop", "calls": "tool_calls", "length": "length", "refused": "content_filter", "cut": None}


async def read(model: adapter.OpenAIModel) -> Outcome:
    reply, _, error = await collect(model)
    assert (error, bool(reply.text)) == (None, True)
    return reply.text, reply.calls, FINISH[reply.finish], reply.usage


def chunk(finish: str | None = None, /, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def piece(index: int | None = None, id: str | None = None, name: str | None = None, arguments: Any = None) -> Any:
    """Return a piece of a call, with the given fields only."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    given = {"index": index, "id": id, "function": function or None}
    return {key: value for key, value in given.items() if value is not None}


COUNTS = {"prompt_tokens": 20, "completion_tokens": 9, "total_tokens": 29}
DETAILS = {"prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 3}}
USAGE = {**chunk(), "choices": [], "usage": {**COUNTS, **DETAILS}}
TALK = [chunk(role="assistant", content=""), chunk(content="Grüße "), chunk(content="vom 🌊"), chunk(content="!")]
TALKED = [*TALK, chunk("stop"), USAGE, "[DONE]"]
CALLED = [
    chunk(role="assistant", content=None, tool_calls=[piece(0, "call_a", "read", "")]),
    chunk(tool_calls=[piece(1, "call_b", "write", "")]),
    chunk(tool_calls=[piece(1, arguments='{"text":'), piece(0, arguments='{"path"')]),
    chunk(tool_calls=[piece(0, arguments=':"ä.txt"}')]),
    chunk(tool_calls=[piece(1, arguments='"🌊"}')]),
    chunk("tool_calls"),
    USAGE,
    "[DONE]",
]
STREAMS: dict[str, bytes] = {
    "text": events(*TALKED),
    "lines end with CRLF": events(*TALKED, end="\r\n"),
    "text and parallel calls": events(*TALK, *CALLED),
    "keep-alives": b":\n\n: PROCESSING\n\n:x\r\n\r\n".join([b"", *(events(one) for one in TALKED), b""]),
    "empty deltas": events(chunk(), *TALK, chunk(), chunk(content=""), chunk("stop"), chunk(), USAGE, "[DONE]"),
    "empty choices": events({**chunk(), "choices": []}, *TALKED),
    "no end mark": events(*TALK, chunk("stop"), USAGE),
    "no usage": events(*TALK, chunk("stop"), "[DONE]"),
    "usage with the finish": events(*TALK, {**chunk("stop"), "usage": USAGE["usage"]}, "[DONE]"),
    "escapes": events(*(json.dumps(one) if isinstance(one, dict) else one for one in TALKED)),
    "line separators in text": events(chunk(content="a\u2028b\u0085c\x0bd"), chunk("stop"), "[DONE]"),
    "output limit": events(*TALK, chunk("length"), USAGE, "[DONE]"),
    "filter": events(*TALK, chunk("content_filter"), "[DONE]"),
    "chunk after the end": events(*TALKED, chunk(content="ignored")),
    "unknown fields": events({**chunk(content="a", audio=None), "x": {"y": [1]}}, chunk("stop"), "[DONE]"),
}
BYTEWISE = ["lines end with CRLF", "text and parallel calls"]


@pytest.mark.parametrize(("name", "size"), [*((name, 1 << 20) for name in STREAMS), *((name, 1) for name in BYTEWISE)])
async def test_same_stream_is_the_same_reply(name: str, size: int) -> None:
    data = STREAMS[name]
    answer = Answer([data[at : at + size] for at in range(0, len(data), size)])
    async with Server(answer) as server, sdk.AsyncOpenAI(api_key="k", base_url=server.url, max_retries=0) as client:
        model = adapter.OpenAIModel("m", base_url=server.url, window=1000)
        assert await read(model) == await read_by_sdk(client)
        await model.close()


# --- cases that the SDK does not decide -------------------------------------------------------------------

DONE = "[DONE]"


def create_parser(**more: Any) -> stream.Parser:
    count = itertools.count(1)
    advice = provider_errors.Advice(model="some/model")
    return stream.Parser(advice, provider="some", new_call_id=lambda: f"new_{next(count)}", **more)


def parse(*events: Any, **more: Any) -> list[base.Delta]:
    """Return the deltas of a whole stream; an event is its data, text as it is."""
    parser, deltas = create_parser(**more), list[base.Delta]()
    for event in events:
        deltas += parser.feed("message", event if isinstance(event, str) else json.dumps(event))
    return deltas + parser.end()


def reply(*events: Any, **more: Any) -> base.Reply:
    builder = reply_builder.ReplyBuilder("some/model")
    for delta in parse(*events, **more):
        builder.add(delta)
    return builder.reply()


def calls(*pieces: tuple[Any, ...]) -> dict[str, Any]:
    return chunk(tool_calls=[piece(*each) for each in pieces])


Pieces = list[list[tuple[Any, ...]]]
F, G = ("1", "f", "{}"), ("2", "g", "{}")
CALLS: dict[str, tuple[Pieces, list[tuple[str, str, str]]]] = {
    "index 0 with new ids": ([[(0, *F)], [(0, *G)]], [F, G]),
    "index 0 in one event": ([[(0, *F), (0, *G)]], [F, G]),
    "index 0 in pieces": (
        [[(0, "1", "f", "{")], [(0, None, None, "}")], [(0, "2", "g", "{")], [(0, None, None, "}")]],
        [F, G],
    ),
    "index 0 without ids": ([[(0, None, "f", "{}")], [(0, None, "f", "{}")]], [("new_1", *F[1:]), ("new_2", *F[1:])]),
    "no index": ([[(None, "1", "f", "{")], [(None, None, None, "}")], [(None, *G)]], [F, G]),
    "no index, by id": (
        [[(None, "1", "f", "{"), (None, "2", "g", "{")], [(None, "1", None, "}"), (None, "2", None, "}")]],
        [F, G],
    ),
    "neither index nor id": (
        [[(None, None, "f", "{}"), (None, "", "g", "{}")]],
        [("new_1", *F[1:]), ("new_2", *G[1:])],
    ),
    "id and name in every piece": ([[(0, "1", "f", "{")], [(0, "1", "f", "}")]], [F]),
    "name in every piece": ([[(0, None, "f", "{")], [(0, None, "f", "}")]], [("new_1", "f", "{}")]),
    "late id": ([[(0, None, "f", "{")], [(0, "1", None, "}")]], [F]),
    "late name": ([[(0, "1", "", "")], [(0, None, "f", "{}")]], [F]),
    "new id without a name": ([[(0, "1", "f", "{")], [(0, "2", None, "}")]], [F]),
    "same id twice": ([[(0, *F)], [(1, "1", "g", "{}")]], [F, ("new_1", "g", "{}")]),
    "empty piece": ([[(0, *F)], [(0,)]], [F]),
    "object as arguments": ([[(0, "1", "f", {"a": [1, "ü"]})]], [("1", "f", '{"a":[1,"ü"]}')]),
}


@pytest.mark.parametrize(("events", "expected"), CALLS.values(), ids=CALLS)
def test_calls_are_assembled_from_any_pieces(events: Pieces, expected: list[tuple[str, str, str]]) -> None:
    found = reply(*(calls(*pieces) for pieces in events), chunk("tool_calls"), DONE, names={"g": "g"})
    assert found.calls == tuple(types.ToolCall(*one) for one in expected)
    assert found.finish == "calls"


def test_calls_get_the_original_names_and_extra_fields_of_the_provider() -> None:
    signed = {**piece(0, "1", "f_g", "{}"), "extra_content": {"google": {"thought_signature": "x"}}}
    (call,) = reply(chunk(tool_calls=[signed]), chunk("tool_calls"), names={"f_g": "f.g"}).calls
    assert (call.name, call.extra) == ("f.g", {"some": {"extra_content": {"google": {"thought_signature": "x"}}}})


FINISHES: dict[str, tuple[list[Any], base.Finish]] = {
    "end mark only": ([chunk(content="a"), DONE], "stop"),
    "unknown reason": ([chunk("eos", content="a")], "stop"),
    "in capitals": ([chunk("MAX_TOKENS", content="a")], "length"),
    "filter": ([chunk("content_filter", content="a")], "refused"),
    "refusal": ([chunk(refusal="I "), chunk(refusal="cannot"), chunk("stop")], "refused"),
    "stop after a call": ([calls((0, *F)), chunk("stop")], "calls"),
    "calls without a call": ([chunk("tool_calls", content="a")], "stop"),
}


@pytest.mark.parametrize(("events", "finish"), FINISHES.values(), ids=FINISHES)
def test_reply_finishes_once_with_its_reason(events: list[Any], finish: base.Finish) -> None:
    deltas = parse(*events)
    assert deltas[-1] == base.FinishDelta(finish)
    assert sum(isinstance(delta, base.FinishDelta) for delta in deltas) == 1
    if finish == "refused" and len(events) == 3:
        assert reply(*events).text == "I cannot"


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"choices": None},
        {"choices": [{"index": 0, "delta": None}]},
        chunk(content=None, tool_calls=[], reasoning=None, role="assistant"),
        {"choices": [{"index": 1, "delta": {"content": "another choice"}}]},
        {**chunk(role="assistant"), "usage": {"prompt_tokens": 5}},
        "",
    ],
)
def test_events_without_content_make_no_delta(event: Any) -> None:
    assert create_parser().feed("message", event if isinstance(event, str) else json.dumps(event)) == []


def test_whole_messages_and_content_parts_are_understood() -> None:
    whole = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}]}
    assert reply(whole).text == "a"
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}, {"type": "?"}]}
    found = reply(chunk(content=[thinking]), chunk(content=[{"type": "text", "text": "a"}, 5]), chunk("stop"))
    assert found.parts == (content_parts.Reasoning("hm", provider="some"), content_parts.Text("a"))


def escaped(code: str, finish: str | None = None, /, **delta: Any) -> str:
    """Return an event with an escaped surrogate in place of @, as no strict encoder would write it."""
    return json.dumps(chunk(finish, **delta)).replace("@", code)


@pytest.mark.parametrize("second", [r"\ude00", "x"], ids=["paired", "unpaired"])
def test_surrogate_pair_split_over_two_events_is_one_character(second: str) -> None:
    found = reply(
        escaped(r"\ud83d", reasoning_content="Hm @"),
        escaped(second, reasoning_content="@!"),
        escaped(r"\ud83d", reasoning_content="@"),
        escaped(r"\ud83d", content="Hi @"),
        escaped(second, content="@ you"),
        escaped(r"\ud83d", content="@"),
        escaped(r"\ud83d", tool_calls=[piece(0, "a", "one", '{"x": "@')]),
        escaped(r"\ud83d", tool_calls=[piece(1, "b", "two", '{"y": "@')]),
        escaped(second, tool_calls=[piece(0, arguments='@"}')]),
        escaped(second, tool_calls=[piece(1, arguments='@"}')]),
        escaped(r"\ud83d", tool_calls=[{**piece(2, "i@", "n@", {"x": "@"}), "extra_content": {"@": "@"}}]),
        chunk("tool_calls"),
    )
    joined = "\U0001f600" if second != "x" else "\ufffdx"
    assert [part.text for part in found.parts if isinstance(part, content_parts.Reasoning)] == [f"Hm {joined}!\ufffd"]
    assert found.text == f"Hi {joined} you\ufffd"
    assert found.calls == (
        types.ToolCall("a", "one", f'{{"x": "{joined}"}}'),
        types.ToolCall("b", "two", f'{{"y": "{joined}"}}'),
        types.ToolCall("i\ufffd", "n\ufffd", '{"x":"\ufffd"}', {"some": {"extra_content": {"\ufffd": "\ufffd"}}}),
    )


@pytest.mark.parametrize("fields", [("reasoning",), ("reasoning_content",), ("reasoning", "reasoning_content")])
def test_reasoning_is_kept_once_with_its_field(fields: tuple[str, ...]) -> None:
    found = reply(*(chunk(**dict.fromkeys(fields, text)) for text in "hm"), chunk(content="a"), chunk("stop"))
    assert found.parts == (content_parts.Reasoning("hm", fields[-1], provider="some"), content_parts.Text("a"))


def test_hidden_reasoning_is_joined_from_its_pieces() -> None:
    def detail(code: str, **more: Any) -> str:
        return escaped(code, reasoning_details=[{"type": "reasoning.text", "index": 0, **more}])

    found = reply(
        detail(r"\ud83d", text="@"),
        detail(r"\ude00", text="@", signature=None),
        detail("", text="", signature="sig"),
        chunk(reasoning_details=[{"type": "reasoning.encrypted", "data": "xyz", "index": 1}]),
        chunk("stop"),
    )
    (thought,) = found.parts
    assert (thought.text, thought.provider) == ("\U0001f600", "some")
    assert json.loads(thought.hidden) == [
        {"type": "reasoning.text", "index": 0, "text": "\U0001f600", "signature": "sig"},
        {"type": "reasoning.encrypted", "data": "xyz", "index": 1},
    ]
    summary = chunk(reasoning_details=[{"type": "reasoning.summary", "summary": "hm"}])
    assert getattr(reply(summary, chunk("stop")).parts[0], "text", "") == "hm"


@pytest.mark.parametrize(
    ("given", "usage"),
    [
        ({"prompt_tokens": 10, "prompt_cache_hit_tokens": 6}, types.Usage(10, 0, 6)),
        (
            {"prompt_tokens": 10, "cost": 0.25, "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3}},
            types.Usage(10, 0, 4, 3, 0, 0.25),
        ),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 1,
                "total_tokens": 31,
                "completion_tokens_details": {"reasoning_tokens": 20},
            },
            types.Usage(10, 21, 0, 0, 20),
        ),
        ({"prompt_tokens": "ten", "completion_tokens": -4, "prompt_tokens_details": []}, types.Usage()),
    ],
    ids=["deepseek", "openrouter", "reasoning in the total only", "invalid"],
)
def test_usage_is_counted(given: dict[str, Any], usage: types.Usage) -> None:
    assert reply(chunk("stop", content="a"), {"choices": [], "usage": given}, DONE).usage == usage
    assert reply(chunk(content="a"), {**chunk("stop"), "usage": given}).usage == usage


def test_last_usage_counts_and_has_a_price_unless_it_reports_a_cost() -> None:
    early, late = ({"prompt_tokens": 1_000_000, "completion_tokens": count} for count in (1, 500_000))
    price = base.Price(2.0, 4.0)
    found = reply({**chunk(content="a"), "usage": early}, {**chunk("stop"), "usage": late}, price=price)
    assert found.usage == types.Usage(1_000_000, 500_000, cost=4.0)
    free = reply(chunk("stop", content="a"), {"usage": {"prompt_tokens": 5, "cost": 0}}, price=price)
    assert free.usage.cost == 0


A = chunk(content="a")
BROKEN: dict[str, tuple[list[Any], type[errors.ModelError]]] = {
    "empty": ([], errors.ModelServerError),
    "end mark only": ([DONE], errors.ModelServerError),
    "cut": ([A], errors.ModelCut),
    "invalid JSON later": ([A, '{"choices":[{"delta":'], errors.ModelCut),
    "deep JSON": (['{"error":' + "[" * 100_000], errors.ModelServerError),
    "failure as a reason": ([A, chunk("error")], errors.ModelCut),
    "error": ([{"error": {"message": "Overloaded", "type": "server_error"}}], errors.ModelBusy),
    "error later": ([A, {"error": {"message": "Overloaded", "code": 502}}], errors.ModelCut),
    "plain error": ([{"object": "error", "message": "maximum context length", "code": 400}], errors.ContextOverflow),
    "overflow later": ([A, {"error": {"code": "context_length_exceeded"}}], errors.ContextOverflow),
}


@pytest.mark.parametrize(("events", "kind"), BROKEN.values(), ids=BROKEN)
def test_broken_stream_is_the_right_error(events: Sequence[Any], kind: type[errors.ModelError]) -> None:
    with pytest.raises(errors.ModelError) as caught:
        parse(*events)
    assert type(caught.value) is kind
    assert caught.value.model == "some/model"


KEYS = ["content", "tool_calls", "index", "function", "name", "arguments", "id", "error", "usage", "reasoning_details"]
ANY_JSON = strategies.recursive(
    strategies.sampled_from([None, True, -2, 0, 9, "", "f", "{}"]),
    lambda inner: (
        strategies.lists(inner, max_size=3) | strategies.dictionaries(strategies.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)
FRAMES = strategies.sampled_from(
    [
        lambda given: given,
        lambda given: {"choices": [{"delta": given}]},
        lambda given: {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": given}]}}]},
        lambda given: {"choices": [{"delta": {"content": "a"}}], "usage": given},
        lambda given: {"error": given},
    ]
)


@hypothesis.given(strategies.lists(strategies.tuples(FRAMES, ANY_JSON), max_size=5))
def test_any_json_gives_a_reply_or_a_model_error(events: list[Any]) -> None:
    with contextlib.suppress(errors.ModelError):
        found = reply(*(json.dumps(frame(given)) for frame, given in events), DONE)
        assert found.finish != "cut"
