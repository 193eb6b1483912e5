"""A small step: one that changes a row or two, and refuses, if it does, before it changes anything.

It is checked before its first attempt, and done by itself or in a transaction with those of others (`grouping`).
"""

from __future__ import annotations

import functools
import logging
import time
import weakref
from collections.abc import Callable
from typing import Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

from holdfast import errors
from holdfast.store import port

logger = logging.getLogger("holdfast.store")
T = TypeVar("T")
P = ParamSpec("P")

# Errors of the whole store: they concern every step that shares a commit.
STORE_WIDE = (
    errors.StoreBusy,
    errors.StoreFull,
    errors.StoreUnreachable,
    errors.StoreMoved,
    errors.StoreClosed,
    errors.StoreForked,
)
# After a restore that did not help, seconds until the next is tried.
RESTORE_PAUSE = 60.0
_restored_in_vain: weakref.WeakKeyDictionary[port.Driver, float] = weakref.WeakKeyDictionary()


class Step(NamedTuple, Generic[T]):
    """A step, checked, for any number of attempts."""

    operation: str
    run: Callable[[port.Tx], T]
    lasting: bool = True
    refused: errors.HoldfastError | None = None
    """What it means that the database refused it, where that has a meaning."""


def restoring_leases(driver: port.Driver, work: Callable[[], T]) -> T:
    """Do it; when the lease table is lost or damaged, restore the declared schema and do it once more."""
    try:
        return work()
    except errors.LeasesUnavailable as error:
        if time.monotonic() - _restored_in_vain.get(driver, -RESTORE_PAUSE) < RESTORE_PAUSE:
            raise
        unavailable = error
    try:
        driver.mend_schema()
        done = work()
    except errors.StoreError as error:
        if isinstance(error, STORE_WIDE):
            raise
        _restored_in_vain[driver] = time.monotonic()
        raise unavailable from error
    logger.warning("Leases could not be used; the schema was restored. Run `holdfast doctor` to check the store.")
    return done


def done(driver: port.Driver, step: Step[T]) -> T:
    """Have it done, by itself."""
    try:
        return restoring_leases(driver, lambda: driver.write(step.operation, step.run, lasting=step.lasting))
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
