"""A small step: one that changes a row or two, and refuses, if it does, before it changes anything.

It is checked before its first attempt, and done by itself or in a transaction with those of others (`grouping`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

from holdfast import errors
from holdfast.store import port

T = TypeVar("T")
P = ParamSpec("P")


class Step(NamedTuple, Generic[T]):
    """A step, checked, for any number of attempts."""

    operation: str
    run: Callable[[port.Tx], T]
    lasting: bool = True
    refused: errors.HoldfastError | None = None
    """What it means that the database refused it, where that has a meaning."""


def done(driver: port.Driver, step: Step[T]) -> T:
    """Have it done, by itself."""
    try:
        return driver.write(step.operation, step.run, lasting=step.lasting)
    except errors.StoreRefused:
        if step.refused is None:
            raise
    # Outside of the handler: the error at hand may quote the row that was refused.
    raise step.refused


class HasDriver(Protocol):
    """Whoever such steps are prepared by."""

    driver: port.Driver


S = TypeVar("S", bound=HasDriver)


def alone(prepare: Callable[Concatenate[S, P], Step[T]]) -> Callable[Concatenate[S, P], T]:
    """The method that has a step done by itself, from the one that prepares it: same arguments."""

    @functools.wraps(prepare)
    def call(db: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return done(db.driver, prepare(db, *args, **kwargs))

    return call
