"""The store on PostgreSQL, relative to bare INSERTs into the same server in the same run.

The server is started for the run, with fsync and synchronous_commit; it shares the processors with its clients. The
floor is one table with a primary key, and one prepared INSERT per message.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from tests.support import postgres

import holdfast
from bench import conversation_length, group_commit, search, systems, timing
from bench.figures import Figure, at_least, at_most, compare
from bench.scale import Scale
from bench.worker_processes import WorkerProcesses
from holdfast import types

MICROSECONDS, MILLISECONDS = 1e6, 1e3
BATCH = 1_000
_TABLE = (
    "CREATE TABLE IF NOT EXISTS bare "
    "(id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, session text, role text, content text)"
)
_INSERT = "INSERT INTO bare (session, role, content) VALUES (%s, %s, %s)"
Waits = list[float]


def figures(scale: Scale, folder: Path) -> Iterator[Figure]:
    with postgres.Server(fsync=True) as server:
        address = _create_store(
            server, "main", "one", "leased", "shared", *(f"process-{index}" for index in range(scale.pg_processes))
        )
        yield from _one_writer(scale, address)
        with WorkerProcesses(scale.pg_processes) as workers:
            yield from _own_conversations(scale, address, workers)
            yield from _one_conversation(scale, address, workers)
        yield _group(scale, address)
        yield from _commits(scale, server, address)
        yield from _search(scale, server)
        yield from _copies(scale, server, folder)


class Floor:
    """The minimum: a bare INSERT."""

    def __init__(self, address: str) -> None:
        self._connection = psycopg.connect(address, autocommit=True)
        self._connection.execute(_TABLE)
        self._cursor = self._connection.cursor(binary=True)

    def append(self, conversation: str, number: int) -> object:
        values = (conversation, systems.ROLES[number & 1], systems.text(number))
        return self._cursor.execute(_INSERT, values, prepare=True)

    def load(self) -> int:
        return len(self._cursor.execute("SELECT role, content FROM bare ORDER BY id").fetchall())

    def close(self) -> None:
        self._connection.close()


class Holdfast:
    def __init__(self, address: str) -> None:
        self.db = holdfast.SessionDB(address, write_timeout=60)
        self._turns: dict[str, types.Lease] = {}

    def append(self, conversation: str, number: int) -> object:
        return self.db.append_message(conversation, role=systems.ROLES[number & 1], content=systems.text(number))

    def append_leased(self, conversation: str, number: int) -> object:
        """Append as an agent does: under the lease of its turn."""
        if conversation not in self._turns:
            self._turns[conversation] = self.db.acquire_lease(conversation, "turn", ttl=3_600)
        role, content = systems.ROLES[number & 1], systems.text(number)
        return self.db.append_message(conversation, role=role, content=content, lease=self._turns[conversation])

    def load(self) -> int:
        return len(self.db.transcript("one"))

    def close(self) -> None:
        self.db.close()


SYSTEMS: dict[str, type[Holdfast] | type[Floor]] = {"holdfast": Holdfast, "floor": Floor}


def _create_store(server: postgres.Server, label: str, *sessions: str) -> str:
    """Create a store with these conversations, and a bare table in the same schema; return the address."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {label}")
    address = server.dsn(label)
    with holdfast.SessionDB(address) as db, closing(Floor(address)):
        for session in sessions:
            db.create_session(session, source="bench")
    return address


# --- one writer --------------------------------------------------------------------------------------


