"""What a gateway counts, in the text format of Prometheus.

Counts are those of this process since it began, as Prometheus adds up processes itself; what waits is read from the
store, and is the same in all of them. Nothing that somebody wrote is in here: labels are platforms and outcomes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST = 1_000
"""So many different labels are counted apart; whatever comes after them is counted as `other`."""

_TOLD = {
    "holdfast_inbound_total": "Messages that came in and were stored.",
    "holdfast_outcomes_total": "What became of messages.",
    "holdfast_resumed_total": "Messages taken over: their work had been begun before, here or elsewhere.",
}
_STANDS = {
    "arrivals_open": ("holdfast_arrivals_open", "Messages without an outcome."),
    "routes_waiting": ("holdfast_routes_waiting", "Chats with messages that have no outcome."),
    "outgoing_open": ("holdfast_outbox_depth", "What is to be sent and was not yet."),
    "outgoing_failed": ("holdfast_outbox_failed", "What could not be sent, for good."),
}


class Meter:
    """The counts of one process."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
        self._turns = [0] * (len(BUCKETS) + 1)
        self._seconds = 0.0

    def came(self, platform: str) -> None:
        self._count("holdfast_inbound_total", platform=platform)

    def begun(self, attempts: int) -> None:
        if attempts > 1:
            self._count("holdfast_resumed_total")

    def settled(self, platform: str, outcome: str) -> None:
        self._count("holdfast_outcomes_total", platform=platform, outcome=outcome)

    def turn(self, seconds: float) -> None:
        self._turns[bisect_left(BUCKETS, seconds)] += 1
        self._seconds += seconds

    def _count(self, name: str, **labels: str) -> None:
        key = (name, tuple(labels.items()))
        if key not in self._counts and len(self._counts) >= MOST:
            key = (name, tuple((label, "other") for label in labels))
        self._counts[key] += 1

    def text(self, facts: Mapping[str, int]) -> str:
        """All of it; `facts` are those of the store."""
        lines = list[str]()
        for name, told in _TOLD.items():
            lines += [f"# HELP {name} {told}", f"# TYPE {name} counter"]
            found = [(labels, count) for (each, labels), count in self._counts.items() if each == name]
            lines += [f"{name}{_labels(labels)} {count}" for labels, count in sorted(found)]
            if not found and name == "holdfast_resumed_total":
                lines.append(f"{name} 0")
        for fact, (name, told) in _STANDS.items():
            if fact in facts:
                lines += [f"# HELP {name} {told}", f"# TYPE {name} gauge", f"{name} {facts[fact]}"]
        return "\n".join([*lines, *self._histogram()]) + "\n"

    def _histogram(self) -> list[str]:
        name, sofar = "holdfast_turn_seconds", 0
        lines = [f"# HELP {name} How long turns took.", f"# TYPE {name} histogram"]
        for most, count in zip((*map(repr, BUCKETS), "+Inf"), self._turns, strict=True):
            sofar += count
            lines.append(f'{name}_bucket{{le="{most}"}} {sofar}')
        return [*lines, f"{name}_sum {self._seconds:.6f}", f"{name}_count {sofar}"]


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    inner = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{inner}}}" if inner else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
