"""The official SDK as the oracle: for the same call the same request, for the same stream the same reply.

Streams are told as bytes, so that both read them from the first byte on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anthropic as sdk
import hypothesis
import jiter
import pydantic
import pytest
from anthropic.types import message_create_params

from holdfast import content_parts, errors, types
from holdfast.model import base, reply_builder
from holdfast.model.anthropic import adapter
from tests.model.test_anthropic_request import TOOL, any_message, asks, built, call, message, result, thought
from tests.support import replay_server

KEY = "sk-ant-a-key-of-mine"


# --- the same call, the same request -------------------------------------------------------------------

CACHED = {"cache_control": {"type": "ephemeral"}}
CALLS: dict[str, tuple[base.Request, dict[str, Any]]] = {
    "a word": (
        base.Request(messages=[message("user", "Grüße 你好 🎈")]),
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Grüße 你好 🎈", **CACHED}]}]},
    ),
    "everything": (
        base.Request(
            messages=[
                message("user", [{"type": "text", "text": "Look."}, {"type": "image", "data": "aGk="}]),
                asks(
                    call("a", arguments='{"path": "x"}'),
                    call("b", arguments={"path": "y"}),
                    content=[thought("Hm.", "SIG"), thought("", hidden="HID"), {"type": "text", "text": "I look."}],
                ),
                result("a", "one"),
                result("b", [{"type": "text", "text": "two"}, {"type": "image", "url": "https://a.example/b.png"}]),
                message("assistant", "Done."),
                message("user", "Thanks."),
            ],
            system="Be kind.",
            tools=[TOOL],
            max_output=77,
        ),
        {
            "max_tokens": 77,
            "system": [{"type": "text", "text": "Be kind.", **CACHED}],
            "tools": [
                {"name": TOOL.name, "description": TOOL.description, "input_schema": TOOL.parameters, **CACHED},
            ],
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "Look."},
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
                    ],
                },
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm.", "signature": "SIG"},
                        {"type": "redacted_thinking", "data": "HID"},
                        {"type": "text", "text": "I look."},
                        {"type": "tool_use", "id": "a", "name": "read_file", "input": {"path": "x"}},
                        {"type": "tool_use", "id": "b", "name": "read_file", "input": {"path": "y"}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "one"}]},
                        {
                            "type": "tool_result",
                            "tool_use_id": "b",
                            "content": [
                                {"type": "text", "text": "two"},
                                {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}},
                            ],
                            **CACHED,
                        },
                    ],
                },
                {"role": "assistant", "content": [{"type": "text", "text": "Done."}]},
                {"role": "user", "content": [{"type": "text", "text": "Thanks.", **CACHED}]},
            ],
        },
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_for_the_same_call_the_sdk_sends_the_same_request(name: str) -> None:
    request, words = CALLS[name]

    async def run() -> Sequence[replay_server.Asked]:
        async with (
            replay_server.Server(replay_server.Answer([STREAMS["text"]])) as one,
            asking(one.url) as (model, client),
        ):
            await ours(model, request)
            stream = await client.messages.create(
                **{"model": "claude", "max_tokens": adapter.MAX_OUTPUT, **words}, stream=True
            )
            await stream.close()
            return one.asked

    mine, theirs = asyncio.run(run())
    assert mine.json == theirs.json
    assert (mine.method, mine.path) == (theirs.method, theirs.path)
    same = ("authorization", "anthropic-version", "content-type")
    assert {name: mine.headers[name] for name in same} == {name: theirs.headers[name] for name in same}


KNOWN = pydantic.TypeAdapter(message_create_params.MessageCreateParamsStreaming)


def drawn(value: Any) -> Any:
    """A validated value with all of its lazily checked parts."""
    if isinstance(value, Mapping):
        return {key: drawn(part) for key, part in value.items()}
    if isinstance(value, str | bytes | int | float | None):
        return value
    return [drawn(part) for part in value]


@hypothesis.given(hypothesis.strategies.lists(any_message, max_size=8))
def test_any_request_is_one_the_types_of_the_sdk_know_to_the_last_field(messages: list[types.Message]) -> None:
    for body in (built(messages), built(messages, system="S", tools=[TOOL], temperature=1.0)):
        assert drawn(KNOWN.validate_python(body)) == body


# --- the same stream, the same reply -------------------------------------------------------------------


def sse(*events: Mapping[str, Any], end: str = "\n") -> bytes:
    told = (f"event: {one['type']}{end}data: {json.dumps(one, ensure_ascii=False)}{end}{end}" for one in events)
    return "".join(told).encode()


def began(**usage: Any) -> dict[str, Any]:
    return {
        "type": "message_start",
        "message": {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": "claude",
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 11, "output_tokens": 1, **usage},
        },
    }


def start(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **fields}}


def piece(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def ended(reason: str, **usage: Any) -> list[dict[str, Any]]:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return [
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 20, **usage}},
        {"type": "message_stop"},
    ]


def said(index: int, *texts: str, first: str = "") -> list[dict[str, Any]]:
    pieces = [piece(index, "text_delta", text=text) for text in texts]
    return [start(index, "text", text=first), *pieces, stop(index)]


def called(index: int, id: str, *pieces: str) -> list[dict[str, Any]]:
    told = [piece(index, "input_json_delta", partial_json=one) for one in pieces]
    return [start(index, "tool_use", id=id, name="read_file", input={}), *told, stop(index)]


def failure(kind: str, words: str = "Sorry") -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": words}}


PING = {"type": "ping"}
TALK = [*said(0, "Grüße, ", "你好 🎈", "\u2028\x85\x0b nicht\r\nzwei Zeilen"), *ended("end_turn")]
THOUGHTS = [
    start(0, "thinking", thinking="", signature=""),
    piece(0, "thinking_delta", thinking="Let me "),
    piece(0, "thinking_delta", thinking="see."),
    piece(0, "signature_delta", signature="U0lH"),
    stop(0),
    start(1, "redacted_thinking", data="SElEREVO"),
    stop(1),
]
INTERLEAVED = [
    start(0, "tool_use", id="a", name="read_file", input={}),
    start(1, "tool_use", id="b", name="read_file", input={}),
    piece(1, "input_json_delta", partial_json='{"path":'),
    piece(0, "input_json_delta", partial_json='{"path":"ä'),
    piece(1, "input_json_delta", partial_json='"y"}'),
    piece(0, "input_json_delta", partial_json='"}'),
    stop(1),
    stop(0),
]

STREAMS: dict[str, bytes] = {
    "text": sse(began(), *TALK),
    "lines end with CRLF": sse(began(), *TALK, end="\r\n"),
    "text in the first event": sse(began(), *said(0, " on", first="Go"), *ended("end_turn")),
    "keep-alives": b": hello\n\n" + sse(PING, began(), PING) + b":\n\n" + sse(*said(0, "x"), PING, *ended("end_turn")),
    "empty deltas": sse(began(), *said(0, "", "a", "", "b", ""), *called(1, "a", "", "{}", ""), *ended("tool_use")),
    "nothing said": sse(began(), *ended("end_turn")),
    "parallel calls": sse(
        began(), *said(0, "I look."), *called(1, "a", '{"pa', 'th":"x"}'), *called(2, "b"), *ended("tool_use")
    ),
    "interleaved calls": sse(began(), *INTERLEAVED, *ended("tool_use")),
    "a whole call": sse(began(), start(0, "tool_use", id="a", name="f", input={"n": 1}), stop(0), *ended("tool_use")),
    "reasoning": sse(began(), *THOUGHTS, *said(2, "Yes."), *called(3, "a", '{"n": 1}'), *ended("tool_use")),
    "no room left": sse(began(), *said(0, "I"), *called(1, "a", '{"path": "x", "more'), *ended("max_tokens")),
    "refused": sse(began(), *said(0, "I"), *ended("refusal")),
    "a stop sequence": sse(began(), *said(0, "I"), *ended("stop_sequence")),
    "the cache": sse(
        began(cache_creation_input_tokens=100, cache_read_input_tokens=0),
        *said(0, "x"),
        *ended("end_turn", input_tokens=12, cache_read_input_tokens=300, output_tokens_details={"thinking_tokens": 3}),
    ),
    "events of tomorrow": sse(
        began(), start(0, "text", text=""), piece(0, "sung_delta", song="la"), piece(0, "text_delta", text="x"), stop(0)
    )
    + sse(*ended("end_turn")),
    "overload at once": sse(began(), failure("overloaded_error", "Overloaded")),
    "overload in the middle": sse(began(), *said(0, "Half a"), failure("overloaded_error", "Overloaded")),
    "an error in the middle": sse(began(), *said(0, "Half a"), failure("api_error")),
    "a refusal in the stream": sse(began(), failure("invalid_request_error")),
    "a key refused in the stream": sse(began(), failure("authentication_error")),
}

FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "calls",
    "max_tokens": "length",
    "refusal": "refused",
}

# An error told in the stream has the status 200, so that the SDK knows it by its words alone.
KINDS = {
    "overloaded_error": (errors.ModelBusy, errors.ModelCut),
    "api_error": (errors.ModelServerError, errors.ModelCut),
    "invalid_request_error": (errors.RequestRefused, errors.RequestRefused),
    "authentication_error": (errors.KeyRefused, errors.KeyRefused),
}
ASK = base.Request(messages=[message("user", "hi")])


Heard = tuple[base.Reply, errors.ModelError | None]
HeardBySDK = tuple[sdk.types.Message | None, Exception | None]


@asynccontextmanager
async def asking(url: str) -> AsyncIterator[tuple[adapter.AnthropicModel, sdk.AsyncAnthropic]]:
    model = adapter.AnthropicModel("claude", base_url=url, window=1000, key=KEY)
    async with sdk.AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0) as client:
        try:
            yield model, client
        finally:
            await model.close()


async def ours(model: base.Model, request: base.Request = ASK) -> Heard:
    got = reply_builder.ReplyBuilder(model.name)
    failed = None
    try:
        async for delta in model.stream(request):
            got.add(delta)
    except errors.ModelError as error:
        failed = error
    return got.reply(), failed


async def theirs(client: sdk.AsyncAnthropic) -> HeardBySDK:
    asked: Any = {"model": "claude", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    snapshot: sdk.types.Message | None = None
    async with client.messages.stream(**asked) as stream:
        try:
            async for _ in stream:
                snapshot = stream.current_message_snapshot
        except Exception as error:
            return snapshot, error
    return snapshot, None


def both(*answers: replay_server.Answer) -> list[tuple[Heard, HeardBySDK]]:
    """What we hear and what the SDK hears, for each answer."""

    async def run() -> list[tuple[Heard, HeardBySDK]]:
        twice = [answer for answer in answers for _ in range(2)]
        async with replay_server.Server(*twice) as one, asking(one.url) as (model, client):
            return [(await ours(model), await theirs(client)) for _ in answers]

    return asyncio.run(run())


def told(reply: base.Reply) -> list[tuple[Any, ...]]:
    """A reply in a form that both have in common."""
    common: list[tuple[Any, ...]] = []
    for part in reply.parts:
        match part:
            case content_parts.Text(text):
                common.append(("text", text))
            case content_parts.Reasoning(text, signature, "", "anthropic"):
                common.append(("thinking", text, signature))
            case content_parts.Reasoning("", "", hidden, "anthropic"):
                common.append(("redacted", hidden))
    return common + [("call", one.id, one.name, _object(one.arguments)) for one in reply.calls]


def _object(arguments: str | dict[str, Any]) -> Any:
    assert isinstance(arguments, str)
    return jiter.from_json(arguments.encode(), partial_mode=True)


def told_by_sdk(reply: sdk.types.Message) -> list[tuple[Any, ...]]:
    common: list[tuple[Any, ...]] = []
    for block in reply.content:
        match block:
            case sdk.types.TextBlock(text=text):
                common.append(("text", text))
            case sdk.types.ThinkingBlock(thinking=text, signature=signature):
                common.append(("thinking", text, signature))
            case sdk.types.RedactedThinkingBlock(data=data):
                common.append(("redacted", data))
            case sdk.types.ToolUseBlock(id=id, name=name, input=input):
                common.append(("call", id, name, input))
    return common


def used(usage: sdk.types.Usage) -> types.Usage:
    read, write = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    details = usage.output_tokens_details
    thought = details.thinking_tokens if details else 0
    return types.Usage(usage.input_tokens + read + write, usage.output_tokens, read, write, thought)


def assert_same(mine: Heard, sdks: Any) -> None:
    (reply, error), (snapshot, problem) = mine, sdks
    assert (error is None) == (problem is None)
    if problem is None:
        assert told(reply) == told_by_sdk(snapshot)
        assert reply.usage == used(snapshot.usage)
        assert reply.finish == FINISH[snapshot.stop_reason]
    else:
        before, after = KINDS[problem.body["error"]["type"]]
        assert type(error) is (after if snapshot.content else before)
        assert told(reply) == told_by_sdk(snapshot)


@pytest.mark.parametrize("name", STREAMS)
def test_the_same_stream_is_the_same_reply(name: str) -> None:
    ((mine, sdks),) = both(replay_server.Answer([STREAMS[name]]))
    assert_same(mine, sdks)


@pytest.mark.parametrize("name", ["text", "lines end with CRLF", "interleaved calls", "overload in the middle"])
def test_the_same_stream_byte_by_byte_is_the_same_reply(name: str) -> None:
    data = STREAMS[name]
    ((mine, sdks),) = both(replay_server.Answer([data[at : at + 1] for at in range(len(data))]))
    assert_same(mine, sdks)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
async def test_a_stream_may_be_split_anywhere(end: str) -> None:
    short = {"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 1, "output_tokens": 1}}}
    call = start(1, "tool_use", id="a", name="é", input={})
    data = sse(short, start(0, "text", text="ü你🎈"), call, *ended("tool_use"), end=end)
    splits = [replay_server.Answer([data[:at], data[at:]]) for at in range(1, len(data))]
    whole = replay_server.Answer([data])
    async with replay_server.Server(whole, whole, *splits) as one, asking(one.url) as (model, client):
        expected = await ours(model)
        assert_same(expected, await theirs(client))
        for _ in splits:
            assert await ours(model) == expected


@pytest.mark.parametrize("name", ["text", "parallel calls", "reasoning"])
@pytest.mark.parametrize("abrupt", [True, False])
def test_a_stream_cut_anywhere_keeps_what_the_sdk_has_read(name: str, abrupt: bool) -> None:
    data = STREAMS[name].partition(b"event: message_delta")[0]
    whole = [at + 2 for at in range(len(data)) if data[at : at + 2] == b"\n\n"]
    cuts = [*whole, whole[-1] - 5, whole[-2] + 9]
    for (reply, error), (snapshot, _) in both(*(replay_server.Answer([data[:at]], cut=abrupt) for at in cuts)):
        assert type(error) is errors.ModelCut
        heard = told_by_sdk(snapshot) if snapshot else []
        assert [one for one in told(reply) if one[0] == "text"] == [one for one in heard if one[0] == "text" and one[1]]
        assert (reply.finish, reply.calls) == ("cut", ())


def test_the_default_address_and_version_are_those_of_the_sdk() -> None:
    assert str(sdk.Anthropic(api_key=KEY).base_url).rstrip("/") == adapter.BASE_URL
    assert sdk.Anthropic(api_key=KEY).default_headers["anthropic-version"] == adapter.VERSION
