"""Long, seeded fault runs: `python -m tests.chaos --seed S --rounds N` (empty: a new seed, 5,000 rounds).

Every part prints what it did as it goes; anything found wrong is printed in full at the end, with the
seed, and the exit code is 1. `--minutes` bounds the whole, `--only` picks parts.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from holdfast.store.db import SessionDB
from tests.chaos import gateway, mixed, rpc
from tests.chaos import postgres as chaos_postgres
from tests.chaos.run import Run, Wrong
from tests.faults import (
    agent_processes,
    checker,
    disk_faults,
    file_damage,
    interleavings,
    kill_points,
    maintenance_kills,
    power,
    races,
    steps,
    zygote,
)
from tests.support import memory_folders, postgres

ROUNDS, PROCESSES, KILLS = 5_000, 32, 200
BATCH, SOME = 50, 10
WRITES = 100
# A damaged store is read, examined and salvaged: one trial takes as long as some five rounds of anything else.
ROUNDS_A_TRIAL = 5


def race(run: Run, dialect: str) -> Iterator[str]:
    """All processes at every race in turn, and longest at the one where everybody compacts and writes."""
    done, kinds = 0, list(races.RACES)
    processes, limit = (run.processes, run.rounds) if dialect == "sqlite" else (16, max(1, 2 * run.rounds // 5))
    while done < limit and run.goes_on():
        kind = kinds[0] if done // BATCH % 2 == 0 else kinds[done // BATCH // 2 % len(kinds)]
        rounds = min(BATCH, limit - done)
        with run.new_store(dialect) as store:
            with SessionDB(store) as db:
                steps.say(db, "c", 4)
            outcomes = run.zygote.run_all(races.run, store, {"race": kind, "rounds": rounds}, processes)
            yield from (Wrong(f"{kind}: {outcome.error}") for outcome in outcomes if outcome.error)
            with SessionDB(store) as db:
                yield from map(Wrong, checker.verify(db, zygote.records(outcomes)))
        done += rounds
        yield f"{processes} processes x {done:,} rounds"


def agents(run: Run) -> Iterator[str]:
    """Agents that compact one conversation while others append to it: 8 and 8, again and again, some of them new."""
    done, limit = 0, max(1, run.rounds // 5)
    while done < limit and run.goes_on():
        path, said = run.folder / f"agents{done}.db", list[str]()
        with SessionDB(path) as db:
            db.create_session("talk", source="chaos")
            agent_processes.fill(db, "talk", 30)
        for round_ in range(min(SOME, limit - done)):
            args = {"conversation": "talk", "force": True, "round": round_, "appends": 5}
            outcomes = run.zygote.run_all(agent_processes.compact_or_append, path, args, 16)
            yield from (Wrong(f"agents: {outcome.error}") for outcome in outcomes if outcome.error)
            said += [f"{round_}:{index}:{number}" for index in range(1, 16, 2) for number in range(5)]
            with SessionDB(path) as db:
                yield from map(Wrong, agent_processes.compaction_problems(db, "talk", said))
                agent_processes.fill(db, "talk", 12, begin=100 + 20 * round_)
        done += SOME
        kill_points.remove(path)
        yield f"8 compacting agents and 8 appenders x {done:,} rounds"


def kill(run: Run, dialect: str) -> Iterator[str]:
    """Kills at every point of every step, some at a time; in files also once before every write to the disk."""
    count, writes = 0, 0
    for turn in range(0, run.kills, SOME):
        for name in run.chance.sample(list(steps.STEPS), len(steps.STEPS)):
            if not run.goes_on():
                return
            some = min(SOME, run.kills - turn)
            try:
                if dialect == "postgres":
                    with run.new_store(dialect) as address:
                        count += kill_points.kill_clients_at_every_point(run.zygote, address, name, some)
                else:
                    count += kill_points.kill_at_every_point(run.zygote, run.folder, name, lambda _, n=some: n).total()
                    writes += 0 if turn else kill_points.kill_at_every_write(run.zygote, run.folder, name)
            except AssertionError as error:
                yield Wrong(f"{name}: {error}")
            for left in run.folder.glob("*.db"):
                kill_points.remove(left)
            yield f"{count:,} kills at points ({turn + SOME} at each), {writes:,} between writes"


def kill_keeping(run: Run) -> Iterator[str]:
    """Backup, restore, prune, deletion, scrub, import and salvage: kills at every point of each and before writes to
    the disk, each time in other histories."""
    count, writes = 0, 0
    for turn in range(0, run.kills, SOME):
        some = min(SOME, run.kills - turn)
        seeds = [2 * run.chance.randrange(1 << 30) + number % 2 for number in range(5)]
        with memory_folders.folder() as folder:
            stock = maintenance_kills.Stock(run.zygote, Path(folder), seeds)
            for act in run.chance.sample(list(maintenance_kills.ACTS), len(maintenance_kills.ACTS)):
                if not run.goes_on():
                    return
                try:
                    count += maintenance_kills.kill_at_every_point(stock, act, some, run.chance).total()
                    writes += 0 if turn else maintenance_kills.kill_between_writes(stock, act, WRITES)
                except AssertionError as error:
                    yield Wrong(f"{act}: {error}")
                yield f"{count:,} kills at points ({turn + some} at each), {writes:,} between writes"


def create(run: Run) -> Iterator[str]:
    """A store's first creation, killed before every write to the disk."""

    def works(path: Path) -> None:
        with SessionDB(path) as db:
            steps.say(db, "c", 1)
            assert checker.verify(db) == [], path.name

    try:
        yield f"{kill_points.kill_creation(run.zygote, run.folder, works):,} kills between writes"
    except AssertionError as error:
        yield Wrong(f"creation: {error}")


