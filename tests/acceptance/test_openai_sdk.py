"""The HTTP gateway with the OpenAI SDK, and with schemathesis on its OpenAPI description."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import hypothesis
import openai
import pytest
import schemathesis
from schemathesis import checks

from holdfast import AsyncSessionDB
from holdfast.gateway import settings
from holdfast.gateway.platforms.http import http_platform, webhooks
from holdfast.model import ScriptedModel
from holdfast.model import base as models
from tests.support import gateways, http_gateway, memory_platform


def count(request: models.Request) -> str:
    """Answer with the number of user messages and the last one."""
    spoken = [http_gateway.message_words(each) for each in request.messages if each.role == "user"]
    return f"{len(spoken)}: {spoken[-1]}"


@asynccontextmanager
async def served(
    db: AsyncSessionDB, model: models.Model, tokens: dict[str, str] = http_gateway.TOKENS
) -> AsyncIterator[str]:
    hooks = webhooks.Webhooks(db, {"build": webhooks.HookConfig("a-secret-of-some-length", settings.Hook("SECRET"))})
    platform = http_platform.HttpPlatform(db, settings.Http(port=0), tokens=tokens, hooks=hooks)
    async with (
        platform.serve() as address,
        gateways.open_gateway(db, model, platforms=[memory_platform.MemoryPlatform(), platform, hooks]),
    ):
        while not platform.is_ready:
            await asyncio.sleep(0)
        yield address


def client_of(address: str, token: str = "token-of-ann-0123456789") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=token, max_retries=0)


async def test_openai_client_has_a_conversation_of_several_turns(db: AsyncSessionDB) -> None:
    async with served(db, ScriptedModel([count] * 9)) as address, client_of(address) as client:
        assert [each.id async for each in client.models.list()] == ["holdfast"]
        one: list[Any] = [{"role": "user", "content": "one"}]
        two: list[Any] = [{"role": "user", "content": "two"}]
        raw = await client.chat.completions.with_raw_response.create(model="holdfast", messages=one)
        first = raw.parse()
        assert (first.choices[0].message.content, first.choices[0].finish_reason) == ("1: one", "stop")
        assert first.usage is not None
        name = {"X-Conversation-Id": raw.headers["x-conversation-id"]}
        second = await client.chat.completions.create(model="holdfast", messages=two, extra_headers=name)
        assert second.choices[0].message.content == "2: two"
        assert await streamed(client, "three", name) == "3: three"
        history = [*one, {"role": "assistant", "content": "1: one"}, *two]
        fresh = await client.chat.completions.create(model="holdfast", messages=history)
        assert fresh.choices[0].message.content == "2: two"
        for _ in range(2):
            same = await client.chat.completions.create(model="holdfast", messages=one, user="seven")
            assert same.choices[0].message.content == "1: one"


async def streamed(client: openai.AsyncOpenAI, text: str, headers: dict[str, str]) -> str:
    stream = await client.chat.completions.create(
        model="holdfast",
        messages=[{"role": "user", "content": text}],
        stream=True,
        stream_options={"include_usage": True},
        extra_headers=headers,
    )
    found = [chunk async for chunk in stream]
    assert found[0].choices[0].delta.role == "assistant"
    assert [each.choices[0].finish_reason for each in found if each.choices][-1] == "stop"
    assert found[-1].usage is not None
    assert found[-1].choices == []
    return "".join(each.choices[0].delta.content or "" for each in found if each.choices)


async def test_openai_client_raises_the_matching_error(db: AsyncSessionDB) -> None:
    asked: dict[str, Any] = {"model": "holdfast", "messages": [{"role": "user", "content": "Hi"}]}
    async with served(db, ScriptedModel([])) as address, client_of(address) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(**asked, n=2)
        assert refused.value.param == "n"
        wrong = {"X-Conversation-Id": "20260101_000000_abcdef"}
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(**asked, extra_headers=wrong)
        async with client_of(address, "token-that-is-not-known") as unknown:
            with pytest.raises(openai.AuthenticationError):
                await unknown.models.list()
        once = {"Idempotency-Key": "k"}
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(**asked, extra_headers=once)
        with pytest.raises(openai.UnprocessableEntityError):
            await client.chat.completions.create(**asked, max_tokens=5, extra_headers=once)
        async with await client.chat.completions.create(**asked, stream=True) as stream:
            with pytest.raises(openai.APIError, match="failed"):
                [each async for each in stream]


async def test_http_api_conforms_to_its_openapi_description(db: AsyncSessionDB) -> None:
    async with served(db, ScriptedModel(iter(lambda: "Hello!", None)), tokens={}) as address:
        await asyncio.to_thread(check_operations, address)


def check_operations(address: str) -> None:
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    names = [f"{each}_conformance" for each in ("status_code", "content_type", "response_schema")]
    wanted = [checks.not_a_server_error, *checks.CHECKS.get_by_names(names)]
    operations = [each.ok() for each in schema.get_all_operations()]
    assert {each.path for each in operations} >= {"/health", "/v1/chat/completions", "/hooks/{name}"}
    for operation in operations:
        check_operation(operation, schemathesis.GenerationMode.POSITIVE, wanted)
        if operation.body:
            check_operation(operation, schemathesis.GenerationMode.NEGATIVE, wanted)


def check_operation(operation: Any, mode: Any, wanted: list[Any]) -> None:
    @hypothesis.settings(
        max_examples=15, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        case.call_and_validate(checks=wanted)

    check()
