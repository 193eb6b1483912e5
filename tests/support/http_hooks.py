"""A gateway with webhooks, and a client of it that signs its deliveries."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx2

from holdfast import AsyncSessionDB
from holdfast.gateway import gateway, settings
from holdfast.gateway import platform as gateway_platform
from holdfast.gateway.platforms.http import http_platform, signatures, webhooks
from holdfast.model import base as models
from holdfast.tools import base as tools_port
from tests.support import gateways
from tests.support.http_gateway import TOKENS, client_of
from tests.support.memory_platform import MemoryPlatform

SECRET = "a-secret-of-some-length"
BODY = b'{"text": "It broke."}'


def hook(secret: str = SECRET, **given: Any) -> webhooks.HookConfig:
    return webhooks.HookConfig(secret, settings.Hook("SECRET", **given))


class Hooks(NamedTuple):
    """A gateway with webhooks, and a client of it."""

    client: httpx2.AsyncClient
    chat: MemoryPlatform
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
    platforms = [MemoryPlatform(), receiver, platform]
    async with (
        gateways.open_gateway(db, model, platforms=platforms, checks=checks, tools=tools) as (opened, chat),
        client_of(platform) as client,
    ):
        while receiver.handler is None:
            await asyncio.sleep(0)
        yield Hooks(client, chat, platform, opened)
