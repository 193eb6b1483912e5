"""A client-side deadline for every round trip to a PostgreSQL server.

A frozen server, or a proxy that lost its backend, keeps its connections open: the kernel still acknowledges TCP
keepalives, and the frozen server cannot enforce statement_timeout. Only the client can end such a wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any

# The answer may have been in transit while the probe ran.
GRACE = 1.0

RoundTrip = Generator[Any, Any, Any]


def bound(
    round_trip: RoundTrip, silence: float, total: float, is_working: Callable[[], bool], expire: Callable[[], Exception]
) -> RoundTrip:
    """Wrap a psycopg generator so that it raises `expire()` when the server does not answer.

    After `silence` seconds without a byte in either direction, `is_working` probes whether the server still executes
    the statement. If it does not, or after `total` seconds in any case, `expire` closes the connection and returns the
    error to raise. The outcome of the statement is then unknown.
    """
    probe_at = end = 0.0
    doubtful = False
    try:
        wanted = next(round_trip)
        while True:
            # psycopg's wait loop sends 0 after each interval without an event.
            ready = yield wanted
            if ready:
                probe_at = 0.0
            else:
                now = time.monotonic()
                end = end or now + total
                if not probe_at:
                    probe_at, doubtful = now + silence, False
                elif now > end or (now > probe_at and doubtful):
                    raise expire()
                elif now > probe_at:
                    doubtful = not is_working()
                    probe_at = time.monotonic() + (GRACE if doubtful else silence)
            wanted = round_trip.send(ready)
    except StopIteration as done:
        return done.value
