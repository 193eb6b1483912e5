"""Several processes on one file: throughput, fairness and the longest wait.

The floor waits by SQLite's busy_timeout. Medians and percentiles hide starvation, so the process with the fewest
appends and the longest single wait are always shown.
"""

from __future__ import annotations

import random
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from bench import systems, timing
from bench.figures import Figure, Target, at_least, at_most
from bench.scale import Scale
from bench.worker_processes import WorkerProcesses

MILLISECONDS = 1e3
Waits = list[float]


def figures(scale: Scale, folder: Path) -> Iterator[Figure]:
    with WorkerProcesses(scale.processes) as workers:
        yield from _closed_loop(scale, folder, workers)
        yield from _open_loop(scale, folder, workers)
        yield from _one_conversation(scale, folder, workers)


# --- jobs, run in the worker processes ------------------------------------------------------------------


def closed_loop(index: int, system: str, path: str, warm_up: int, seconds: float) -> Generator[None, None, Waits]:
    """Append without pause to a separate conversation."""
    with closing(systems.SYSTEMS[system](Path(path))) as store:
        conversation = f"process-{index}"
        for number in range(warm_up):
            store.append(conversation, number)
        yield
        waits: Waits = []
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            store.append(conversation, len(waits))
            waits.append(time.perf_counter() - began)
        return waits


def open_loop(index: int, system: str, path: str, rate: int, seconds: float) -> Generator[None, None, Waits]:
    """Append every 1/rate seconds, whether the previous append has finished or not."""
    with closing(systems.SYSTEMS[system](Path(path))) as store:
        conversation = f"process-{index}"
        for number in range(rate // 5):
            store.append(conversation, number)
        yield
        waits: Waits = []
        due = ended = time.perf_counter() + random.Random(index).random() / rate
        for number in range(int(rate * seconds)):
            late = ended > due
            if not late:
                time.sleep(max(0.0, due - time.perf_counter()))
            # An append that is delayed by the previous one has waited since it was due.
            began = due if late else time.perf_counter()
            store.append(conversation, number)
            ended = time.perf_counter()
            waits.append(ended - began)
            due += 1 / rate
        return waits


def shared(index: int, system: str, path: str, appends: int) -> Generator[None, None, tuple[Waits, int]]:
    """Append to a shared conversation; return the waits, and the number of refused appends."""
    with closing(systems.SYSTEMS[system](Path(path))) as store:
        yield
        waits: Waits = []
        refused = 0
        for number in range(appends):
            began = time.perf_counter()
            try:
                store.append("shared", index * appends + number)
            except Exception:  # noqa: BLE001 -- peers raise different errors
                refused += 1
            waits.append(time.perf_counter() - began)
        return waits, refused


# --- figures -----------------------------------------------------------------------------------------


def _closed_loop(scale: Scale, folder: Path, workers: WorkerProcesses) -> Iterator[Figure]:
    alone: list[float] = []
    every: dict[str, list[list[Waits]]] = {name: [] for name in systems.SYSTEMS}
    for _ in range(scale.writer_rounds):
        alone.append(len(_closed(scale, folder, workers, "holdfast", 1)[0]) / scale.seconds)
        for name, rounds in every.items():
            rounds.append(_closed(scale, folder, workers, name, scale.processes))
    rates = {name: timing.median([sum(map(len, waits)) for waits in every[name]]) / scale.seconds for name in every}
    fewest, most = {}, {}
    for name, rounds in every.items():
        fewest[name], most[name] = _typical([(min(map(len, waits)), max(map(len, waits))) for waits in rounds])
    worst = {name: max(max(waits) for r in every[name] for waits in r if waits) * MILLISECONDS for name in every}
    who = f"{scale.processes} processes, closed loop"
    baseline = ("one process", timing.median(alone))
    yield _figure("writers.rate", f"{who}: appends per second", "/s", rates, baseline, at_least(0.9))
    fair = _figure("writers.fair", f"{who}: fewest of a process", "", fewest, ("most", most["holdfast"]), at_least(0.8))
    peers = [name for name in every if name != "holdfast"]
    extremes = {f"{name} fewest": fewest[name] for name in peers} | {f"{name} most": most[name] for name in peers}
    yield replace(fair, others=extremes)
    yield _figure("writers.worst", f"{who}: worst wait", "ms", worst, None, at_most(250, "value"))


def _closed(scale: Scale, folder: Path, workers: WorkerProcesses, system: str, members: int) -> list[Waits]:
    with _create_store(folder, system, f"closed-{members}") as path:
        return workers.run(closed_loop, members, system, path, scale.warm_up // members, scale.seconds)


def _typical(rounds: list[tuple[int, int]]) -> tuple[int, int]:
    """Return the fewest and most appends of the round with the median fairness."""
    return sorted(rounds, key=lambda round_: round_[0] / round_[1])[len(rounds) // 2]


def _figure(
    key: str,
    name: str,
    unit: str,
    values: Mapping[str, float],
    baseline: tuple[str, float] | None = None,
    target: Target | None = None,
) -> Figure:
    others = {system: value for system, value in values.items() if system != "holdfast"}
    return Figure(key, name, unit, values["holdfast"], baseline, target, others)


@contextmanager
def _create_store(folder: Path, system: str, label: str) -> Iterator[str]:
    """Yield the path of an existing store that stays open, so that its creation is not measured."""
    path = systems.path_of(folder, system, label)
    with closing(systems.SYSTEMS[system](path)):
        yield str(path)


def _open_loop(scale: Scale, folder: Path, workers: WorkerProcesses) -> Iterator[Figure]:
    every: dict[str, list[Waits]] = {name: [] for name in systems.SYSTEMS}
    for _ in range(scale.writer_rounds):
        for name, rounds in every.items():
            with _create_store(folder, name, "open") as path:
                lists = workers.run(open_loop, scale.processes, name, path, scale.rate, scale.seconds)
            rounds.append([wait * MILLISECONDS for waits in lists for wait in waits])
    who = f"{scale.processes} x {scale.rate}/s, open loop"
    p99 = {name: timing.median([timing.percentile(r, 0.99) for r in rounds]) for name, rounds in every.items()}
    worst = {name: max(map(max, rounds)) for name, rounds in every.items()}
    yield _figure("open.p99", f"{who}: p99", "ms", p99, None, at_most(5, "value"))
    yield _figure("open.worst", f"{who}: worst wait", "ms", worst)


def _one_conversation(scale: Scale, folder: Path, workers: WorkerProcesses) -> Iterator[Figure]:
    total = scale.shared_processes * scale.shared_appends
    lost, refused, worst = {}, {}, {}
    for name, system in systems.SYSTEMS.items():
        path = systems.path_of(folder, name, "shared")
        with closing(system(path)) as store:
            store.append("shared", 0)
            results = workers.run(shared, scale.shared_processes, name, str(path), scale.shared_appends)
            refused[name] = sum(count for _, count in results)
            lost[name] = 1 + total - refused[name] - store.load("shared")
        worst[name] = max(max(waits) for waits, _ in results) * MILLISECONDS
    who = f"{scale.shared_processes} processes, one conversation, {total} appends"
    yield _figure("shared.lost", f"{who}: lost", "", lost, None, at_most(0, "value"))
    yield _figure("shared.refused", f"{who}: refused", "", refused, None, at_most(0, "value"))
    yield _figure("shared.worst", f"{who}: worst wait", "ms", worst, None, at_most(250, "value"))
