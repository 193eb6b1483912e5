"""A gateway with an HTTP platform or webhooks, and a client of it in the same process, which signs its deliveries."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx2

from holdfast import AsyncSessionDB, types
from holdfast.gateway import gateway
from holdfast.gateway import platform as gateway_platform
from holdfast.gateway import settings as gateway_settings
from holdfast.gateway.platforms.http import http_platform, signatures, webhooks
from holdfast.model import base as models
from holdfast.tools import base as tools_port
from tests.support import gateways, memory_platform

TOKENS = {"token-of-ann-0123456789": "ann", "token-of-bob-0123456789": "bob"}
ANN, BOB = ({"authorization": f"Bearer {token}"} for token in TOKENS)
PATH = "/v1/chat/completions"
SECRET = "a-secret-of-some-length"
BODY = b'{"text": "It broke."}'


@dataclasses.dataclass
class Web:
    """A gateway, its platform, and a client."""

    gateway: gateway.Gateway
    platform: http_platform.HttpPlatform
    client: httpx2.AsyncClient

    async def ask(self, *texts: str, headers: Mapping[str, str] = ANN, **given: Any) -> httpx2.Response:
        """Send messages, which are alternately the user's and the assistant's, and return the response."""
        roles = ("user", "assistant")
        messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]
        return await self.post({"messages": messages, **given}, headers)

    async def post(self, body: dict[str, Any], headers: Mapping[str, str] = ANN) -> httpx2.Response:
        return await self.client.post(PATH, json={"model": "holdfast", **body}, headers=dict(headers))


def client_of(
    platform: http_platform.HttpPlatform, host: str = "127.0.0.1", peer: str = "127.0.0.1"
) -> httpx2.AsyncClient:
    """Return a client with the address `peer`."""
    transport = httpx2.ASGITransport(platform.app, client=(peer, 123))
    return httpx2.AsyncClient(transport=transport, base_url=f"http://{host}:8642")


@asynccontextmanager
async def open_web(
    db: AsyncSessionDB,
    model: models.Model,
    *,
    tokens: Mapping[str, str] = TOKENS,
    wanted: gateway_settings.Http | None = None,
    poll: float = 60.0,
    **given: Any,
) -> AsyncIterator[Web]:
    platform = http_platform.HttpPlatform(db, wanted, tokens=tokens, poll_seconds=poll)
    chats = [memory_platform.MemoryPlatform(), platform]
    async with (
        gateways.open_gateway(db, model, platforms=chats, poll=poll, **given) as (opened, _),
        client_of(platform) as client,
    ):
        platform.metrics = opened.metrics
        while not platform.is_ready:
            await asyncio.sleep(0)
        yield Web(opened, platform, client)


def hook(secret: str = SECRET, **given: Any) -> webhooks.HookConfig:
    return webhooks.HookConfig(secret, gateway_settings.Hook("SECRET", **given))


class Hooks(NamedTuple):
    """A gateway with webhooks, and a client of it."""

    client: httpx2.AsyncClient
    chat: memory_platform.MemoryPlatform
    platform: http_platform.HttpPlatform
    gateway: gateway.Gateway

    async def post(
        self, body: bytes = BODY, name: str = "build", id: str = "", headers: Mapping[str, str] = {}
    ) -> httpx2.Response:
        signed = signatures.sign(SECRET, id or hashlib.sha256(body).hexdigest(), body, time.time())
        sent = {"content-type": "application/json", **signed, **headers}
        return await self.client.post(f"/hooks/{name}", content=body, headers=sent)

    async def fetch(self, number: int) -> httpx2.Response:
        signed = signatures.sign(SECRET, "fetch", str(number).encode(), time.time())
        return await self.client.get(f"/hooks/build/{number}", headers=signed)


@asynccontextmanager
async def open_hooks(
    db: AsyncSessionDB,
    model: models.Model,
    checks: Sequence[gateway_platform.AdmissionCheck] = (),
    tools: Sequence[tools_port.Tool] = (),
    **hooks: webhooks.HookConfig,
) -> AsyncIterator[Hooks]:
    receiver = webhooks.Webhooks(db, hooks)
    platform = http_platform.HttpPlatform(db, tokens=TOKENS, hooks=receiver)
    platforms = [memory_platform.MemoryPlatform(), receiver, platform]
    async with (
        gateways.open_gateway(db, model, platforms=platforms, checks=checks, tools=tools) as (opened, chat),
        client_of(platform) as client,
    ):
        while receiver.handler is None:
            await asyncio.sleep(0)
        yield Hooks(client, chat, platform, opened)


async def refuse_bob(incoming: gateway_platform.Incoming, _: str) -> gateway_platform.AdmissionResult:
    return gateway_platform.AdmissionResult(incoming.sender != "bob")


def text_of(answered: httpx2.Response) -> str:
    assert answered.status_code == 200, answered.text
    return str(answered.json()["choices"][0]["message"]["content"])


def error_of(answered: httpx2.Response) -> dict[str, Any]:
    """Return the error object of a response, and check that it is complete."""
    found: dict[str, Any] = answered.json()["error"]
    assert set(found) == {"message", "type", "param", "code"}
    assert found["message"]
    return found


def chunks(text: str) -> list[dict[str, Any]]:
    """Return the chunks of a stream that ended regularly."""
    lines = [line for line in text.split("\n\n") if line and not line.startswith(":")]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def streamed_text(answered: httpx2.Response) -> str:
    found = chunks(answered.text)
    return "".join(each["choices"][0]["delta"].get("content") or "" for each in found if each.get("choices"))


def message_words(message: types.Message) -> str:
    """Return the text of a message without the notes of the gateway."""
    content = message.content
    return content if isinstance(content, str) else "".join(each["text"] for each in content if each["type"] == "text")


def echo(request: models.Request) -> str:
    """A reply that repeats the last message."""
    return f"Re: {message_words(request.messages[-1])}"
