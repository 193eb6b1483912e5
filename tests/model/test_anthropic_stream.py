"""Anthropic's stream: its SDK is the oracle, and the other cases are those that the SDK does not decide."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anthropic as sdk
import jiter
import pytest

from holdfast import content_parts, errors, types
from holdfast.model import base, provider_errors, reply_builder
from holdfast.model.anthropic import adapter, stream
from tests.support.provider_calls import collect
from tests.support.replay_server import Answer, Server

KEY = "sk-ant-a-key-of-mine"


@asynccontextmanager
async def clients(*answers: Answer) -> AsyncIterator[tuple[Server, adapter.AnthropicModel, sdk.AsyncAnthropic]]:
    """Serve these answers to our adapter and to the SDK."""
    async with (
        Server(*answers) as server,
        sdk.AsyncAnthropic(api_key=KEY, base_url=server.url, max_retries=0) as client,
    ):
        model = adapter.AnthropicModel("claude", base_url=server.url, window=1000, key=KEY)
        yield server, model, client
        await model.close()


async def test_same_call_is_the_same_request() -> None:
    async with clients(Answer([STREAMS["text"]])) as (server, model, client):
        await collect(model)
        said = [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]
        asked: Any = [{"role": "user", "content": said}]
        stream = await client.messages.create(
            model="claude", max_tokens=adapter.MAX_OUTPUT, messages=asked, stream=True
        )
        await stream.close()
    ours, theirs = server.asked
    assert ours.json == theirs.json
    assert (ours.method, ours.path) == (theirs.method, theirs.path)
    for name in ("authorization", "anthropic-version", "content-type"):
        assert ours.headers[name] == theirs.headers[name]
    assert str(sdk.Anthropic(api_key=KEY).base_url).rstrip("/") == adapter.BASE_URL


def sse(*events: Mapping[str, Any], end: str = "\n") -> bytes:
    lines = (f"event: {one['type']}{end}data: {json.dumps(one, ensure_ascii=False)}{end}{end}" for one in events)
    return "".join(lines).encode()


def begin(**usage: Any) -> dict[str, Any]:
    empty = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "claude"}
    stop = {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 11, "output_tokens": 1, **usage}}
    return {"type": "message_start", "message": {**empty, **stop}}


def start(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **fields}}


def piece(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def end(reason: str, **usage: Any) -> list[dict[str, Any]]:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return [
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 20, **usage}},
        {"type": "message_stop"},
    ]


def say(index: int, *texts: str, first: str = "") -> list[dict[str, Any]]:
    pieces = [piece(index, "text_delta", text=text) for text in texts]
    return [start(index, "text", text=first), *pieces, stop(index)]


def use_tool(index: int, id: str, *pieces: str) -> list[dict[str, Any]]:
    arguments = [piece(index, "input_json_delta", partial_json=one) for one in pieces]
    return [start(index, "tool_use", id=id, name="read_file", input={}), *arguments, stop(index)]


PING = {"type": "ping"}
OVERLOAD = {"type": "error", "error": {"type": "overloaded_error", "message": "Sorry"}}
TALK = [*say(0, "Grüße, ", "你好 🎈", "\u2028\x85\x0b nicht\r\nzwei Zeilen"), *end("end_turn")]
THOUGHTS = [
    start(0, "thinking", thinking="", signature=""),
    piece(0, "thinking_delta", thinking="Let me "),
    piece(0, "thinking_delta", thinking="see."),
    piece(0, "signature_delta", signature="U0lH"),
    stop(0),
    start(1, "redacted_thinking", data="SElEREVO"),
    stop(1),
]
CALL_A, CALL_B = use_tool(0, "a", '{"path":"ä', '"}'), use_tool(1, "b", '{"path":', '"y"}')
INTERLEAVED = [each for pair in zip(CALL_A, CALL_B, strict=True) for each in pair]
CACHE = {"input_tokens": 12, "cache_read_input_tokens": 300, "output_tokens_details": {"thinking_tokens": 3}}

STREAMS: dict[str, bytes] = {
    "text": sse(begin(), *TALK),
    "lines end with CRLF": sse(begin(), *TALK, end="\r\n"),
    "text in the first event": sse(begin(), *say(0, " on", first="Go"), *end("end_turn")),
    "keep-alives": b": hello\n\n" + sse(PING, begin(), PING) + b":\n\n" + sse(*say(0, "x"), PING, *end("end_turn")),
    "empty deltas": sse(begin(), *say(0, "", "a", "", "b", ""), *use_tool(1, "a", "", "{}", ""), *end("tool_use")),
    "no content": sse(begin(), *end("end_turn")),
    "parallel calls": sse(
        begin(), *say(0, "I"), *use_tool(1, "a", '{"pa', 'th":"x"}'), *use_tool(2, "b"), *end("tool_use")
    ),
    "interleaved calls": sse(begin(), *INTERLEAVED, *end("tool_use")),
    "whole call": sse(begin(), start(0, "tool_use", id="a", name="f", input={"n": 1}), stop(0), *end("tool_use")),
    "reasoning": sse(begin(), *THOUGHTS, *say(2, "Yes."), *use_tool(3, "a", '{"n": 1}'), *end("tool_use")),
    "output limit": sse(begin(), *say(0, "I"), *use_tool(1, "a", '{"path": "x", "more'), *end("max_tokens")),
    "refused": sse(begin(), *say(0, "I"), *end("refusal")),
    "full window": sse(begin(), *say(0, "I"), *end("model_context_window_exceeded")),
    "unknown reason": sse(begin(), *say(0, "I"), *end("unknown_reason")),
    "cache": sse(
        begin(cache_creation_input_tokens=100, cache_read_input_tokens=0), *say(0, "x"), *end("end_turn", **CACHE)
    ),
    "unknown event": sse(
        begin(), *say(0, "x")[:1], piece(0, "sung_delta", song="la"), *say(0, "x")[1:], *end("end_turn")
    ),
    "overload later": sse(begin(), *say(0, "Half a"), OVERLOAD),
}
FINISH = {"tool_use": "calls", "max_tokens": "length", "model_context_window_exceeded": "length", "refusal": "refused"}


async def read_by_sdk(client: sdk.AsyncAnthropic) -> tuple[sdk.types.Message | None, Any]:
    """Return the message that the SDK has read, and the error it ended with."""
    asked: Any = {"model": "claude", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    snapshot: sdk.types.Message | None = None
    async with client.messages.stream(**asked) as stream:
        try:
            async for _ in stream:
                snapshot = stream.current_message_snapshot
        except Exception as error:
            return snapshot, error
    return snapshot, None


def parts(reply: base.Reply) -> list[Any]:
    """Return the parts and calls of a reply; arguments that were cut are parsed as far as they go."""
    parsed = [jiter.from_json(one.arguments.encode(), partial_mode=True) for one in reply.calls]
    return [*reply.parts, *((one.id, one.name, value) for one, value in zip(reply.calls, parsed, strict=True))]


def sdk_parts(reply: sdk.types.Message) -> list[Any]:
    common: list[Any] = []
    for block in reply.content:
        match block:
            case sdk.types.TextBlock(text=text):
                common.append(content_parts.Text(text))
            case sdk.types.ThinkingBlock(thinking=text, signature=signature):
                common.append(content_parts.Reasoning(text, signature, provider="anthropic"))
            case sdk.types.RedactedThinkingBlock(data=data):
                common.append(content_parts.Reasoning(hidden=data, provider="anthropic"))
            case sdk.types.ToolUseBlock(id=id, name=name, input=input):
                common.append((id, name, input))
    return common


def sdk_usage(usage: sdk.types.Usage) -> types.Usage:
    read, write = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    thought = usage.output_tokens_details.thinking_tokens if usage.output_tokens_details else 0
    return types.Usage(usage.input_tokens + read + write, usage.output_tokens, read, write, thought)


BYTEWISE = ["text", "lines end with CRLF", "interleaved calls", "overload later"]


@pytest.mark.parametrize(("name", "size"), [*((name, 1 << 20) for name in STREAMS), *((name, 1) for name in BYTEWISE)])
async def test_same_stream_is_the_same_reply(name: str, size: int) -> None:
    data = STREAMS[name]
    answer = Answer([data[at : at + size] for at in range(0, len(data), size)])
    async with clients(answer) as (_, model, client):
        reply, _, error = await collect(model)
        snapshot, sdk_error = await read_by_sdk(client)
    assert parts(reply) == sdk_parts(snapshot)
    if sdk_error is None:
        assert (error, reply.usage) == (None, sdk_usage(snapshot.usage))
        assert reply.finish == FINISH.get(str(snapshot.stop_reason), "stop")
    else:
        assert type(error) is errors.ModelCut


@pytest.mark.parametrize("name", ["parallel calls", "reasoning"])
@pytest.mark.parametrize("abrupt", [True, False])
async def test_stream_cut_anywhere_keeps_the_text_that_the_sdk_has_read(name: str, abrupt: bool) -> None:
    data = STREAMS[name].partition(b"event: message_delta")[0]
    whole = [at + 2 for at in range(len(data)) if data[at : at + 2] == b"\n\n"]
    cuts = [*whole, whole[-1] - 5, whole[-2] + 9]
    async with clients(*(Answer([data[:at]], cut=abrupt) for at in cuts for _ in range(2))) as (_, model, client):
        for _ in cuts:
            reply, _, error = await collect(model)
            snapshot, _ = await read_by_sdk(client)
            assert type(error) is errors.ModelCut
            heard = [one for one in sdk_parts(snapshot) if isinstance(one, content_parts.Text)] if snapshot else []
            assert reply.text == "".join(one.text for one in heard)
            assert (reply.finish, reply.calls) == ("cut", ())


# --- cases that the SDK does not decide -------------------------------------------------------------------

ADVICE = provider_errors.Advice(model="anthropic/claude", key="Set ANTHROPIC_API_KEY to a valid key.")


HELLO = [start(0, "text", text=""), piece(0, "text_delta", text="Hello")]


def error_event(kind: str, message: str = "Sorry") -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


def feed(parser: stream.Parser, event: Any, name: str = "") -> list[base.Delta]:
    return parser.feed(name, event if isinstance(event, str) else json.dumps(event))


def parse(*events: Any) -> base.Reply:
    parser, builder = stream.Parser(ADVICE), reply_builder.ReplyBuilder("anthropic/claude")
    for delta in [delta for event in events for delta in feed(parser, event)] + parser.end():
        builder.add(delta)
    return builder.reply()


def test_calls_without_an_id_get_one() -> None:
    reply = parse(begin(), start(1, "tool_use", name="a"), start(2, "tool_use", name="b", id=""), *end("end_turn"))
    assert ([one.id for one in reply.calls], reply.finish) == (["msg_1_0", "msg_1_1"], "calls")


def test_nothing_is_emitted_before_the_first_text_so_that_the_call_can_be_retried() -> None:
    parser = stream.Parser(ADVICE)
    quiet = [begin(), PING, start(0, "text", text=""), piece(0, "text_delta", text="")]
    assert [feed(parser, event) for event in quiet] == [[], [], [], []]
    assert feed(parser, piece(0, "text_delta", text="x"))[-1] == base.ContentDelta("x")


@pytest.mark.parametrize(
    "event",
    [
        "",
        {"type": "unknown", "index": 7, "delta": {"type": "x"}},
        piece(5, "input_json_delta", partial_json="{}"),
        start(5, "server_tool_use", id="x", name="web_search", input={}),
        start(0, "text", text=None),
    ],
)
def test_events_without_content_are_ignored(event: Any) -> None:
    assert feed(stream.Parser(ADVICE), event) == []


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("rate_limit_error", errors.ModelBusy, errors.ModelCut),
        ("permission_error", errors.KeyRefused, errors.KeyRefused),
    ],
)
def test_error_event(kind: str, before: type[errors.ModelError], after: type[errors.ModelError]) -> None:
    for events, expected in (([begin()], before), ([begin(), *HELLO], after)):
        parser = stream.Parser(ADVICE)
        for event in events:
            feed(parser, event)
        with pytest.raises(errors.ModelError) as raised:
            feed(parser, error_event(kind), "error")
        assert type(raised.value) is expected


def test_overflow_is_found_in_errors_and_stop_reasons() -> None:
    with pytest.raises(errors.ContextOverflow):
        parse(error_event("invalid_request_error", "prompt is too long: 215000 tokens > 200000 maximum"))
    with pytest.raises(errors.ContextOverflow):
        parse(begin(), *end("model_context_window_exceeded"))


def escaped(code: str, event: Mapping[str, Any]) -> str:
    """Return an event with an escaped surrogate in place of @, as no strict encoder would write it."""
    return json.dumps(event).replace("@", code)


@pytest.mark.parametrize("second", [r"\ude00", "x"], ids=["paired", "unpaired"])
def test_surrogate_pair_split_over_two_events_is_one_character(second: str) -> None:
    reply = parse(
        begin(),
        escaped(r"\ud83d", start(0, "thinking", thinking="Hm @")),
        stop(0),
        escaped(r"\ud83d", start(1, "text", text="Hi @")),
        escaped(second, piece(1, "text_delta", text="@ you")),
        escaped(r"\ud83d", piece(1, "text_delta", text="@")),
        stop(1),
        start(2, "tool_use", id="a", name="one", input={}),
        escaped(r"\ud83d", piece(2, "input_json_delta", partial_json='{"x": "@')),
        escaped(second, piece(2, "input_json_delta", partial_json='@"}')),
        escaped(r"\ud83d", start(3, "tool_use", id="i@", name="n@", input={"@": "@"})),
        *end("tool_use"),
    )
    joined = "\U0001f600" if second != "x" else "\ufffdx"
    thought = content_parts.Reasoning("Hm \ufffd", provider="anthropic")
    assert reply.parts == (thought, content_parts.Text(f"Hi {joined} you\ufffd"))
    assert reply.calls == (
        types.ToolCall("a", "one", f'{{"x": "{joined}"}}'),
        types.ToolCall("i\ufffd", "n\ufffd", '{"\ufffd":"\ufffd"}'),
    )
