"""One writer: appends, reads of the whole log, and the size of the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from bench import systems, timing
from bench.figures import Figure, Target, at_most, compare
from bench.scale import Scale

MICROSECONDS, MILLISECONDS = 1e6, 1e3
Times = dict[str, list[float]]


def figures(scale: Scale, folder: Path) -> Iterator[Figure]:
    with systems.open_all(folder, "append-FULL", "FULL") as all_systems:
        operations = _warm(scale, all_systems)
        first = timing.interleave(operations, scale.appends)
        after = timing.interleave(operations, scale.appends)
        # A disk serves repeated requests of one file faster, so the floor is faster in uninterrupted runs.
        alone = timing.interleave(operations, scale.appends, scale.block)
    yield from _append_figures("full", "FULL", first, at_most(1.4))
    name = f"append p50, FULL, in runs of {scale.block}"
    yield compare("append.full.alone", name, "µs", timing.medians(alone), None, MICROSECONDS)
    yield _drift(scale, first, after)
    with systems.open_all(folder, "append-NORMAL", "NORMAL") as all_systems:
        first = timing.interleave(_warm(scale, all_systems), scale.appends)
    yield from _append_figures("normal", "NORMAL", first, None)
    yield _file_size(folder)
    yield from _load(scale, folder)


def _warm(scale: Scale, all_systems: Mapping[str, systems.System]) -> dict[str, timing.Operation]:
    operations: dict[str, timing.Operation] = {
        name: partial(system.append, "one") for name, system in all_systems.items()
    }
    timing.interleave(operations, scale.warm_up)
    return operations


def _append_figures(key: str, sync: str, taken: Times, target: Target | None) -> Iterator[Figure]:
    yield compare(f"append.{key}.p50", f"append p50, {sync}", "µs", timing.medians(taken), target, MICROSECONDS)
    p99 = {name: timing.percentile(values, 0.99) for name, values in taken.items()}
    yield compare(f"append.{key}.p99", f"append p99, {sync}", "µs", p99, None, MICROSECONDS)
    rates = {name: len(values) / sum(values) for name, values in taken.items()}
    yield compare(f"append.{key}.rate", f"appends per second, {sync}", "/s", rates)


def _drift(scale: Scale, first: Times, after: Times) -> Figure:
    """Return how much slower appends became, relative to the floor, so that changes of the machine cancel out."""
    before, later = timing.medians(first), timing.medians(after)
    drift = {name: later[name] / before[name] for name in before}
    name = f"append p50 after {scale.appends:,} more, relative to before"
    return compare("append.full.drift", name, "x", drift, at_most(1.2))


def _file_size(folder: Path) -> Figure:
    """Return the sizes after the last close, which leaves no WAL behind."""
    sizes = {name: _bytes(systems.path_of(folder, name, "append-FULL")) for name in systems.SYSTEMS}
    return compare("file.size", "file, same messages", "MB", sizes, at_most(1.5), 1e-6)


def _bytes(path: Path) -> float:
    return float(sum(file.stat().st_size for file in path.parent.glob(path.name + "*")))


def _load(scale: Scale, folder: Path) -> Iterator[Figure]:
    with systems.open_all(folder, "load", "NORMAL") as all_systems:
        for system in all_systems.values():
            for number in range(scale.load):
                system.append("one", number)
        ours = all_systems["holdfast"]
        assert isinstance(ours, systems.Holdfast)
        readers: dict[str, timing.Operation] = {name: _reader(system) for name, system in all_systems.items()}
        readers["context"] = lambda _: ours.db.context("one")
        taken = timing.medians(timing.interleave(readers, scale.load_rounds))
    context = taken.pop("context")
    yield _load_figure(scale, "transcript", taken)
    yield _load_figure(scale, "context", {**taken, "holdfast": context})


def _reader(system: systems.System) -> timing.Operation:
    return lambda _: system.load("one")


def _load_figure(scale: Scale, what: str, taken: Mapping[str, float]) -> Figure:
    name = f"load {scale.load:,} messages, {what}"
    return compare(f"load.{what}", name, "ms", taken, at_most(2), MILLISECONDS)
