"""The parts of a long fault run: races, kills, full and failing disks, damage, gateways, servers and broken frames."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.rpc import websocket_transport
from holdfast.store.db import SessionDB
from tests.faults import (
    checker,
    disk_faults,
    file_damage,
    gateway_processes,
    interleavings,
    kill_points,
    load,
    maintenance_kills,
    overlapping_calls,
    power,
    races,
    steps,
    zygote,
)
from tests.support import memory_folders, postgres, postgres_proxy, rpc_fuzzing

KILLS, BATCH, SOME, WRITES = 200, 50, 10, 100
PROCESSES = {"sqlite": 32, "postgres": 16}
# How many rounds of a race take as long as a kill of clients, a damaged store, a fault of a server, a series of frames.
ROUNDS_PER_KILL, ROUNDS_PER_DAMAGE, ROUNDS_PER_FAULT, ROUNDS_PER_SERIES = 10, 5, 50, 50
FAULTS_PER_LOAD = 20
FRAMES, CONNECTIONS, CALLS = 5_000, 100, 500


class Run:
    """The parameters of a part, its progress and the problems that it found."""

    def __init__(self, name: str, running: zygote.Zygote, folder: Path, chance: random.Random, rounds: int) -> None:
        self.name, self.zygote, self.folder, self.chance, self.rounds = name, running, folder, chance, rounds
        self.problems: list[str] = []
        self._shown = 0.0

    def progress(self, text: str) -> None:
        if time.monotonic() - self._shown > 5:
            self._shown = time.monotonic()
            print(f"{self.name}: {text}", flush=True)

    def report(self, problems: Iterable[str | None]) -> None:
        self.problems += [f"{self.name}: {problem}" for problem in problems if problem]

    @contextlib.contextmanager
    def expect(self, subject: str) -> Iterator[None]:
        """Report a failed assertion as a problem."""
        try:
            yield
        except (AssertionError, pytest.fail.Exception) as error:
            self.report([f"{subject}: {error}"])

    @contextlib.contextmanager
    def new_store(self, dialect: str) -> Iterator[str]:
        """The address of an empty store, which is removed afterwards."""
        if dialect == "postgres":
            address = postgres.fresh()
            yield address
            postgres.give_back(address)
            return
        path = self.folder / "store.db"
        yield str(path)
        kill_points.remove(path)

    def shuffle(self, items: Iterable[Any]) -> list[Any]:
        found = list(items)
        return self.chance.sample(found, len(found))


def race(run: Run, dialect: str) -> None:
    """All processes at every race in turn, and longest at the one where all compact and append."""
    kinds = list(races.RACES)
    for done in range(0, run.rounds if dialect == "sqlite" else max(1, 2 * run.rounds // 5), BATCH):
        kind = kinds[0] if done // BATCH % 2 == 0 else kinds[done // BATCH // 2 % len(kinds)]
        with run.new_store(dialect) as store:
            with SessionDB(store) as db:
                steps.begin(db, "c", 4)
            outcomes = run.zygote.run_all(races.run, store, {"race": kind, "rounds": BATCH}, PROCESSES[dialect])
            run.report(outcome.error for outcome in outcomes)
            with SessionDB(store) as db:
                run.report(checker.verify(db, zygote.records(outcomes)))
        run.progress(f"{PROCESSES[dialect]} processes x {done + BATCH:,} rounds")


def kill(run: Run, dialect: str) -> None:
    """Kills at every point of every step, some at a time; in files also once before every write, and in creation."""
    if dialect == "sqlite":
        with run.expect("creation"):
            kill_points.kill_creation(run.zygote, run.folder)
    for turn in range(0, KILLS, SOME):
        for name in run.shuffle(steps.STEPS):
            with run.expect(name):
                if dialect == "postgres":
                    with run.new_store(dialect) as address:
                        kill_points.kill_clients_at_every_point(run.zygote, address, name, SOME)
                else:
                    kill_points.kill_at_every_point(run.zygote, run.folder, name, lambda _: SOME)
                    if turn == 0:
                        kill_points.kill_at_every_write(run.zygote, run.folder, name)
            for path in run.folder.glob("*.db"):
                kill_points.remove(path)
            run.progress(f"{turn + SOME} kills at each point of {name}")


def kill_maintenance(run: Run) -> None:
    """Kills at every point of backup, restore, prune and the like, and before writes, in new histories each time."""
    for turn in range(0, KILLS, SOME):
        seeds = [2 * run.chance.randrange(1 << 30) + number % 2 for number in range(5)]
        with memory_folders.folder() as folder:
            histories = [maintenance_kills.History(run.zygote, Path(folder), seed) for seed in seeds]
            for act in run.shuffle(maintenance_kills.ACTS):
                with run.expect(act):
                    maintenance_kills.kill_at_every_point(histories, act, SOME, run.chance)
                    if turn == 0:
                        maintenance_kills.kill_between_writes(histories[0], act, WRITES)
                run.progress(f"{turn + SOME} kills at each point of {act}")


def fill_disk(run: Run) -> None:
    """A disk that is full at any write of any step and of a store's creation, in every way."""
    for how in disk_faults.HOWS:
        for name in ["creation", *run.shuffle(steps.STEPS)]:
            with memory_folders.folder() as folder, run.expect(f"{name}, {how}"):
                if name == "creation":
                    disk_faults.sweep_creation(run.zygote, Path(folder), how)
                else:
                    disk_faults.sweep_step(run.zygote, Path(folder), name, how)
            run.progress(f"{how} disks for {name}")