def fill_disk(run: Run) -> Iterator[str]:
    """A disk that is full at any write of any step and of a store's creation, in every way."""
    tried = 0
    for how in disk_faults.HOWS:
        for name in [None, *run.chance.sample(list(steps.STEPS), len(steps.STEPS))]:
            if not run.goes_on():
                return
            with memory_folders.folder() as folder:
                try:
                    if name is None:
                        tried += len(disk_faults.sweep_creation(run.zygote, Path(folder), how))
                    else:
                        tried += len(disk_faults.sweep_step(run.zygote, Path(folder), name, how))
                except AssertionError as error:
                    yield Wrong(f"{name or 'creation'}, {how}: {error}")
            yield f"{tried:,} disks that were full"


def interleave(run: Run) -> Iterator[str]:
    """Every interleaving of larger casts than an ordinary run plays."""
    played = 0
    for name, cast in interleavings.LARGE.items():
        if not run.goes_on():
            return
        result = interleavings.every_schedule(cast)
        yield from (Wrong(f"{name}: {problem}") for problem in result.problems)
        played += result.count
        yield f"{played:,} interleavings"


def kill_at_any_time(run: Run, dialect: str) -> Iterator[str]:
    """Processes doing anything, killed or stopped for a while at any instant, until all are gone."""
    killed = 0
    while killed < run.rounds and run.goes_on():
        with run.new_store(dialect) as store:
            yield from map(Wrong, mixed.kill_at_any_time(run.zygote, store, BATCH, run.chance))
        killed += 3 * BATCH
        yield f"{killed:,} processes killed at any time"


def flip(run: Run) -> Iterator[str]:
    """Single bits of the file."""
    return _damage(run, run.rounds, file_damage.run_flips)


