"""A model behind a server that speaks Chat Completions: the call as the server sees it, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest

from holdfast import errors, types
from holdfast.model import base, reply_builder, retry
from holdfast.model.openai import adapter
from tests.support import replay_server

KEY = "sk-a-key-of-mine"
ASK = base.Request(messages=[types.Message(1, "u", "s", "user", 0.0, '{"content":"hi"}')])


def chunk(finish: str | None = None, /, **delta: Any) -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}
HELLO = replay_server.events(chunk(content="Hello"))
WHOLE = replay_server.Answer([replay_server.events(chunk(content="Hello"), chunk("stop"), USAGE, "[DONE]")])
Heard = tuple[base.Reply, errors.ModelError | None, Sequence[replay_server.Asked]]


async def heard(model: base.Model, request: base.Request = ASK) -> tuple[base.Reply, errors.ModelError | None]:
    got = reply_builder.ReplyBuilder(model.name)
    failed = None
    try:
        async for delta in model.stream(request):
            got.add(delta)
    except errors.ModelError as error:
        failed = error
    return got.reply(), failed


def asked(
    *answers: replay_server.Answer, path: str = "/v1", request: base.Request = ASK, times: int = 1, **more: Any
) -> Heard:
    async def run() -> Heard:
        async with replay_server.Server(*answers) as one:
            model = adapter.OpenAIModel("m", base_url=one.url + path, window=1000, **{"key": KEY, **more})
            for _ in range(times):
                reply, error = await heard(model, request)
            await model.close()
            return reply, error, one.asked

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("/v1", "/v1/chat/completions"),
        ("/v1/", "/v1/chat/completions"),
        ("", "/chat/completions"),
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/openai?api-version=1", "/openai/chat/completions?api-version=1"),
    ],
)
def test_call_goes_to_the_completions_of_the_base_url(path: str, sent: str) -> None:
    reply, error, (request,) = asked(WHOLE, path=path)
    assert (reply.text, reply.finish, reply.usage, error) == ("Hello", "stop", types.Usage(5, 2), None)
    assert (request.method, request.path) == ("POST", sent)


def test_key_is_sent_where_there_is_one_and_headers_can_be_added() -> None:
    _, _, (request,) = asked(WHOLE, headers={"x-team": "blue"}, extra={"seed": 7})
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["x-team"] == "blue"
    assert request.json["seed"] == 7
    _, _, (request,) = asked(WHOLE, key=None)
    assert "authorization" not in request.headers


def refuses(field: str) -> replay_server.Answer:
    return replay_server.refusal(400, {"error": {"message": f"Unknown field: {field}"}})


def test_server_without_stream_options_is_asked_without_them_for_good() -> None:
    reply, error, requests = asked(refuses("stream_options"), WHOLE, times=2)
    assert (reply.text, error) == ("Hello", None)
    assert ["stream_options" in request.json for request in requests] == [True, False, False]


def test_server_that_takes_no_temperature_is_asked_without_it() -> None:
    request = base.Request(messages=ASK.messages, temperature=0.0)
    reply, error, requests = asked(refuses("stream_options"), refuses("'temperature'"), WHOLE, request=request)
    assert (reply.text, error) == ("Hello", None)
    assert ["temperature" in one.json for one in requests] == [True, True, False]


def test_server_that_refuses_all_the_same_is_asked_no_more() -> None:
    _, error, requests = asked(refuses("stream_options"))
    assert isinstance(error, errors.RequestRefused)
    assert len(requests) == 2


CUTS: list[tuple[str, replay_server.Answer, type[errors.ModelError], str]] = [
    ("cut", replay_server.Answer([HELLO], cut=True), errors.ModelCut, "Hello"),
    ("ended without a reason", replay_server.Answer([HELLO]), errors.ModelCut, "Hello"),
    ("cut before anything", replay_server.Answer([b": hi\n\n"], cut=True), errors.ModelUnreachable, ""),
    (
        "an error in the midst",
        replay_server.Answer([HELLO, replay_server.events({"error": "no"})]),
        errors.ModelCut,
        "Hello",
    ),
    ("no JSON", replay_server.Answer([HELLO, b"data: {oops\n\n"]), errors.ModelCut, "Hello"),
    ("no JSON at all", replay_server.Answer([b"data: {oops\n\n"]), errors.ModelServerError, ""),
    ("an empty stream", replay_server.Answer([]), errors.ModelServerError, ""),
]


@pytest.mark.parametrize(("answer", "kind", "said"), [case[1:] for case in CUTS], ids=[case[0] for case in CUTS])
def test_broken_reply_keeps_what_was_said(
    answer: replay_server.Answer, kind: type[errors.ModelError], said: str
) -> None:
    reply, error, _ = asked(answer)
    assert type(error) is kind
    assert (reply.text, reply.finish) == (said, "cut")


def test_server_that_hangs_up_after_its_reason_has_answered() -> None:
    reply, error, _ = asked(replay_server.Answer([HELLO, replay_server.events(chunk("stop"))], cut=True))
    assert (reply.text, reply.finish, error) == ("Hello", "stop", None)


def test_mark_of_the_end_ends_it_though_the_server_keeps_the_line() -> None:
    reply, error, _ = asked(replay_server.Answer(WHOLE.chunks, hang=True))
    assert (reply.text, reply.finish, error) == ("Hello", "stop", None)


def test_busy_malformed_and_failing_server_is_retried() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def run() -> base.Reply:
        busy = replay_server.refusal(429, {"error": {"message": "slow down"}}, retry_after="7")
        failed = replay_server.refusal(500, {"error": {"message": "Internal error"}})
        async with replay_server.Server(busy, replay_server.Answer([b"data: {oops\n\n"]), failed, WHOLE) as one:
            model = retry.RetryingModel(
                adapter.OpenAIModel("m", base_url=one.url, window=1), sleep=sleep, random_number=lambda: 0.5
            )
            reply, error = await heard(model)
            await model.close()
            assert error is None
            return reply

    assert asyncio.run(run()).text == "Hello"
    assert waits == [7.0, 1.0, 2.0]


def test_parallel_calls_arrive_whole_and_their_results_go_back() -> None:
    pieces = [{"index": at, "id": f"c{at}", "function": {"name": "f.g", "arguments": ""}} for at in range(3)]
    more = [{"index": at, "function": {"arguments": f'{{"n":{at}}}'}} for at in (2, 0, 1)]
    answer = replay_server.Answer(
        [replay_server.events(chunk(tool_calls=pieces), chunk(tool_calls=more), chunk("tool_calls"), "[DONE]")]
    )
    tool = types.ToolSpec("f.g", "", {"type": "object"})
    reply, _, (request,) = asked(answer, request=base.Request(messages=ASK.messages, tools=[tool]))
    assert reply.calls == tuple(types.ToolCall(f"c{at}", "f.g", f'{{"n":{at}}}') for at in range(3))
    assert request.json["tools"][0]["function"]["name"] != "f.g"


async def test_closing_the_stream_ends_the_call_at_the_provider() -> None:
    async with replay_server.Server(replay_server.Answer([HELLO], hang=True)) as one:
        model = adapter.OpenAIModel("m", base_url=one.url, window=1)
        async with aclosing(model.stream(ASK)) as deltas:
            assert await anext(deltas) == base.ContentDelta("Hello")
        async with asyncio.timeout(60):
            await one.left.wait()
        await model.close()


NAMES = [
    ("https://api.openai.com/v1", "openai/m"),
    ("https://openrouter.ai/api/v1", "openrouter/m"),
    ("http://localhost:11434/v1", "ollama/m"),
    ("http://127.0.0.1:8080/v1", "llama.cpp/m"),
    ("http://[::1]:8000/v1", "vllm/m"),
    ("http://127.0.0.1:9999/v1", "127.0.0.1/m"),
    ("https://models.example.org:8080/v1", "models.example.org/m"),
    ("", "unknown/m"),
]


@pytest.mark.parametrize(("base_url", "name"), NAMES)
def test_model_is_named_by_who_is_behind_the_address(base_url: str, name: str) -> None:
    assert adapter.OpenAIModel("m", base_url=base_url, window=1).name == name
    assert adapter.OpenAIModel("m", base_url=base_url, window=1, name="mine/m").name == "mine/m"


@pytest.mark.parametrize(
    ("base_url", "field", "length"),
    [
        ("https://api.openai.com/v1", "max_completion_tokens", 40),
        ("https://x.openai.azure.com/openai/v1", "max_completion_tokens", 40),
        ("https://api.mistral.ai/v1", "max_tokens", 9),
        ("http://localhost:11434/v1", "max_tokens", 40),
    ],
)
def test_each_host_is_asked_in_its_dialect(base_url: str, field: str, length: int) -> None:
    dialect = adapter.choose_dialect(base_url, "p")
    assert (dialect.max_tokens, dialect.id_length, dialect.provider) == (field, length, "p")


def test_advice_names_the_variable_the_server_or_the_model() -> None:
    assert adapter.build_advice("a/b", "b", "https://api.openai.com/v1").key == "Set OPENAI_API_KEY to a valid key."
    assert "ollama serve" in adapter.build_advice("a/b", "b", "http://localhost:11434/v1").reach
    assert "ollama pull b" in adapter.build_advice("a/b", "b", "http://localhost:11434/v1").missing
    assert "lms server start" in adapter.build_advice("a/b", "b", "http://127.0.0.1:1234/v1").reach
