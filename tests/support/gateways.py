"""What the tests of the gateway share: a store, a scripted model, and a platform in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec

from holdfast import AIAgent, AsyncSessionDB, types
from holdfast.agent import approvals
from holdfast.gateway import gateway, gateway_context, platform, runtimes
from holdfast.gateway import settings as gateway_settings
from holdfast.model import base as models
from holdfast.runtime import runtime
from tests.support import agents, memory_platform
from tests.support.polling import until_async

run, store = agents.run, agents.store
Built = Callable[[str, str], AIAgent]


def make(db: AsyncSessionDB, model: models.Model, **given: Any) -> runtimes.RuntimeFactory:
    """Desks whose agents have this model."""
    law = given.pop("law", None)
    built: list[str] = given.pop("built", [])

    @asynccontextmanager
    async def made(owner: str) -> AsyncIterator[runtime.Runtime]:
        permissions = approvals.Approvals(db.permissions, owner=owner, law=law)

        async def build(conversation_id: str) -> AIAgent:
            built.append(conversation_id)
            return agents.agent(
                db, model, session_id=conversation_id, owner=owner, source="loopback", approvals=permissions, **given
            )

        async with runtime.Runtime(db, build, owner=owner, approvals=permissions) as door:
            yield door

    return made


@asynccontextmanager
async def open_gateway(
    db: AsyncSessionDB,
    model: models.Model,
    *,
    platforms: Sequence[platform.Platform] | None = None,
    settings: gateway_settings.GatewaySettings | None = None,
    checks: Sequence[platform.AdmissionCheck] = (),
    is_admin: platform.SenderCheck = gateway_context.is_never,
    may_speak: platform.SenderCheck = gateway_context.is_always,
    shared: bool = False,
    grace: float = 0.0,
    max_runtimes: int = 200,
    **given: Any,
) -> AsyncIterator[tuple[gateway.Gateway, memory_platform.MemoryPlatform]]:
    """A gateway at work, and the platform to speak by."""
    chats = list(platforms or [memory_platform.MemoryPlatform()])
    found = cast("memory_platform.MemoryPlatform", chats[0])
    opened = gateway.Gateway(
        db,
        make(db, model, **given),
        chats,
        settings=msgspec.structs.replace(settings or gateway_settings.GatewaySettings(), grace=grace),
        checks=checks,
        is_admin=is_admin,
        may_speak=may_speak,
        is_shared=lambda _: shared,
        max_runtimes=max_runtimes,
    )
    async with opened:
        yield opened, found


async def settled(db: AsyncSessionDB, *keys: str, platform: str = "loopback") -> list[types.InboundMessage]:
    """What became of these, once it is known of all."""
    found: list[types.InboundMessage] = []

    async def known() -> bool:
        found[:] = [each for key in keys if (each := await db.mail.inbound_by_key(platform, key)) is not None]
        return len(found) == len(keys) and not any(each.open for each in found)

    await until_async(known)
    return found


async def quiet(opened: gateway.Gateway, db: AsyncSessionDB) -> None:
    """Until nothing is open and nothing waits to be sent."""

    async def still() -> bool:
        facts = await db.mail.counts()
        return not opened.router.active and not facts["arrivals_open"] and not facts["outgoing_open"]

    await until_async(still)


def texts(sent: Sequence[types.Outgoing]) -> list[str]:
    return [each.text for each in sent]
