"""The gateway with a platform in memory and a model that answers at once, relative to its store alone.

The store alone performs the writes of the gateway for each message: store and begin the inbound message, acquire the
lease of the turn, append two messages, store the outcome with the reply, and mark the reply as sent.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from tests.support import memory_platform, postgres

import holdfast
from bench import timing
from bench.figures import Figure, at_least, at_most
from bench.scale import Scale
from bench.worker_processes import WorkerProcesses
from holdfast import AIAgent, AsyncSessionDB, types
from holdfast.agent import approvals, settings
from holdfast.app import gateway as app_gateway
from holdfast.gateway import gateway
from holdfast.gateway import settings as gateway_settings
from holdfast.model import ScriptedModel
from holdfast.runtime import inbox_messages, runtime

MILLISECONDS = 1e3
PATIENCE = 120.0

Say = Callable[[int, int], Awaitable[None]]
"""Sends message `number` in a chat; returns when it is answered."""


class Load(NamedTuple):
    """The results of a run, in seconds."""

    open: list[float]
    """From a message to its reply, at a fixed rate."""
    worst_chat: float
    all_at_once: float
    """Messages per second if all chats send several at once."""
    quiet: list[float]
    flooded: list[float]
    """From a message to its reply in a few chats, without and during a flood of another chat."""
    memory: float


def figures(scale: Scale, folder: Path) -> Iterator[Figure]:
    yield from _figures("gateway", scale, str(folder / "gateway.db"), str(folder / "alone.db"))
    with postgres.Server(fsync=True) as server:
        for schema in ("gateway", "alone"):
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                connection.execute(f"CREATE SCHEMA {schema}")
        yield from _figures("pg.gateway", scale, server.dsn("gateway"), server.dsn("alone"))


def _figures(key: str, scale: Scale, target: str, baseline_target: str) -> Iterator[Figure]:
    ours, alone = (_run(scale, kind, at) for kind, at in (("gateway", target), ("store", baseline_target)))
    where, rate = ("PostgreSQL, ", 300) if key.startswith("pg.") else ("", 800)
    what = f"{where}{scale.chats:,} chats, {scale.chat_rate}/s"

    def line(of: str, name: str, unit: str, value: Callable[[Load], float], target: Any = None) -> Figure:
        return Figure(f"{key}.{of}", f"{what}: {name}", unit, value(ours), ("store alone", value(alone)), target)

    yield line(
        "p50", "answered, p50", "ms", lambda load: timing.median(load.open) * MILLISECONDS, at_most(100, "value")
    )
    yield line("p99", "answered, p99", "ms", lambda load: timing.percentile(load.open, 0.99) * MILLISECONDS)
    yield line("worst", "slowest chat", "ms", lambda load: load.worst_chat * MILLISECONDS)
    yield line("rate", "all at once", "messages/s", lambda load: load.all_at_once, at_least(rate, "value"))
    flooded, quiet = (timing.percentile(each, 0.99) * MILLISECONDS for each in (ours.flooded, ours.quiet))
    yield Figure(f"{key}.flooded", f"{where}others during a flood of one chat, p99", "ms", flooded, ("no flood", quiet))
    yield line("memory", "memory", "MB", lambda load: load.memory, at_most(200, "value"))


def _run(scale: Scale, kind: str, target: str) -> Load:
    """Measure in a separate process, for the memory."""
    with WorkerProcesses(1) as workers:
        (load,) = workers.run(_job, 1, kind, target, scale)
    return Load(*load)


def _job(_: int, kind: str, target: str, scale: Scale) -> Generator[None, None, Load]:
    yield
    app_gateway.tune_garbage_collector()
    return asyncio.run(_measure(SYSTEMS[kind], target, scale))


async def _measure(open_system: Open, target: str, scale: Scale) -> Load:
    chats = scale.chats
    async with asyncio.timeout(PATIENCE), open_system(target) as say:
        for first in range(0, chats, 50):
            await asyncio.gather(*(say(chat, 0) for chat in range(first, min(first + 50, chats))))
        by_chat = await _send_at_rate(say, chats, scale.chat_rate, scale.chat_seconds)
        opened = [taken for each in by_chat.values() for taken in each]
        worst = max(timing.median(each) for each in by_chat.values())
        several = 3 * chats
        began = time.perf_counter()
        await asyncio.gather(*(say(number % chats, 10_000 + number) for number in range(several)))
        at_once = several / (time.perf_counter() - began)
        few = range(1, min(chats, 20))
        quiet = await _send_one_by_one(say, few, 20_000, scale.chat_rounds)
        flood = asyncio.gather(*(say(0, 30_000 + number) for number in range(3 * scale.chat_rounds)))
        flooded = await _send_one_by_one(say, few, 40_000, scale.chat_rounds)
        await flood
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Load(opened, worst, at_once, quiet, flooded, memory)


async def _send_at_rate(say: Say, chats: int, rate: int, seconds: float) -> dict[int, list[float]]:
    """Send messages at a fixed rate, however long replies take; return the seconds by chat."""
    taken: dict[int, list[float]] = {}

    async def one(number: int, due: float) -> None:
        await say(number % chats, 1 + number)
        taken.setdefault(number % chats, []).append(time.perf_counter() - due)

    began, said = time.perf_counter(), list[asyncio.Task[None]]()
    for number in range(int(rate * seconds)):
        due = began + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        said.append(asyncio.create_task(one(number, due)))
    await asyncio.gather(*said)
    return taken


async def _send_one_by_one(say: Say, chats: range, first: int, rounds: int) -> list[float]:
    taken = []
    for number in range(rounds):
        began = time.perf_counter()
        await say(chats[number % len(chats)], first + number)
        taken.append(time.perf_counter() - began)
    return taken


# --- the gateway -------------------------------------------------------------------------------------


class BenchPlatform(memory_platform.MemoryPlatform):
    """A platform that resolves a future for each reply."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[int, asyncio.Future[None]] = {}
        self.gone = set[int]()

    async def send(self, outgoing: types.Outgoing) -> str:
        arrival = outgoing.inbound_id or 0
        if (waits := self.waiting.pop(arrival, None)) is not None:
            waits.set_result(None)
        else:
            self.gone.add(arrival)
        return str(outgoing.id)

    async def wait_answered(self, arrival: int) -> None:
        if arrival in self.gone:
            self.gone.discard(arrival)
            return
        waits = self.waiting[arrival] = asyncio.get_running_loop().create_future()
        await waits


