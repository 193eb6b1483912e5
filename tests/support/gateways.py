"""Gateways for tests: a store, a scripted model and a platform in memory."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec

from holdfast import AIAgent, AsyncSessionDB, types
from holdfast.agent import approvals
from holdfast.gateway import gateway, gateway_context, platform, routes, runtimes
from holdfast.gateway import settings as gateway_settings
from holdfast.model import ScriptedModel
from holdfast.model import base as models
from holdfast.runtime import runtime
from tests.support import agents, memory_platform
from tests.support.polling import until_async

store, Gate = agents.store, agents.Gate
ROUTE = "agent:main:loopback:dm:local"


class HeldModel(ScriptedModel):
    """A model that pauses after every delta until it is released."""

    def __init__(self, *script: str) -> None:
        super().__init__(script)
        self.reached, self.released = asyncio.Event(), asyncio.Event()

    async def stream(self, request: models.Request) -> AsyncGenerator[models.Delta, None]:
        async for delta in super().stream(request):
            yield delta
            self.reached.set()
            await self.released.wait()


def runtime_factory(
    db: AsyncSessionDB, model: models.Model | agents.ModelChoice, **given: Any
) -> runtimes.RuntimeFactory:
    """Return a factory of runtimes whose agents use this model, or the one that was chosen."""
    choice = model if isinstance(model, agents.ModelChoice) else None

    @asynccontextmanager
    async def open_runtime(principal: routes.Principal) -> AsyncIterator[runtime.Runtime]:
        identity, owner = principal.identity, principal.owner
        permissions = approvals.Approvals(db.permissions, owner=identity)

        async def build(conversation_id: str) -> AIAgent:
            options = {"owner": owner, "source": "loopback", "approvals": permissions, **given}
            used = model.of(conversation_id) if isinstance(model, agents.ModelChoice) else model
            return agents.agent(db, used, session_id=conversation_id, **options)

        async with runtime.Runtime(db, build, owner=owner, approvals=permissions, models=choice) as opened:
            yield opened

    return open_runtime


@asynccontextmanager
async def open_gateway(
    db: AsyncSessionDB,
    model: models.Model | agents.ModelChoice,
    *,
    platforms: Sequence[platform.Platform] | None = None,
    settings: gateway_settings.GatewaySettings | None = None,
    checks: Sequence[platform.AdmissionCheck] = (),
    is_admin: platform.SenderCheck = gateway_context.is_never,
    may_speak: platform.SenderCheck = gateway_context.is_always,
    shared: bool = False,
    grace: float = 0.0,
    poll: float = 60.0,
    **given: Any,
) -> AsyncIterator[tuple[gateway.Gateway, memory_platform.MemoryPlatform]]:
    """Run a gateway; yield it and its first platform. Further options are those of the agents."""
    chats = list(platforms or [memory_platform.MemoryPlatform()])
    wanted = settings or gateway_settings.GatewaySettings()
    opened = gateway.Gateway(
        db,
        runtime_factory(db, model, **given),
        chats,
        settings=msgspec.structs.replace(wanted, grace=grace, poll=poll, retry=0.01),
        checks=checks,
        is_admin=is_admin,
        may_speak=may_speak,
        is_shared=lambda _: shared,
    )
    async with opened:
        yield opened, cast("memory_platform.MemoryPlatform", chats[0])


@asynccontextmanager
async def run_platform(
    db: AsyncSessionDB, model: models.Model, chat: platform.Platform, **given: Any
) -> AsyncIterator[gateway.Gateway]:
    """Run a gateway that is connected to a chat service; at the end, wait until every message is answered."""
    # Tests store messages like another process, which only polling finds.
    async with open_gateway(db, model, platforms=[chat], poll=0.02, **given) as (opened, _):
        await opened.wait_ready()
        yield opened
        await wait_idle(opened, db)


async def wait_settled(db: AsyncSessionDB, *keys: str, platform: str = "loopback") -> list[types.InboundMessage]:
    """Return these inbound messages as soon as each of them has an outcome."""
    found: list[types.InboundMessage] = []

    async def is_settled() -> bool:
        found[:] = [each for key in keys if (each := await db.mail.inbound_by_key(platform, key)) is not None]
        return len(found) == len(keys) and not any(each.open for each in found)

    await until_async(is_settled)
    return found


async def settle(
    db: AsyncSessionDB, chat: memory_platform.MemoryPlatform, text: str, /, *, key: str, **where: str
) -> types.InboundMessage:
    """Send a message from a chat; return it as soon as it has an outcome."""
    await chat.say(text, key=key, **where)
    (found,) = await wait_settled(db, key)
    return found


async def wait_begun(db: AsyncSessionDB, key: str, platform: str = "loopback") -> None:
    """Wait until a worker has begun this inbound message."""

    async def is_begun() -> bool:
        found = await db.mail.inbound_by_key(platform, key)
        return found is not None and found.attempts > 0

    await until_async(is_begun)


async def wait_idle(opened: gateway.Gateway, db: AsyncSessionDB) -> None:
    """Wait until no message is open and none waits to be sent."""

    async def is_idle() -> bool:
        facts = await db.mail.counts()
        return not opened.router.active and not facts["arrivals_open"] and not facts["outgoing_open"]

    await until_async(is_idle)


async def wait_sent(db: AsyncSessionDB) -> None:
    """Wait until the outbox is empty."""

    async def is_empty() -> bool:
        return not (await db.mail.counts())["outgoing_open"]

    await until_async(is_empty)


@dataclasses.dataclass
class RunningTurn:
    """A turn that waits in its tool `wait`, and the gateway and the chat of it."""

    db: AsyncSessionDB
    gateway: gateway.Gateway
    chat: memory_platform.MemoryPlatform
    gate: Gate
    model: ScriptedModel

    async def observe(self, **where: str) -> None:
        """Wait until the worker has read all messages so far: /status is answered at once, after them."""
        await self.chat.say("/status", key="status", **where)
        await wait_settled(self.db, "status")

    async def finish(self, *keys: str) -> list[types.InboundMessage]:
        """Let the turn end; return these messages when they are settled and all replies are sent."""
        self.gate.go.set()
        found = await wait_settled(self.db, *keys)
        await wait_idle(self.gateway, self.db)
        return found


@asynccontextmanager
async def open_turn(
    db: AsyncSessionDB,
    script: Sequence[Any] = (),
    *,
    busy: str = "queue",
    where: dict[str, str] | None = None,
    **given: Any,
) -> AsyncIterator[RunningTurn]:
    """Run a gateway with a turn, begun by the message `1`, that waits in a tool."""
    gate, model = Gate(), ScriptedModel([agents.calls("wait"), *script])
    settings = msgspec.convert({"busy": busy}, gateway_settings.GatewaySettings)
    tools = [agents.tool("wait", gate)]
    async with open_gateway(db, model, settings=settings, tools=tools, **given) as (opened, chat):
        await chat.say("One", key="1", **where or {})
        await gate.reached.wait()
        yield RunningTurn(db, opened, chat, gate, model)


def new_inbound(key: str, text: str, **more: Any) -> types.NewInboundMessage:
    """Return a message from the chat `local`."""
    place = {"platform": "loopback", "chat": "dm:local", "sender": "local", "address": {"chat": "local"}}
    return types.NewInboundMessage(key=key, text=text, **{"route": ROUTE, **place, **more})


async def begin_elsewhere(db: AsyncSessionDB, key: str, *lines: str, attempts: int = 1) -> int:
    """Store a message that another process began in the conversation `talk` before it died; return its id.

    Further lines are messages that were joined to it.
    """
    inbound, *joined = [
        (await db.mail.add_inbound(new_inbound(f"{key}+{number}" if number else key, line)))[0]
        for number, line in enumerate(lines)
    ]
    lease = await db.mail.acquire_chat_lease(f"route:{ROUTE}")
    for _ in range(attempts):
        await db.mail.begin_inbound(lease, inbound.id, "talk", [each.id for each in joined])
    await db.mail.release_chat_lease(lease)
    return inbound.id


def intercept(target: Any, name: str, before: Callable[[], Awaitable[object]]) -> None:
    """Await `before` ahead of every call of a coroutine method of this object."""
    method = getattr(target, name)

    async def call(*args: Any, **given: Any) -> Any:
        await before()
        return await method(*args, **given)

    setattr(target, name, call)


def texts(sent: Sequence[types.Outgoing]) -> list[str]:
    return [each.text for each in sent]


def delivery(text: str = "Hi", **given: Any) -> platform.Delivery:
    """Return a reply as a platform gets it to send."""
    known = {"id": 1, "chat": "dm:ann", "attachments": [], "kind": "reply", "at": time.time()}
    return platform.Delivery(text=text, **{**known, **given})


def outgoing_file(
    name: str, media_type: str, content: bytes = b"pixels", *, size: int | None = None
) -> platform.OutgoingFile:
    async def read() -> bytes:
        return content

    return platform.OutgoingFile(name, media_type, len(content) if size is None else size, "digest", read)
