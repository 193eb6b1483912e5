"""Tracing hooks: what a gateway does and when, for a tracer. Nothing is stored here.

There are three spans: `holdfast.arrival` (an inbound message is received), `holdfast.turn` (it is processed) and
`holdfast.send`. They contain neither message texts nor senders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Literal

Name = Literal["holdfast.arrival", "holdfast.turn", "holdfast.send"]
Value = str | int | float | bool
SetAttribute = Callable[[str, Value], object]
"""Adds an attribute to a running span."""
Tracer = Callable[[Name, Mapping[str, Value]], AbstractContextManager[SetAttribute]]

tracer: Tracer | None = None
"""Entered for each span; it must not block. Set by `app.telemetry`."""


@contextmanager
def span(name: Name, **attributes: Value) -> Iterator[SetAttribute]:
    """Trace the block."""
    if tracer is None:
        yield _ignore
        return
    with tracer(name, {_qualify(key): value for key, value in attributes.items()}) as set_attribute:
        yield lambda key, value: set_attribute(_qualify(key), value)


def _ignore(_key: str, _value: Value) -> None:
    return


def _qualify(key: str) -> str:
    return f"holdfast.{key}"
