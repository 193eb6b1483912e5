"""The official SDK as an oracle: the same call is the same request, and the same stream is the same reply."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import openai as sdk
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState

from holdfast import errors, types
from holdfast.model import base, reply_builder
from holdfast.model.openai import adapter
from tests.support import replay_server

KEY = "sk-a-key-of-mine"
HI = [{"role": "user", "content": "hi"}]


class Outcome(NamedTuple):
    """What is left of a stream, in words both sides have."""

    text: str
    calls: tuple[tuple[str, str, str], ...]
    finish: str | None
    usage: tuple[int, int, int, int] | None
    failed: bool


def chunk(finish: str | None = None, /, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def piece(index: int, id: str | None = None, name: str | None = None, arguments: str = "") -> dict[str, Any]:
    if id is None:
        return {"index": index, "function": {"arguments": arguments}}
    return {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


USAGE = {
    **chunk(),
    "choices": [],
    "usage": {
        "prompt_tokens": 20,
        "completion_tokens": 9,
        "total_tokens": 29,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 3},
    },
}

# --- both sides ----------------------------------------------------------------------------------------


async def theirs(client: sdk.AsyncOpenAI) -> Outcome:
    state = ChatCompletionStreamState()
    failed, seen = False, False
    try:
        stream = await client.chat.completions.create(model="m", messages=HI, stream=True)  # type: ignore[arg-type, call-overload]
        async for one in stream:
            seen = True
            state.handle_chunk(one)
    except Exception:
        # Whatever it raises: its own errors, those of its HTTP library, those of its JSON.
        failed = True
    if not seen or not state.current_completion_snapshot.choices:
        return Outcome("", (), None, None, failed)
    whole = state.current_completion_snapshot
    said = whole.choices[0].message
    found = [(call.id, call.function.name, call.function.arguments) for call in said.tool_calls or ()]
    return Outcome(
        said.content or said.refusal or "", tuple(found), whole.choices[0].finish_reason, _usage(whole.usage), failed
    )


def _usage(usage: Any) -> tuple[int, int, int, int] | None:
    if usage is None:
        return None
    cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else 0
    thought = usage.completion_tokens_details.reasoning_tokens if usage.completion_tokens_details else 0
    return usage.prompt_tokens, usage.completion_tokens, cached, thought


FINISH = {"stop": "stop", "calls": "tool_calls", "length": "length", "refused": "content_filter", "cut": None}


async def ours(model: adapter.OpenAIModel) -> Outcome:
    got, failed = reply_builder.ReplyBuilder(model.name), False
    try:
        async for delta in model.stream(base.Request(messages=[message("user", "hi")])):
            got.add(delta)
    except errors.ModelError:
        failed = True
    reply = got.reply()
    usage = reply.usage
    counted = (usage.input, usage.output, usage.cache_read, usage.reasoning)
    found = tuple((call.id, call.name, str(call.arguments)) for call in reply.calls)
    return Outcome(reply.text, found, FINISH[reply.finish], counted if any(counted) else None, failed)


def both(*answers: replay_server.Answer) -> list[tuple[Outcome, Outcome]]:
    """What each side makes of each answer."""

    async def run() -> list[tuple[Outcome, Outcome]]:
        twice = [answer for answer in answers for _ in range(2)]
        async with (
            replay_server.Server(*twice) as one,
            sdk.AsyncOpenAI(api_key=KEY, base_url=one.url, max_retries=0) as client,
        ):
            model = adapter.OpenAIModel("m", base_url=one.url, key=KEY, window=1000)
            outcomes = [(await ours(model), await theirs(client)) for _ in answers]
            await model.close()
            return outcomes

    return asyncio.run(run())


# --- the same stream, the same reply -------------------------------------------------------------------

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
KEEP_ALIVE = b": keep-alive\n\n"

STREAMS: list[tuple[str, bytes]] = [
    ("talk", replay_server.events(*TALKED)),
    ("talk, CRLF", replay_server.events(*TALKED, end="\r\n")),
    ("parallel calls", replay_server.events(*CALLED)),
    ("talk and calls", replay_server.events(*TALK, *CALLED)),
    ("keep-alives", KEEP_ALIVE.join([b"", *(replay_server.events(one) for one in TALKED), b""])),
    ("keep-alives, all kinds", b":\n\n: PROCESSING\n\n:x\r\n\r\n" + replay_server.events(*TALKED)),
    (
        "empty deltas",
        replay_server.events(chunk(), *TALK, chunk(), chunk(content=""), chunk("stop"), chunk(), USAGE, "[DONE]"),
    ),
    ("empty choices", replay_server.events({**chunk(), "choices": []}, *TALKED)),
    ("no mark of the end", replay_server.events(*TALK, chunk("stop"), USAGE)),
    ("no usage", replay_server.events(*TALK, chunk("stop"), "[DONE]")),
    ("usage with the reason", replay_server.events(*TALK, {**chunk("stop"), "usage": USAGE["usage"]}, "[DONE]")),
    ("no space after the colon", replay_server.events(*TALKED).replace(b"data: ", b"data:")),
    ("data on two lines", replay_server.events(*TALKED).replace(b', "choices"', b',\ndata: "choices"')),
    ("escapes", replay_server.events(*(json.dumps(one) if isinstance(one, dict) else one for one in TALKED))),
    ("line separators in text", replay_server.events(chunk(content="a\u2028b\u0085c\x0bd"), chunk("stop"), "[DONE]")),
    ("length", replay_server.events(*TALK, chunk("length"), USAGE, "[DONE]")),
    ("a filter", replay_server.events(*TALK, chunk("content_filter"), "[DONE]")),
    ("much after the end", replay_server.events(*TALKED, chunk(content="nobody hears this"))),
    ("names and ids only", replay_server.events(chunk(tool_calls=[piece(0, "a", "f")]), chunk("tool_calls"), "[DONE]")),
    (
        "unknown fields",
        replay_server.events({**chunk(content="a", audio=None), "x": {"y": [1]}}, chunk("stop"), "[DONE]"),
    ),
]


@pytest.mark.parametrize("stream", [case[1] for case in STREAMS], ids=[case[0] for case in STREAMS])
def test_same_stream_is_the_same_reply(stream: bytes) -> None:
    whole = replay_server.Answer([stream])
    bytewise = replay_server.Answer([stream[at : at + 1] for at in range(len(stream))])
    outcomes = both(whole, bytewise)
    for mine, sdks in outcomes:
        assert mine == sdks
        assert not mine.failed
        assert mine.text or mine.calls
    assert outcomes[0] == outcomes[1]


def test_same_stream_is_the_same_reply_wherever_it_is_split() -> None:
    stream = replay_server.events(chunk(content="ü🌊"), chunk("stop"), "[DONE]")
    begin = stream.index("ü".encode()) - 12
    places = [*range(1, 12), *range(begin, begin + 40), *range(len(stream) - 20, len(stream))]
    outcomes = both(*(replay_server.Answer([stream[:at], stream[at:]]) for at in places))
    assert set(outcomes) == {(Outcome("ü🌊", (), "stop", None, False),) * 2}


BROKEN: list[tuple[str, Sequence[bytes], bool]] = [
    (
        "an error in the midst",
        [replay_server.events(*TALK, {"error": {"message": "Overloaded", "type": "server_error"}})],
        False,
    ),
    ("an error at once", [replay_server.events({"error": {"message": "no", "code": 500}})], False),
    (
        "an event called error",
        [replay_server.events(*TALK), b'event: error\ndata: {"error": {"message": "no"}}\n\n'],
        False,
    ),
    ("cut between events", [replay_server.events(*TALK)], True),
    ("cut within an event", [replay_server.events(*TALK), b'data: {"id": "c", "choi'], True),
    (
        "cut within a character",
        [replay_server.events(*TALK), replay_server.events(chunk(content="ü")).partition(b"\xbc")[0]],
        True,
    ),
    ("cut within a call", [replay_server.events(*CALLED[:4])], True),
    ("no JSON in the midst", [replay_server.events(*TALK, "{oops")], False),
    ("cut before anything", [b""], True),
]


@pytest.mark.parametrize(("chunks", "cut"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_same_broken_stream_keeps_the_same_text(chunks: Sequence[bytes], cut: bool) -> None:
    ((mine, sdks),) = both(replay_server.Answer(chunks, cut=cut))
    assert mine.failed
    assert sdks.failed
    assert (mine.text, mine.finish) == (sdks.text, sdks.finish)
    assert mine.calls == (), "half a call is no call"


def test_stream_that_just_ends_is_a_cut_here_though_not_there() -> None:
    ((mine, sdks),) = both(replay_server.Answer([replay_server.events(*TALK)]))
    assert (mine.failed, sdks.failed) == (True, False)
    assert mine.text == sdks.text == "Grüße vom 🌊!"


# --- the same call, the same request -------------------------------------------------------------------


def message(role: types.Role, content: types.Content = "", **more: Any) -> types.Message:
    return types.Message(1, "u", "s", role, 0.0, msgspec.json.encode({"content": content, **more}).decode())


SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOL = {"type": "function", "function": {"name": "read", "description": "Reads.", "parameters": SCHEMA}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"path": "ä.txt"}'}}
SECOND = {"id": "call_2", "type": "function", "function": {"name": "read", "arguments": "{}"}}

REQUESTS: list[tuple[str, base.Request, dict[str, Any]]] = [
    ("a word", base.Request(messages=[message("user", "hi")]), {"messages": HI}),
    (
        "a system prompt, limits",
        base.Request(messages=[message("user", "Grüße 🌊\n\"'\\")], system="Be brief.", max_output=64, temperature=0.5),
        {
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße 🌊\n\"'\\"}],
            "max_tokens": 64,
            "temperature": 0.5,
        },
    ),
    (
        "parallel calls and their results",
        base.Request(
            messages=[
                message("user", "read"),
                message(
                    "assistant",
                    "Let me see.",
                    tool_calls=[
                        {"id": "call_1", "name": "read", "arguments": '{"path": "ä.txt"}'},
                        {"id": "call_2", "name": "read", "arguments": {}},
                    ],
                ),
                message("tool", "one", tool_call_id="call_1"),
                message("tool", "two", tool_call_id="call_2"),
            ],
            tools=[types.ToolSpec("read", "Reads.", SCHEMA)],
        ),
        {
            "messages": [
                {"role": "user", "content": "read"},
                {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL, SECOND]},
                {"role": "tool", "tool_call_id": "call_1", "content": "one"},
                {"role": "tool", "tool_call_id": "call_2", "content": "two"},
            ],
            "tools": [TOOL],
        },
    ),
    (
        "a picture",
        base.Request(
            messages=[message("user", [{"type": "text", "text": "see"}, {"type": "image", "data": "aGk="}])],
        ),
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "see"},
                        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
                    ],
                }
            ]
        },
    ),
]


@pytest.mark.parametrize(("request_", "given"), [case[1:] for case in REQUESTS], ids=[case[0] for case in REQUESTS])
def test_same_call_is_the_same_request(request_: base.Request, given: dict[str, Any]) -> None:
    async def run() -> list[replay_server.Asked]:
        async with (
            replay_server.Server(replay_server.Answer([replay_server.events(*TALKED)])) as one,
            sdk.AsyncOpenAI(api_key=KEY, base_url=one.url + "/v1", max_retries=0) as client,
        ):
            stream: Any = await client.chat.completions.create(  # type: ignore[call-overload]
                model="m", stream=True, stream_options={"include_usage": True}, **given
            )
            async for _ in stream:
                pass
            model = adapter.OpenAIModel("m", base_url=one.url + "/v1", key=KEY, window=1000)
            async for _ in model.stream(request_):
                pass
            await model.close()
            return one.asked

    sdks, mine = asyncio.run(run())
    assert mine.json == sdks.json
    assert (mine.method, mine.path) == (sdks.method, sdks.path)
    for name in ("authorization", "content-type"):
        assert mine.headers[name] == sdks.headers[name]
