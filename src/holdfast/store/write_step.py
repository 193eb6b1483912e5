"""Write steps: a validated write that runs in a transaction of its own, or in one with those of other tasks."""

from __future__ import annotations

import functools
import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

from holdfast import errors
from holdfast.store.driver import Driver, Tx

logger = logging.getLogger("holdfast.store")
T = TypeVar("T")
P = ParamSpec("P")

# Errors that concern every step of a transaction.
STORE_WIDE = (
    errors.StoreBusy,
    errors.StoreFull,
    errors.StoreUnreachable,
    errors.StoreMoved,
    errors.StoreClosed,
    errors.StoreForked,
)
# Seconds between two attempts to restore the schema of one store.
RESTORE_PAUSE = 60.0
_restoring = threading.Lock()
_restored: weakref.WeakKeyDictionary[Driver, float] = weakref.WeakKeyDictionary()


class WriteStep(NamedTuple, Generic[T]):
    """A write whose arguments are validated, for any number of attempts."""

    operation: str
    run: Callable[[Tx], T]
    durable: bool = True
    """Whether it must survive a power loss when it is acknowledged."""
    refused: errors.HoldfastError | None = None
    """The error to raise when the database refuses it, instead of StoreRefused."""
    restores_leases: bool = True
    """Whether a lost or damaged lease table is restored, and the step run again."""
    queue: str | None = None
    """Steps of one event loop that name the same queue run in the order of the calls."""


def run_with_lease_repair(driver: Driver, work: Callable[[], T]) -> T:
    """Do the work; if the lease table is lost or damaged, restore the declared schema and do it once more."""
    try:
        return work()
    except errors.LeasesUnavailable:
        restored = _restore_schema(driver)
    done = work()
    if restored:
        logger.warning("Leases could not be used; the schema was restored. Run `holdfast doctor` to check the store.")
    return done


def _restore_schema(driver: Driver) -> bool:
    """Restore the declared schema, at most once in RESTORE_PAUSE seconds; return whether it was restored now."""
    with _restoring:
        if time.monotonic() - _restored.get(driver, -RESTORE_PAUSE) < RESTORE_PAUSE:
            return False
        try:
            driver.repair_schema()
            return True
        except errors.StoreError as error:
            logger.info("The schema could not be restored: %s", error)
            return False
        finally:
            _restored[driver] = time.monotonic()


def execute(driver: Driver, step: WriteStep[T]) -> T:
    """Run a step in a transaction of its own."""

    def write() -> T:
        return driver.write(step.operation, step.run, durable=step.durable)

    try:
        return run_with_lease_repair(driver, write) if step.restores_leases else write()
    except errors.StoreRefused:
        if step.refused is None:
            raise
    # Outside of the handler: the driver's error may quote the row that was refused.
    raise step.refused


class HasDriver(Protocol):
    """A class whose methods are write steps on a driver."""

    driver: Driver


S = TypeVar("S", bound=HasDriver)


def shareable(prepare: Callable[Concatenate[S, P], WriteStep[T]]) -> Callable[Concatenate[S, P], T]:
    """Make a method that executes the step which the decorated function prepares.

    AsyncSessionDB finds the function as `prepare`, and commits its step together with the steps of other tasks.
    """

    @functools.wraps(prepare)
    def call(db: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return execute(db.driver, prepare(db, *args, **kwargs))

    vars(call)["prepare"] = prepare
    return call
