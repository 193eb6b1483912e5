"""The metrics of a gateway process, for Prometheus.

Counters belong to this process. Gauges are read from the store and are the same in every process. Labels are platforms
and outcomes, never user data.
"""

from __future__ import annotations

from collections.abc import Mapping

import prometheus_client
from prometheus_client import core

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_PLAIN_0_0_4
TURN_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
_GAUGES = {
    "arrivals_open": ("holdfast_arrivals_open", "Inbound messages without an outcome."),
    "routes_waiting": ("holdfast_routes_waiting", "Chats with inbound messages that have no outcome."),
    "outgoing_open": ("holdfast_outbox_depth", "Outbound messages that are not delivered yet."),
    "outgoing_failed": ("holdfast_outbox_failed", "Outbound messages that failed for good."),
}


class GatewayMetrics:
    """The metrics of one gateway, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = core.CollectorRegistry()
        self._inbound = prometheus_client.Counter(
            "holdfast_inbound", "Inbound messages stored.", ["platform"], registry=self._registry
        )
        self._outcomes = prometheus_client.Counter(
            "holdfast_outcomes", "Inbound messages settled.", ["platform", "outcome"], registry=self._registry
        )
        self._resumed = prometheus_client.Counter(
            "holdfast_resumed", "Inbound messages whose processing had begun before.", registry=self._registry
        )
        self._turns = prometheus_client.Histogram(
            "holdfast_turn_seconds", "Duration of turns.", buckets=TURN_BUCKETS, registry=self._registry
        )

    def count_inbound(self, platform: str) -> None:
        self._inbound.labels(platform).inc()

    def count_attempt(self, attempts: int) -> None:
        if attempts > 1:
            self._resumed.inc()

    def count_outcome(self, platform: str, outcome: str) -> None:
        self._outcomes.labels(platform, outcome).inc()

    def observe_turn(self, seconds: float) -> None:
        self._turns.observe(seconds)

    def render(self, counts: Mapping[str, int]) -> bytes:
        """Return all metrics in the text format; `counts` are those of the store."""
        gauges = core.CollectorRegistry()
        for fact, (name, description) in _GAUGES.items():
            if fact in counts:
                prometheus_client.Gauge(name, description, registry=gauges).set(counts[fact])
        return prometheus_client.generate_latest(self._registry) + prometheus_client.generate_latest(gauges)