def interleave(run: Run) -> None:
    """Every interleaving of larger groups than an ordinary run has time for."""
    for name, actors in interleavings.LARGE.items():
        count, problems = interleavings.every_schedule(actors)
        run.report(f"{name}: {problem}" for problem in problems)
        run.progress(f"{count:,} interleavings of {name}")


def kill_at_any_time(run: Run, dialect: str) -> None:
    """Clients under load that are killed at any instant, or stopped for a while, and replaced."""
    for done in range(0, max(1, run.rounds // ROUNDS_PER_KILL), BATCH):
        with run.new_store(dialect) as store:
            run.report(load.problems_after_kills(run.zygote, store, BATCH, run.chance))
        run.progress(f"{3 * (done + BATCH):,} processes killed at any time")


def damage(
    run: Run, trials: Callable[[file_damage.Bench, random.Random, int], list[str]], rounds_per_trial: int
) -> None:
    """Damage single bits of the file, or bits, pages and ranges of the file and its log, and salvage the rest."""
    bench = file_damage.Bench(run.folder, run.zygote)
    for done in range(0, max(1, run.rounds // rounds_per_trial), BATCH):
        run.report(trials(bench, run.chance, BATCH))
        run.progress(f"{done + BATCH:,} damaged stores")


def lose_power(run: Run) -> None:
    """Disks after a power loss: after any write, with any part of the unsynced writes."""
    notes, done, path = run.folder / "notes", 0, run.folder / "store.db"
    while done < run.rounds:
        outcome = run.zygote.run(power.live, path, {"durability": "power-loss", "notes": str(notes)})
        run.report([outcome.error])
        for moment in power.moments(notes, run.chance):
            with run.expect("power"):
                power.check(moment, run.folder / f"disk{done}")
            done += 1
            run.progress(f"{done:,} losses of power")
        kill_points.remove(path)


def kill_gateways(run: Run, dialect: str) -> None:
    """Some kills at each step of a gateway, at every point of the store once, and of one of two gateways."""
    gateways, sends = gateway_processes, run.folder / "sends"
    points = [f"gateway.{step}" for step in gateways.POINTS]
    for turn in range(0, KILLS, SOME):
        for step in run.shuffle([*points, "store", "pairs"]):
            with run.new_store(dialect) as target, run.expect(step):
                story = gateways.Story(run.zygote, target, sends, run.chance)
                if step == "store":
                    list(gateways.kill_everywhere(story, 1))
                elif step == "pairs":
                    for _ in range(SOME):
                        gateways.kill_first_gateway(story, run.chance.choice(points), len(gateways.NAMES))
                else:
                    gateways.kill_at(story, step, SOME, len(gateways.NAMES))
                story.run()
                story.check()
            sends.unlink(missing_ok=True)
            run.progress(f"{turn + SOME} kills at {step}")


def overlap(run: Run) -> None:
    """Every pair of calls that overlap, again and again."""
    for turn in range(max(1, run.rounds // len(overlapping_calls.PAIRS) // 5)):
        with run.new_store("postgres") as address, contextlib.closing(overlapping_calls.Overlap(address)) as pair:
            for first, second in run.shuffle(overlapping_calls.PAIRS):
                run.report(pair.play(first, second))
        run.progress(f"all pairs of calls {turn + 1} times")


def kill_server(run: Run) -> None:
    """The server killed under four writers and two compactors, again and again; it syncs to its disk."""
    with postgres.Server(fsync=True) as server:

        def restart() -> None:
            time.sleep(run.chance.uniform(0.0, 0.05))
            server.kill()
            server.start()

        for done in range(0, max(1, run.rounds // ROUNDS_PER_FAULT), FAULTS_PER_LOAD):
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                connection.execute(f"CREATE SCHEMA s{done}")
            run.report(load.problems_after(run.zygote, server.dsn(f"s{done}"), [restart] * FAULTS_PER_LOAD))
            run.progress(f"{done + FAULTS_PER_LOAD:,} kills of the server")


def fail_network(run: Run) -> None:
    """Connections cut, held back and slow, and answers lost, under the same load."""
    fates = [postgres_proxy.UNSENT, postgres_proxy.UNHEARD]
    for done in range(0, max(1, run.rounds // ROUNDS_PER_FAULT), FAULTS_PER_LOAD):
        with run.new_store("postgres") as address, postgres_proxy.Proxy() as network:
            faults = [network.reset, lambda network=network: network.hold_for(run.chance.uniform(0.0, 0.2))]
            faults += [partial(network.trap, words, fate) for words in (b"COMMIT", b"append_plain") for fate in fates]
            if run.chance.random() < 0.3:
                network.dawdle(str(run.chance.random()))
            chosen = run.chance.choices(faults, k=FAULTS_PER_LOAD)
            run.report(load.problems_after(run.zygote, address, chosen, network.through(address)))
        run.progress(f"{done + FAULTS_PER_LOAD:,} failures of the network")


def send_frames(run: Run) -> None:
    """Broken frames, bytes, connections and parameters; an error that the event loop logs is a problem, too."""
    websocket_transport.CLOSE_SECONDS = 0.05
    logged = io.StringIO()
    handler = logging.StreamHandler(logged)
    handler.setLevel(logging.ERROR)
    for logger in (logging.getLogger("asyncio"), websocket_transport.library_logger):
        logger.addHandler(handler)
    for done in range(max(1, run.rounds // ROUNDS_PER_SERIES)):
        series = {
            "lines": rpc_fuzzing.send_lines(run.chance, FRAMES),
            "heads": rpc_fuzzing.open_connections(run.chance, CONNECTIONS, valid_head=False),
            "connections": rpc_fuzzing.open_connections(run.chance, CONNECTIONS, valid_head=True),
            "concurrent requests": rpc_fuzzing.send_concurrent_requests(run.chance, CALLS),
        }
        for name, coroutine in series.items():
            with run.expect(name):
                asyncio.run(coroutine)
                assert logged.getvalue() == ""
            logged.truncate(0)
        run.progress(f"{(done + 1) * (FRAMES + 2 * CONNECTIONS + CALLS):,} frames, connections and calls")


PARTS: dict[str, Callable[[Run], None]] = {
    "races": partial(race, dialect="sqlite"),
    "kills": partial(kill, dialect="sqlite"),
    "keeping": kill_maintenance,
    "disk": fill_disk,
    "interleavings": interleave,
    "random": partial(kill_at_any_time, dialect="sqlite"),
    "flips": partial(damage, trials=file_damage.run_flips, rounds_per_trial=1),
    "wreckage": partial(damage, trials=file_damage.run_trials, rounds_per_trial=ROUNDS_PER_DAMAGE),
    "power": lose_power,
    "postgres-races": partial(race, dialect="postgres"),
    "postgres-kills": partial(kill, dialect="postgres"),
    "postgres-random": partial(kill_at_any_time, dialect="postgres"),
    "gateway": partial(kill_gateways, dialect="sqlite"),
    "postgres-gateway": partial(kill_gateways, dialect="postgres"),
    "postgres-overlaps": overlap,
    "postgres-servers": kill_server,
    "postgres-network": fail_network,
    "frames": send_frames,
}