def wreck(run: Run) -> Iterator[str]:
    """Bits, pages and whole stretches of the file and its log, damaged; and what is salvaged of them."""
    return _damage(run, max(1, run.rounds // ROUNDS_A_TRIAL), file_damage.run_trials)


def _damage(
    run: Run, limit: int, trials: Callable[[file_damage.Bench, random.Random, int], list[str]]
) -> Iterator[str]:
    bench, done = file_damage.Bench(run.folder, run.zygote), 0
    while done < limit and run.goes_on():
        count = min(BATCH, limit - done)
        yield from map(Wrong, trials(bench, run.chance, count))
        done += count
        yield f"{done:,} damaged stores"


def pull_the_plug(run: Run) -> Iterator[str]:
    """Disks as a loss of power may leave them, after any write and with any part of what was not synced."""
    notes, done, lives = run.folder / "notes", 0, 0
    while done < run.rounds and run.goes_on():
        path = run.folder / f"life{lives}.db"
        outcome = run.zygote.run(power.live, path, {"durability": "power-loss", "notes": str(notes)})
        yield from [Wrong(outcome.error)] if outcome.error else []
        for moment in power.moments(notes, run.chance):
            yield from map(Wrong, power.wrong(moment, run.folder / f"disk{done}"))
            done += 1
            if done % BATCH == 0:
                yield f"{done:,} losses of power"
        lives += 1


PARTS: dict[str, Callable[[Run], Iterator[str]]] = {
    "agents": agents,
    "races": partial(race, dialect="sqlite"),
    "kills": partial(kill, dialect="sqlite"),
    "keeping": kill_keeping,
    "creation": create,
    "disk": fill_disk,
    "interleavings": interleave,
    "random": partial(kill_at_any_time, dialect="sqlite"),
    "flips": flip,
    "wreckage": wreck,
    "power": pull_the_plug,
    "postgres-races": partial(race, dialect="postgres"),
    "postgres-kills": partial(kill, dialect="postgres"),
    "postgres-random": partial(kill_at_any_time, dialect="postgres"),
    **gateway.PARTS,
    **chaos_postgres.PARTS,
    **rpc.PARTS,
}


def main() -> int:
    options = _options()
    postgres.begin_run()
    print(f"seed {options.seed}", flush=True)
    began, wrong = time.monotonic(), list[str]()
    for name in options.only:
        until = float("inf") if options.minutes is None else time.monotonic() + options.minutes * 60 / len(options.only)
        wrong += _played(name, options, until)
    print(f"{len(wrong)} wrong in {time.monotonic() - began:.0f} s: {', '.join(options.only)}; seed {options.seed}")
    for line in wrong[:100]:
        print(f"  {line}")
    return 1 if wrong else 0


def _played(name: str, options: argparse.Namespace, until: float) -> list[str]:
    wrong: list[str] = []
    shown = 0.0
    with zygote.Zygote() as running, memory_folders.folder() as folder:
        chance = random.Random(f"{options.seed} {name}")
        run = Run(running, Path(folder), chance, options.rounds, options.processes, options.kills, until)
        line = "nothing"
        for line in PARTS[name](run):
            if isinstance(line, Wrong):
                wrong.append(f"{name}: {line}")
            elif time.monotonic() - shown > 5:
                shown = time.monotonic()
                print(f"{name}: {line}", flush=True)
            if len(wrong) > 100:
                break
    print(f"{name}: {line}, {len(wrong)} wrong", flush=True)
    return wrong


def _options() -> argparse.Namespace:
    def number(text: str) -> int:
        return int(text) if text else 0

    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", default="", help="any text; empty: a new one")
    parser.add_argument("--rounds", type=number, default=0, help=f"empty: {ROUNDS:,}")
    parser.add_argument("--processes", type=number, default=0, help=f"empty: {PROCESSES}")
    parser.add_argument("--kills", type=number, default=0, help=f"kills at each point; empty: {KILLS}")
    parser.add_argument("--minutes", type=float, help="stop after so many, whatever was reached")
    parser.add_argument("--only", action="append", choices=list(PARTS), help="a part; may be given again")
    options = parser.parse_args()
    options.seed = options.seed or f"{random.SystemRandom().getrandbits(32):08x}"
    options.rounds = options.rounds or ROUNDS
    options.processes = options.processes or PROCESSES
    options.kills = options.kills or KILLS
    options.only = options.only or list(PARTS)
    return options


if __name__ == "__main__":
    sys.exit(main())
