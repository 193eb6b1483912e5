"""Taking turns, and what to say about the times that come out."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

Operation = Callable[[int], object]


def interleaved(operations: Mapping[str, Operation], rounds: int, block: int = 1) -> dict[str, list[float]]:
    """Seconds of each operation: they take turns, `block` times each, until each was done `rounds` times."""
    taken: dict[str, list[float]] = {name: [] for name in operations}
    now = time.perf_counter
    for start in range(0, rounds, block):
        for name, operation in operations.items():
            for number in range(start, min(start + block, rounds)):
                began = now()
                operation(number)
                taken[name].append(now() - began)
    return taken


def timed(operation: Callable[[], object]) -> float:
    began = time.perf_counter()
    operation()
    return time.perf_counter() - began


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def medians(taken: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: median(values) for name, values in taken.items()}
