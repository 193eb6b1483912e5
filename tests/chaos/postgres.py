"""The long fault runs that only PostgreSQL has: overlapping calls, kills of the server, and a failing network."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import psycopg

from tests.chaos.run import Run, Wrong
from tests.faults import load, overlapping_calls
from tests.support import postgres, postgres_proxy

# A harm to the server or the network takes as long as so many rounds of anything else.
ROUNDS_A_HARM = 50
HARMS_A_STORM = 20


def overlap(run: Run) -> Iterator[str]:
    """Every pair of calls that overlap, again and again."""
    done = 0
    for _ in range(max(1, run.rounds // len(overlapping_calls.PAIRS) // 5)):
        with run.new_store("postgres") as address, overlapping_calls.open_overlap(address) as pair:
            for first, second in run.chance.sample(overlapping_calls.PAIRS, len(overlapping_calls.PAIRS)):
                if not run.goes_on():
                    return
                yield from map(Wrong, pair.play(first, second))
                done += 1
                yield f"{done:,} pairs of calls"


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
        with run.new_store("postgres") as address, postgres_proxy.Proxy() as network:
            if run.chance.random() < 0.3:
                network.dawdle(str(run.chance.random()))
            harms = _harms(run, network)
            with load.Load(run.zygote, address, network.through(address)) as clients:
                for _ in range(HARMS_A_STORM):
                    clients.harm(run.chance.choice(harms))
            yield from map(Wrong, clients.wrongs())
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
    "postgres-overlaps": overlap,
    "postgres-servers": kill_server,
    "postgres-network": fail_network,
}
