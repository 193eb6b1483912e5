"""Notifications over PostgreSQL: their latency between processes, and their cost for writers.

The server is started for the run, with fsync and synchronous_commit.
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
from bench.figures import Figure, at_least, at_most
from bench.scale import Scale
from bench.worker_processes import WorkerProcesses
from holdfast.agent import agent_cache
from holdfast.model import ScriptedModel
from holdfast.store import notifications

MILLISECONDS = 1e3
APART = 0.05
"""Seconds between two writes, so that each is notified separately."""
PATIENCE = 5.0

Moments = list[float]


def figures(scale: Scale, folder: Path) -> Iterator[Figure]:  # noqa: ARG001 -- the server has its own folder
    with postgres.Server(fsync=True) as server, WorkerProcesses(scale.notify_writers) as workers:
        yield from latency(scale, server.dsn(), workers)
        yield price(scale, server.dsn(), workers)


def latency(scale: Scale, address: str, workers: WorkerProcesses) -> Iterator[Figure]:
    """Measure from the acknowledgement of an append until the cache of another process is outdated."""
    with holdfast.SessionDB(address) as db:
        db.create_session("heard", source="bench")
    written, noticed = workers.run(write_or_listen, 2, address, scale.hints)
    waits = [max(0.0, known - ended) * MILLISECONDS for ended, known in _pairs(written, noticed)]
    name = "from a write to the invalidated cache of another process"
    yield Figure("hints.p50", f"{name}: p50", "ms", timing.percentile(waits, 0.5))
    yield Figure("hints.p99", f"{name}: p99", "ms", timing.percentile(waits, 0.99), None, at_most(50, "value"))
    yield Figure(
        "hints.missed", "writes without a notification", "", len(written) - len(waits), None, at_most(0, "value")
    )


def price(scale: Scale, address: str, workers: WorkerProcesses) -> Figure:
    """Compare the appends of all processes with and without a listener."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(scale.writer_rounds):
        for listened, taken in rates.items():
            with closing(holdfast.SessionDB(address)) as listener:
                if listened:
                    listener.driver.listen(lambda _: None)
                counts = workers.run(closed_loop, scale.notify_writers, address, scale.warm_up // 10, scale.seconds)
            taken.append(sum(counts) / scale.seconds)
    name = f"{scale.notify_writers} processes, closed loop, with a listener: appends per second"
    baseline = ("without a listener", timing.median(rates[False]))
    return Figure("hints.price", name, "/s", timing.median(rates[True]), baseline, at_least(0.9))


def _pairs(written: list[tuple[float, float]], noticed: Moments) -> Iterator[tuple[float, float]]:
    """Yield the end of each append, and the time of the first invalidation after its beginning."""
    for began, ended in written:
        known = next((moment for moment in noticed if moment >= began), None)
        if known is not None:
            yield ended, known


# --- jobs, run in the worker processes ------------------------------------------------------------------


def closed_loop(_: int, address: str, warm_up: int, seconds: float) -> Generator[None, None, int]:
    """Append without pause to a separate conversation; return the number of appends."""
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


def write_or_listen(index: int, address: str, writes: int) -> Generator[None, None, object]:
    """Write in the first process; listen in the second."""
    if index:
        return (yield from _listen(address, writes))
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


def _listen(address: str, writes: int) -> Generator[None, None, Moments]:
    with asyncio.Runner() as runner:
        listener = runner.run(_open_listener(address))
        yield
        return runner.run(listener.wait_all(writes))


async def _open_listener(address: str) -> Listener:
    return await Listener(holdfast.AsyncSessionDB(holdfast.SessionDB(address))).begin()


class Listener:
    """An agent in a cache, and the times at which writes of another process invalidated it."""

    def __init__(self, db: holdfast.AsyncSessionDB) -> None:
        self._db = db
        self._agents = agent_cache.AgentCache(self._build)
        self._listening = ExitStack()
        self._behind = asyncio.Event()
        self._moments: Moments = []
        self._comparison: asyncio.Task[holdfast.AIAgent] | None = None

    async def _build(self, conversation_id: str) -> holdfast.AIAgent:
        model = ScriptedModel([])
        return holdfast.AIAgent(db=self._db, model=model, session_id=conversation_id)

    async def begin(self) -> Self:
        agent = await self._agents.get("heard")
        await agent.context_cache.messages()
        begun = asyncio.Event()

        def compare(_: object) -> None:
            if agent.context_cache.mark is None:
                self._moments.append(time.monotonic())
                self._behind.set()

        def on_hint(_: notifications.Hint) -> None:
            begun.set()
            self._comparison = asyncio.ensure_future(self._agents.get("heard"))
            self._comparison.add_done_callback(compare)

        self._listening.enter_context(self._db.notifications.listen(on_hint))
        await begun.wait()
        return self

    async def wait_all(self, writes: int) -> Moments:
        """Read again after each invalidation until all writes are read, or none came for some seconds."""
        agent = await self._agents.get("heard")
        with suppress(TimeoutError):
            while len(await agent.context_cache.messages()) < writes:
                await asyncio.wait_for(self._behind.wait(), PATIENCE)
                self._behind.clear()
        self._listening.close()
        await self._agents.close()
        await self._db.close()
        return self._moments
