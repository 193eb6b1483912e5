"""Alternating measurements, and statistics of their times."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

Operation = Callable[[int], object]


def interleave(operations: Mapping[str, Operation], rounds: int, block: int = 1) -> dict[str, list[float]]:
    """Run the operations alternately, `block` times each, until each ran `rounds` times; return their seconds."""
    taken: dict[str, list[float]] = {name: [] for name in operations}
    now = time.perf_counter
    for start in range(0, rounds, block):
        for name, operation in operations.items():
            for number in range(start, min(start + block, rounds)):
                began = now()
                operation(number)
                taken[name].append(now() - began)
    return taken


def measure_seconds(operation: Callable[[], object]) -> float:
    began = time.perf_counter()
    operation()
    return time.perf_counter() - began


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def medians(taken: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: median(values) for name, values in taken.items()}