def _one_writer(scale: Scale, address: str) -> Iterator[Figure]:
    with ExitStack() as stack:
        both = {name: stack.enter_context(closing(system(address))) for name, system in SYSTEMS.items()}
        operations: dict[str, timing.Operation] = {n: partial(system.append, "one") for n, system in both.items()}
        timing.interleave(operations, scale.load - scale.pg_appends)
        taken = timing.interleave(operations, scale.pg_appends)
        yield compare("pg.append.p50", "append p50", "µs", timing.medians(taken), None, MICROSECONDS)
        p99 = {name: timing.percentile(values, 0.99) for name, values in taken.items()}
        yield compare("pg.append.p99", "append p99", "µs", p99, None, MICROSECONDS)
        ours = both["holdfast"]
        assert isinstance(ours, Holdfast)
        for session in ("leased", "plain"):
            ours.db.create_session(session, source="bench")
        pair: dict[str, timing.Operation] = {
            "leased": partial(ours.append_leased, "leased"),
            "plain": partial(ours.append, "plain"),
        }
        leased = timing.medians(timing.interleave(pair, scale.pg_appends))
        baseline = ("without", leased["plain"] * MICROSECONDS)
        name = "append p50 under a turn lease"
        yield Figure("pg.append.leased", name, "µs", leased["leased"] * MICROSECONDS, baseline)
        readers: dict[str, timing.Operation] = {name: _reader(system) for name, system in both.items()}
        readers["context"] = lambda _: ours.db.context("one")
        loads = timing.medians(timing.interleave(readers, scale.load_rounds))
    context = loads.pop("context")
    for what, values in (("transcript", loads), ("context", {**loads, "holdfast": context})):
        yield compare(f"pg.load.{what}", f"load {scale.load:,} messages, {what}", "ms", values, None, MILLISECONDS)


def _reader(system: Holdfast | Floor) -> timing.Operation:
    return lambda _: system.load()


# --- several processes -------------------------------------------------------------------------------


def closed_loop(
    index: int, system: str, address: str, conversation: str, warm_up: int, seconds: float
) -> Generator[None, None, Waits]:
    """Append without pause to the conversation of this name, or to one per process."""
    with closing(SYSTEMS[system](address)) as store:
        where = conversation or f"process-{index}"
        for number in range(warm_up):
            store.append(where, number)
        yield
        waits: Waits = []
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            store.append(where, len(waits))
            waits.append(time.perf_counter() - began)
        return waits


def _own_conversations(scale: Scale, address: str, workers: WorkerProcesses) -> Iterator[Figure]:
    alone: list[float] = []
    every: dict[str, list[list[Waits]]] = {name: [] for name in SYSTEMS}
    for _ in range(scale.writer_rounds):
        (single,) = workers.run(closed_loop, 1, "holdfast", address, "", scale.pg_warm_up, scale.seconds)
        alone.append(len(single) / scale.seconds)
        for name, rounds in every.items():
            rounds.append(
                workers.run(closed_loop, scale.pg_processes, name, address, "", scale.pg_warm_up, scale.seconds)
            )
    who = f"{scale.pg_processes} processes, own conversations"
    yield from _rates(scale, "pg.own", who, every, 5_000)
    name = f"{who}: appends per second, relative to one process"
    baseline = ("one process", timing.median(alone))
    yield Figure("pg.own.gain", name, "/s", _rate(scale, every["holdfast"]), baseline)


def _one_conversation(scale: Scale, address: str, workers: WorkerProcesses) -> Iterator[Figure]:
    rounds = [
        workers.run(closed_loop, scale.pg_processes, "holdfast", address, "shared", scale.pg_warm_up, scale.seconds)
        for _ in range(scale.writer_rounds)
    ]
    yield from _rates(scale, "pg.one", f"{scale.pg_processes} processes, one conversation", {"holdfast": rounds}, 2_000)
    acknowledged = sum(len(waits) for round_ in rounds for waits in round_)
    acknowledged += scale.writer_rounds * scale.pg_processes * scale.pg_warm_up
    with holdfast.SessionDB(address) as db:
        lost = acknowledged - db.conversation("shared").last_seq
    yield Figure("pg.one.lost", "acknowledged appends missing in the log", "", lost, None, at_most(0, "value"))


def _rate(scale: Scale, rounds: list[list[Waits]]) -> float:
    return timing.median([sum(map(len, waits)) for waits in rounds]) / scale.seconds


