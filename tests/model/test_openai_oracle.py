"""OpenAI's SDK as the oracle: the same request for the same call, and the same reply for the same stream."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import hypothesis
import msgspec
import openai as sdk
import pydantic
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import completion_create_params

from holdfast import types
from holdfast.model import base, request_common
from holdfast.model.openai import adapter, request
from tests.support.provider_calls import TOOL, any_message, collect, expand
from tests.support.replay_server import Answer, Server, events

KEY = "sk-a-key-of-mine"
HI = [{"role": "user", "content": "hi"}]


class Outcome(NamedTuple):
    """The result of a stream, in terms that both sides have."""

    text: str
    calls: tuple[tuple[str, str, str], ...]
    finish: str | None
    usage: tuple[int, int, int, int] | None
    failed: bool


@asynccontextmanager
async def clients(answer: Answer) -> AsyncIterator[tuple[Server, adapter.OpenAIModel, sdk.AsyncOpenAI]]:
    """Serve an answer to our adapter and to the SDK."""
    async with Server(answer) as server, sdk.AsyncOpenAI(api_key=KEY, base_url=server.url, max_retries=0) as client:
        model = adapter.OpenAIModel("m", base_url=server.url, key=KEY, window=1000)
        yield server, model, client
        await model.close()


async def read_by_sdk(client: sdk.AsyncOpenAI) -> Outcome:
    state, failed, seen = ChatCompletionStreamState(), False, False
    try:
        stream = await client.chat.completions.create(model="m", messages=HI, stream=True)  # type: ignore[arg-type, call-overload]
        async for one in stream:
            seen = True
            state.handle_chunk(one)
    except Exception:
        # Its own errors, those of its HTTP library and those of its JSON decoder.
        failed = True
    if not seen or not state.current_completion_snapshot.choices:
        return Outcome("", (), None, None, failed)
    whole = state.current_completion_snapshot
    said, usage = whole.choices[0].message, None
    if whole.usage is not None:
        prompt, completion = whole.usage.prompt_tokens_details, whole.usage.completion_tokens_details
        cached, thought = prompt.cached_tokens if prompt else 0, completion.reasoning_tokens if completion else 0
        usage = (whole.usage.prompt_tokens, whole.usage.completion_tokens, cached or 0, thought or 0)
    calls = tuple((each.id, each.function.name, each.function.arguments) for each in said.tool_calls or ())
    return Outcome(said.content or said.refusal or "", calls, whole.choices[0].finish_reason, usage, failed)


FINISH = {"stop": "stop", "calls": "tool_calls", "length": "length", "refused": "content_filter", "cut": None}


async def read(model: adapter.OpenAIModel) -> Outcome:
    reply, _, error = await collect(model)
    usage = (reply.usage.input, reply.usage.output, reply.usage.cache_read, reply.usage.reasoning)
    calls = tuple((each.id, each.name, str(each.arguments)) for each in reply.calls)
    return Outcome(reply.text, calls, FINISH[reply.finish], usage if any(usage) else None, error is not None)


def chunk(finish: str | None = None, /, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def piece(index: int, id: str | None = None, name: str | None = None, arguments: str = "") -> dict[str, Any]:
    if id is None:
        return {"index": index, "function": {"arguments": arguments}}
    return {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


COUNTS = {"prompt_tokens": 20, "completion_tokens": 9, "total_tokens": 29}
DETAILS = {"prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 3}}
USAGE = {**chunk(), "choices": [], "usage": {**COUNTS, **DETAILS}}
TALK = [chunk(role="assistant", content=""), chunk(content="Grüße "), chunk(content="vom 🌊"), chunk(content="!")]
TALKED = [*TALK, chunk("stop"), USAGE, "[DONE]"]
CALLED = [
    chunk(role="assistant", content=None, tool_calls=[piece(0, "call_a", "read")]),
    chunk(tool_calls=[piece(1, "call_b", "write")]),
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
    "no space after the colon": events(*TALKED).replace(b"data: ", b"data:"),
    "data on two lines": events(*TALKED).replace(b', "choices"', b',\ndata: "choices"'),
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
    async with clients(Answer([data[at : at + size] for at in range(0, len(data), size)])) as (_, model, client):
        ours = await read(model)
        assert ours == await read_by_sdk(client)
    assert not ours.failed
    assert ours.text


async def test_same_call_is_the_same_request() -> None:
    async with clients(Answer([STREAMS["text"]])) as (server, model, client):
        await collect(model)
        options: Any = {"messages": HI, "stream_options": {"include_usage": True}}
        stream = await client.chat.completions.create(model="m", stream=True, **options)
        await stream.close()
    ours, theirs = server.asked
    assert ours.json == theirs.json
    assert (ours.method, ours.path) == (theirs.method, theirs.path)
    for name in ("authorization", "content-type"):
        assert ours.headers[name] == theirs.headers[name]


KNOWN = pydantic.TypeAdapter(completion_create_params.CompletionCreateParamsStreaming)


@hypothesis.given(hypothesis.strategies.lists(any_message("openai"), max_size=8))
def test_any_request_fits_the_types_of_the_sdk(messages: list[types.Message]) -> None:
    asked = base.Request(messages=messages, system="S", tools=[TOOL], temperature=1.0)
    built = request.build(asked, request.Dialect(provider="other"), model="m")
    body = msgspec.json.decode(request_common.encode(built))
    assert expand(KNOWN.validate_python(body)) == body