@asynccontextmanager
async def _gateway(target: str) -> AsyncIterator[Say]:
    platform = BenchPlatform()
    async with AsyncSessionDB(holdfast.SessionDB(target, write_timeout=60)) as db:
        model = ScriptedModel(["Fine."] * 1_000_000)

        @asynccontextmanager
        async def open_runtime(owner: str) -> AsyncIterator[runtime.Runtime]:
            law = approvals.Approvals(db.permissions, owner=owner)

            async def build(conversation_id: str) -> AIAgent:
                return AIAgent(
                    db=db,
                    model=model,
                    session_id=conversation_id,
                    conversation=settings.ConversationSettings(owner=owner, source="bench"),
                    permissions=law,
                )

            async with runtime.Runtime(db, build, owner=owner, approvals=law) as made:
                yield made

        async def say(chat: int, number: int) -> None:
            arrival = await platform.say(f"And then, {number}?", chat=f"c{chat}", sender=f"s{chat}")
            assert arrival is not None
            await platform.wait_answered(arrival.id)

        async with gateway.Gateway(db, open_runtime, [platform], settings=gateway_settings.GatewaySettings(grace=0.0)):
            yield say


# --- the store alone ---------------------------------------------------------------------------------


@asynccontextmanager
async def _store(target: str) -> AsyncIterator[Say]:
    async with AsyncSessionDB(holdfast.SessionDB(target, write_timeout=60)) as db:
        locks = dict[int, asyncio.Lock]()

        async def say(chat: int, number: int) -> None:
            new = types.NewInboundMessage(
                platform="bench",
                key=f"{chat}:{number}",
                route=f"agent:main:bench:dm:{chat}",
                chat=f"dm:{chat}",
                sender=f"s{chat}",
                address={"chat": chat},
                text=f"And then, {number}?",
            )
            arrival, _ = await db.mail.add_inbound(new)
            async with locks.setdefault(chat, asyncio.Lock()):
                await _answer(db, arrival, f"chat-{chat}")

        yield say


async def _answer(db: AsyncSessionDB, arrival: types.InboundMessage, session: str) -> None:
    def choose(waiting: Any, _: types.Route) -> tuple[int, str, list[int]]:
        return waiting[0].id, session, []

    taken = await db.mail.begin_next_inbound(arrival.route, choose)
    create = types.NewConversation(source="bench")
    try:
        lease = await db.acquire_lease(session, "turn")
    except holdfast.errors.NoSuchSession:
        lease = None
    uid = inbox_messages.uid_of(f"{arrival.platform}:{arrival.key}")
    asked = await db.append_message(session, role="user", content=arrival.text, uid=uid, create=create, lease=lease)
    said = await db.append_message(session, role="assistant", content="Fine.", lease=lease)
    if lease is not None:
        await db.release_lease(lease)
    reply = types.NewOutgoing(platform=arrival.home, chat=arrival.chat, address=arrival.address, text="Fine.")
    await db.mail.settle_inbound(
        taken.lease,
        arrival.id,
        "answered",
        seq=asked.seq,
        conversation_id=said.conversation_id,
        outgoing=[reply],
        release=True,
    )
    (sending,) = await db.mail.replies(arrival.id)
    await db.mail.mark_delivered(sending.id, "bench")


Open = Callable[[str], Any]
SYSTEMS: dict[str, Open] = {"gateway": _gateway, "store": _store}
