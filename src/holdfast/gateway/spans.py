"""Spans: what a gateway does, from when to when, for whoever traces it. Nothing is kept here.

Three kinds: `holdfast.arrival` (something is taken in), `holdfast.turn` (it is worked on) and `holdfast.send`. What
people write is in none of them, nor who they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Literal

Name = Literal["holdfast.arrival", "holdfast.turn", "holdfast.send"]
Value = str | int | float | bool
Put = Callable[[str, Value], object]
"""Says something of a span that became known while it lasted."""
Around = Callable[[Name, Mapping[str, Value]], AbstractContextManager[Put]]

around: Around | None = None
"""Entered when a span begins and left when it ends, with what it raised; it must not wait. Set by who traces."""


@contextmanager
def span(name: Name, **attributes: Value) -> Iterator[Put]:
    """From here to the end of the block."""
    if around is None:
        yield _nothing
        return
    with around(name, {_named(key): value for key, value in attributes.items()}) as put:
        yield lambda key, value: put(_named(key), value)


def _nothing(_key: str, _value: Value) -> None:
    """Nobody traces."""


def _named(key: str) -> str:
    return f"holdfast.{key}"
