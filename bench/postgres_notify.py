"""Hints over PostgreSQL: how soon a write on one process is known in the cache of another, and what that costs writers.

The server is one of our own, with everything on that keeps what was acknowledged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Self

from tests.support import postgres

import holdfast
from bench import systems, timing
from bench.crew import Crew
from bench.figures import Figure, at_least, at_most
from bench.scale import Scale
from holdfast.agent import agent_cache
from holdfast.model import ScriptedModel
from holdfast.store import notifications

MILLISECONDS = 1e3
APART = 0.05
"""Seconds from one write to the next, so that each is told for itself."""
PATIENCE = 5.0

Moments = list[float]


def figures(scale: Scale, folder: Path) -> Iterator[Figure]:  # noqa: ARG001 -- the server has a folder of its own
    with postgres.Server(fsync=True) as server, Crew(scale.notify_writers) as crew:
        yield from latency(scale, server.dsn(), crew)
        yield price(scale, server.dsn(), crew)


def latency(scale: Scale, address: str, crew: Crew) -> Iterator[Figure]:
    """From the acknowledgement of an append to the moment the other process's agent knows that it is behind."""
    with holdfast.SessionDB(address) as db:
        db.create_session("heard", source="bench")
    written, learnt = crew.run(either, 2, address, scale.hints)
    waits = [max(0.0, known - ended) * MILLISECONDS for ended, known in _paired(written, learnt)]
    name = "a write on one process is known in the cache of another"
    yield Figure("hints.p50", f"{name}: p50", "ms", timing.percentile(waits, 0.5))
    yield Figure("hints.p99", f"{name}: p99", "ms", timing.percentile(waits, 0.99), None, at_most(50, "value"))
    yield Figure("hints.missed", "writes no hint came of", "", len(written) - len(waits), None, at_most(0, "value"))


def price(scale: Scale, address: str, crew: Crew) -> Figure:
    """Appends of all processes on conversations of their own, while somebody hears of each and while nobody does."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(scale.writer_rounds):
        for listened, taken in rates.items():
            with closing(holdfast.SessionDB(address)) as listener:
                if listened:
                    listener.driver.listen(lambda _: None)
                counts = crew.run(closed_loop, scale.notify_writers, address, scale.warm_up // 10, scale.seconds)
            taken.append(sum(counts) / scale.seconds)
    name = f"{scale.notify_writers} processes, closed loop, while another hears of it: appends per second"
    beside = ("while nobody does", timing.median(rates[False]))
    return Figure("hints.price", name, "/s", timing.median(rates[True]), beside, at_least(0.9))


def _paired(written: list[tuple[float, float]], learnt: Moments) -> Iterator[tuple[float, float]]:
    """The end of each append, and the first moment after its beginning at which the other had learnt something."""
    for began, ended in written:
        known = next((moment for moment in learnt if moment >= began), None)
        if known is not None:
            yield ended, known


# --- jobs, run in the crew's processes ---------------------------------------------------------------


def closed_loop(_: int, address: str, warm_up: int, seconds: float) -> Generator[None, None, int]:
    """One append after the other on a conversation of its own; how many."""
    with holdfast.SessionDB(address) as db:
        session = db.create_session(source="bench").id
        for number in range(warm_up):
            db.append_message(session, role="user", content=systems.text(number))
        yield
        count, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            db.append_message(session, role="user", content=systems.text(count))
            count += 1
        return count


def either(index: int, address: str, writes: int) -> Generator[None, None, object]:
    """The first process writes, the second learns of it."""
    if index:
        return (yield from _learns(address, writes))
    return (yield from _writes(address, writes))


def _writes(address: str, writes: int) -> Generator[None, None, list[tuple[float, float]]]:
    with holdfast.SessionDB(address) as db:
        yield
        moments = []
        for number in range(writes):
            began = time.monotonic()
            db.append_message("heard", role="user", content=systems.text(number))
            moments.append((began, time.monotonic()))
            time.sleep(APART)
        return moments


def _learns(address: str, writes: int) -> Generator[None, None, Moments]:
    with asyncio.Runner() as runner:
        learning = runner.run(_prepared(address))
        yield
        return runner.run(learning.all_of(writes))


async def _prepared(address: str) -> Learning:
    return await Learning(holdfast.AsyncSessionDB(holdfast.SessionDB(address))).begin()


class Learning:
    """An agent in a cache, and the moments at which it learnt that somebody else had written."""

    def __init__(self, db: holdfast.AsyncSessionDB) -> None:
        self._db = db
        self._agents = agent_cache.AgentCache(self._build)
        self._listening = ExitStack()
        self._behind = asyncio.Event()
        self._moments: Moments = []
        self._compared: asyncio.Task[holdfast.AIAgent] | None = None

    async def _build(self, conversation_id: str) -> holdfast.AIAgent:
        model = ScriptedModel([])
        return holdfast.AIAgent(db=self._db, model=model, session_id=conversation_id)

    async def begin(self) -> Self:
        agent = await self._agents.get("heard")
        await agent.context_cache.messages()
        begun = asyncio.Event()

        def compared(_: object) -> None:
            if agent.context_cache.mark is None:
                self._moments.append(time.monotonic())
                self._behind.set()

        def heard(_: notifications.Hint) -> None:
            begun.set()
            self._compared = asyncio.ensure_future(self._agents.get("heard"))
            self._compared.add_done_callback(compared)

        self._listening.enter_context(self._db.notifications.listen(heard))
        await begun.wait()
        return self

    async def all_of(self, writes: int) -> Moments:
        """Each time it is behind it reads again, until it has read all, or nothing came for some seconds."""
        agent = await self._agents.get("heard")
        with suppress(TimeoutError):
            while len(await agent.context_cache.messages()) < writes:
                await asyncio.wait_for(self._behind.wait(), PATIENCE)
                self._behind.clear()
        self._listening.close()
        await self._agents.close()
        await self._db.close()
        return self._moments
