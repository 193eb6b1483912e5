"""Versions and differences of the declared schema, as both drivers use them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Execute = Callable[..., Iterable[Sequence[Any]]]
MISSING = "is missing"


class Plan(NamedTuple):
    """The format and revision this version writes, and the statements that convert data of an older format."""

    format: int = 1
    revision: int = 9
    steps: Mapping[int, Sequence[str]] = {}
    begin: bool = True  # whether to create a store if there is none


PLAN = Plan()


class Fault(NamedTuple):
    """A part of the schema that differs from its declaration. A repairable one is recreated without changing a row."""

    kind: str
    name: str
    what: str
    repairable: bool

    def __str__(self) -> str:
        return f"the {self.kind} {self.name} {self.what}"


def columns(sql: str) -> list[tuple[str, str]]:
    """Return name and definition of each column of a CREATE TABLE statement; none of a virtual table.

    Our schema files declare one column per line, before the table constraints.
    """
    if not sql.startswith("CREATE TABLE"):
        return []
    lines = [line.strip().rstrip(",") for line in sql.splitlines()[1:-1]]
    return [(line.split()[0], line) for line in lines if line and line.split()[0].islower()]
