"""The long fault runs over PostgreSQL: races, kills of clients and of the server, and a network that keeps failing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import psycopg

from holdfast.store.db import SessionDB
from tests.chaos.run import Run, Wrong
from tests.faults import checker, kill_points, load, overlapping_calls, races, steps, zygote
from tests.support import postgres, postgres_proxy

BATCH, SOME = 50, 10
# Processes of a race: half of them compact, half of them write.
PROCESSES = 16
# A harm to the server or the network takes as long as so many rounds of anything else.
ROUNDS_A_HARM = 50
HARMS_A_STORM = 20


def race(run: Run) -> Iterator[str]:
    """Eight compactors and eight appenders for most of the rounds, every other race in turn for the rest."""
    done, kinds, limit = 0, list(races.RACES), max(1, run.rounds // 5)
    while done < 2 * limit and run.goes_on():
        kind = "compact and append" if done // BATCH % 2 == 0 else kinds[done // BATCH // 2 % len(kinds)]
        address, rounds = postgres.fresh(), min(BATCH, 2 * limit - done)
        with SessionDB(address) as db:
            steps.say(db, "c", 4)
        outcomes = run.zygote.crowd(races.run, address, {"race": kind, "rounds": rounds}, PROCESSES)
        yield from (Wrong(f"{kind}: {outcome.error}") for outcome in outcomes if outcome.error)
        with SessionDB(address) as db:
            yield from map(Wrong, checker.verify(db, zygote.records(outcomes)))
        postgres.give_back(address)
        done += rounds
        yield f"{PROCESSES} processes x {done:,} rounds, half of them of compactors against appenders"


def kill(run: Run) -> Iterator[str]:
    """Clients killed at every point of every step, some at a time."""
    count = 0
    for turn in range(0, run.kills, SOME):
        for name in run.chance.sample(list(steps.STEPS), len(steps.STEPS)):
            if not run.goes_on():
                return
            address, some = postgres.fresh(), min(SOME, run.kills - turn)
            try:
                count += kill_points.kill_clients_at_every_point(run.zygote, address, name, some)
            except AssertionError as error:
                yield Wrong(f"{name}: {error}")
            postgres.give_back(address)
            yield f"{count:,} kills of clients at points ({turn + SOME} at each)"


def kill_at_any_time(run: Run) -> Iterator[str]:
    """Clients that do anything, killed or stopped for a while at any instant."""
    killed = 0
    while killed < run.rounds and run.goes_on():
        address = postgres.fresh()
        yield from map(Wrong, load.kill_at_any_time(run.zygote, address, BATCH, run.chance))
        postgres.give_back(address)
        killed += 3 * BATCH
        yield f"{killed:,} clients killed at any time"


def overlap(run: Run) -> Iterator[str]:
    """Every pair of calls that overlap, again and again."""
    done = 0
    for _ in range(max(1, run.rounds // len(overlapping_calls.PAIRS) // 5)):
        address = postgres.fresh()
        with overlapping_calls.open_overlap(address) as pair:
            for first, second in run.chance.sample(overlapping_calls.PAIRS, len(overlapping_calls.PAIRS)):
                if not run.goes_on():
                    return
                yield from map(Wrong, pair.play(first, second))
                done += 1
                yield f"{done:,} pairs of calls"
        postgres.give_back(address)


def kill_server(run: Run) -> Iterator[str]:
    """The server killed under four writers and two compactors, again and again; it syncs to its disk."""
    done, took, limit = 0, list[float](), max(1, run.rounds // ROUNDS_A_HARM)
    with postgres.Server(fsync=True) as server:

        def strike() -> None:
            time.sleep(run.chance.uniform(0.0, 0.05))
            server.kill()
            began = time.monotonic()
            server.start()
            took.append(time.monotonic() - began)

        while done < limit and run.goes_on():
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                connection.execute(f"CREATE SCHEMA s{done}")
            with load.Load(run.zygote, server.dsn(f"s{done}")) as clients:
                for _ in range(HARMS_A_STORM):
                    clients.harm(strike)
            yield from map(Wrong, clients.wrongs())
            done += HARMS_A_STORM
            yield f"{done:,} kills of the server, back after {max(took):.2f} s at most"


def fail_network(run: Run) -> Iterator[str]:
    """Connections cut, held back and slow, answers lost and backends terminated, under the same load."""
    done, limit = 0, max(1, run.rounds // ROUNDS_A_HARM)
    while done < limit and run.goes_on():
        address = postgres.fresh()
        with postgres_proxy.Proxy() as network:
            if run.chance.random() < 0.3:
                network.dawdle(str(run.chance.random()))
            harms = _harms(run, network)
            with load.Load(run.zygote, address, network.through(address)) as clients:
                for _ in range(HARMS_A_STORM):
                    clients.harm(run.chance.choice(harms))
            yield from map(Wrong, clients.wrongs())
        postgres.give_back(address)
        done += HARMS_A_STORM
        yield f"{done:,} failures of the network"


def _harms(run: Run, network: postgres_proxy.Proxy) -> list[Callable[[], object]]:
    def hold() -> None:
        network.hold()
        threading.Timer(run.chance.uniform(0.0, 0.2), network.flow).start()

    return [
        network.reset,
        hold,
        lambda: network.trap(b"COMMIT", run.chance.choice([postgres_proxy.UNSENT, postgres_proxy.UNHEARD])),
        lambda: network.trap(b"append_plain", run.chance.choice([postgres_proxy.UNSENT, postgres_proxy.UNHEARD])),
    ]


PARTS: dict[str, Callable[[Run], Iterator[str]]] = {
    "postgres-races": race,
    "postgres-kills": kill,
    "postgres-random": kill_at_any_time,
    "postgres-overlaps": overlap,
    "postgres-servers": kill_server,
    "postgres-network": fail_network,
}
