"""Models behind the APIs of Anthropic and OpenAI: the HTTP call as a server sees it, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest

from holdfast import errors, types
from holdfast.model import base
from holdfast.model.anthropic import adapter as anthropic
from holdfast.model.openai import adapter as openai
from tests.support.provider_calls import ANTHROPIC, KEY, OPENAI, REQUEST, Api, collect
from tests.support.replay_server import Answer, Asked, Server, events, refusal


@pytest.fixture(params=[ANTHROPIC, OPENAI], ids=["anthropic", "openai"])
def api(request: pytest.FixtureRequest) -> Api:
    return request.param  # type: ignore[no-any-return]


async def ask(
    api: Api, *answers: Answer, request: base.Request = REQUEST, times: int = 1, **given: Any
) -> tuple[base.Reply, errors.ModelError | None, Sequence[Asked]]:
    """Ask a model behind a server that gives these answers."""
    async with Server(*answers) as server:
        model = api.create(server, **given)
        for _ in range(times):
            reply, _, error = await collect(model, request)
        await model.close()
        return reply, error, server.asked


@pytest.mark.parametrize(
    ("called", "path", "sent"),
    [
        (ANTHROPIC, "/v1/", "/v1/messages"),
        (OPENAI, "/v1/", "/v1/chat/completions"),
        (OPENAI, "/v1/chat/completions", "/v1/chat/completions"),
        (OPENAI, "/openai?api-version=1", "/openai/chat/completions?api-version=1"),
    ],
)
async def test_path_is_derived_from_the_base_url(called: Api, path: str, sent: str) -> None:
    reply, error, (request,) = await ask(called, called.whole, path=path)
    assert (reply.text, reply.finish, reply.usage, error) == ("Hello", "stop", types.Usage(5, 2), None)
    assert (request.method, request.path) == ("POST", sent)


async def test_key_headers_settings_and_price_are_used(api: Api) -> None:
    given = {"headers": {"x-team": "blue"}, "extra": {"seed": 7}, "price": base.Price(input=2, output=10)}
    reply, _, (request,) = await ask(api, api.whole, **given)
    sent = {name: request.headers[name] for name in ("authorization", "x-team", "content-type")}
    assert sent == {"authorization": f"Bearer {KEY}", "x-team": "blue", "content-type": "application/json"}
    assert (request.json["seed"], request.json["model"]) == (7, "m")
    assert reply.usage.cost == (5 * 2 + 2 * 10) / 1_000_000
    _, _, (request,) = await ask(api, api.whole, key=None)
    assert not {"x-api-key", "authorization"} & set(request.headers)


async def test_anthropic_gets_its_own_key_header_and_output_limit() -> None:
    _, _, (request,) = await ask(ANTHROPIC, ANTHROPIC.whole, max_output=33)
    assert (request.headers["x-api-key"], request.json["max_tokens"]) == (KEY, 33)
    assert anthropic.AnthropicModel("claude", window=7).name == "anthropic/claude"
    assert anthropic.AnthropicModel("claude", window=7, name="work/claude").name == "work/claude"


@pytest.mark.parametrize(
    ("ending", "options"), [([], {"cut": True}), ([], {}), (["end"], {"hang": True})], ids=["cut", "closed", "open"]
)
async def test_reply_is_complete_with_its_finish_reason(ending: list[str], options: dict[str, bool], api: Api) -> None:
    data = [*api.hello, *api.finish, *(api.end if ending else [])]
    reply, error, _ = await ask(api, Answer([events(*data)], **options))
    assert (reply.text, reply.finish, error) == ("Hello", "stop", None)


async def test_closing_the_stream_ends_the_call_at_the_provider(api: Api) -> None:
    async with Server(Answer([events(*api.hello)], hang=True)) as server:
        model = api.create(server)
        async with aclosing(model.stream(REQUEST)) as deltas:
            async for delta in deltas:
                if isinstance(delta, base.ContentDelta):
                    break
        assert await asyncio.wait_for(server.left.wait(), 60)
        await model.close()


async def test_refusal_shows_no_key(api: Api) -> None:
    body = {"type": "error", "error": {"type": "authentication_error", "message": f"invalid x-api-key {KEY}"}}
    _, error, _ = await ask(api, refusal(401, body), name="some/m")
    assert (type(error), error.status, error.model) == (errors.KeyRefused, 401, "some/m")
    assert "invalid" in str(error)
    assert KEY not in str(error)
    _, error, _ = await ask(api, Answer([events(*api.begin, body)]))
    assert KEY not in str(error)


def refuse_field(field: str) -> Answer:
    return refusal(400, {"error": {"message": f"Unknown field: {field}"}})


async def test_refused_fields_are_left_out_from_then_on() -> None:
    request = base.Request(messages=REQUEST.messages, temperature=0.0)
    answers = [refuse_field("stream_options"), refuse_field("'temperature'"), OPENAI.whole]
    reply, error, requests = await ask(OPENAI, *answers, request=request, times=2)
    assert (reply.text, error) == ("Hello", None)
    assert ["stream_options" in one.json for one in requests] == [True, False, False, False]
    assert ["temperature" in one.json for one in requests] == [True, True, False, False]
    _, error, requests = await ask(OPENAI, refuse_field("stream_options"))
    assert (type(error), len(requests)) == (errors.RequestRefused, 2)


@pytest.mark.parametrize(
    ("base_url", "name", "field", "length"),
    [
        ("https://api.openai.com/v1", "openai/m", "max_completion_tokens", 40),
        ("https://api.mistral.ai/v1", "mistral/m", "max_tokens", 9),
        ("", "unknown/m", "max_tokens", 40),
    ],
)
def test_name_and_dialect_depend_on_the_address(base_url: str, name: str, field: str, length: int) -> None:
    assert openai.OpenAIModel("m", base_url=base_url, window=1).name == name
    assert openai.OpenAIModel("m", base_url=base_url, window=1, name="mine/m").name == "mine/m"
    dialect = openai.choose_dialect(base_url, "p")
    assert (dialect.max_tokens, dialect.id_length, dialect.provider) == (field, length, "p")