def _rates(scale: Scale, key: str, who: str, every: Mapping[str, list[list[Waits]]], bound: float) -> Iterator[Figure]:
    rates = {name: _rate(scale, rounds) for name, rounds in every.items()}
    baseline = ("floor", rates["floor"]) if "floor" in rates else None
    yield Figure(
        f"{key}.rate", f"{who}: appends per second", "/s", rates["holdfast"], baseline, at_least(bound, "value")
    )
    flat = {name: [wait * MILLISECONDS for r in rounds for w in r for wait in w] for name, rounds in every.items()}
    p99 = {name: timing.percentile(waits, 0.99) for name, waits in flat.items()}
    baseline = ("floor", p99["floor"]) if "floor" in p99 else None
    target = at_most(5, "value") if baseline else None
    yield Figure(f"{key}.p99", f"{who}: p99", "ms", p99["holdfast"], baseline, target)
    fairness = [(min(map(len, waits)), max(map(len, waits))) for waits in every["holdfast"]]
    fewest, most = sorted(fairness, key=lambda round_: round_[0] / round_[1])[len(fairness) // 2]
    yield Figure(f"{key}.fair", f"{who}: fewest of a process", "", fewest, ("most", most), at_least(0.8))
    yield Figure(f"{key}.worst", f"{who}: worst wait", "ms", max(flat["holdfast"]), None, at_most(250, "value"))


def _group(scale: Scale, address: str) -> Figure:
    alone, together = asyncio.run(group_commit.rounds(scale, address, scale.pg_warm_up))
    name = f"group commit, {scale.tasks} tasks: appends per second"
    return Figure("pg.group", name, "/s", timing.median(together), ("one writer", timing.median(alone)), at_least(2.5))


# --- compaction by size ------------------------------------------------------------------------------


def _commits(scale: Scale, server: postgres.Server, address: str) -> Iterator[Figure]:
    with ExitStack() as stack:
        dbs = {}
        for size in scale.pg_sizes:
            dbs[size] = stack.enter_context(holdfast.SessionDB(_create_store(server, f"size{size}", "one")))
            _grow(dbs[size], size)
        floor = stack.enter_context(closing(Floor(address)))
        conversation_length.rounds(dbs, floor, scale.history_rounds // 5)
        by_size = {
            size: {step: timing.median([r[step] for r in rounds]) for step in conversation_length.STEPS}
            for size, rounds in conversation_length.rounds(dbs, floor, scale.history_rounds).items()
        }
    yield from conversation_length.commit_figures(by_size, "pg.")


def _grow(db: holdfast.SessionDB, size: int) -> None:
    for start in range(0, size, BATCH):
        numbers = range(start, min(start + BATCH, size))
        db.append_messages("one", [{"role": systems.ROLES[n & 1], "content": systems.text(n)} for n in numbers])


# --- search and copies --------------------------------------------------------------------------


def _search(scale: Scale, server: postgres.Server) -> Iterator[Figure]:
    chats = search.read_chats()
    asked = [each["q"] for chat in chats for each in chat["questions"]][: scale.search_questions]
    with holdfast.SessionDB(_create_store(server, "searched")) as db:
        for messages, bound in zip(scale.pg_search, (3, 20), strict=True):
            search.fill(db, chats, messages)
            yield search.latency_figure(f"pg.search.{bound}", f"search: p50 at {messages:,} messages", bound, db, asked)


def _copies(scale: Scale, server: postgres.Server, folder: Path) -> Iterator[Figure]:
    def copied(source: holdfast.SessionDB, into: Any) -> float:
        with holdfast.SessionDB(into) as target:
            return scale.pg_copied / timing.measure_seconds(lambda: source.admin.copy_to(target.admin))

    with holdfast.SessionDB(folder / "source.db", durability="process-crash") as source:
        source.create_session("one", source="bench")
        _grow(source, scale.pg_copied)
        address = _create_store(server, "moved")
        files = copied(source, folder / "file.db")
        there = copied(source, address)
    with holdfast.SessionDB(address) as moved:
        back = copied(moved, folder / "back.db")
    for key, name, rate in (("in", "a file into PostgreSQL", there), ("out", "PostgreSQL into a file", back)):
        yield Figure(f"pg.copy.{key}", f"db copy, {name}: messages per second", "/s", rate, ("file to file", files))
