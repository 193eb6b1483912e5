"""Write steps: a validated write that runs in a transaction of its own, or in one with those of other tasks."""

from __future__ import annotations

import functools
import logging
import time
import weakref
from collections.abc import Callable
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

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
# Between two attempts to restore the schema of one store.
RESTORE_PAUSE_SECONDS = 60.0
_restored: weakref.WeakKeyDictionary[Driver, float] = weakref.WeakKeyDictionary()


class WriteStep(NamedTuple, Generic[T]):
    """A write whose arguments are validated, for any number of attempts."""

    operation: str
    run: Callable[[Tx], T]
    durable: bool = True
    """Whether it must survive a power loss when it is acknowledged."""
    refused: errors.HoldfastError | None = None
    """The error to raise when the database refuses it, instead of StoreRefused."""
    queue: str | None = None
    """Steps of one event loop that name the same queue run in the order of the calls."""


def execute(driver: Driver, step: WriteStep[T]) -> T:
    """Run a step in a transaction of its own. If the lease table is lost, restore it for the next step."""
    try:
        return driver.write(step.operation, step.run, durable=step.durable)
    except errors.LeasesUnavailable:
        _restore_schema(driver)
        raise
    except errors.StoreRefused:
        if step.refused is None:
            raise
    # Outside of the handler: the driver's error may quote the row that was refused.
    raise step.refused


def _restore_schema(driver: Driver) -> None:
    """Restore the declared schema, at most once in RESTORE_PAUSE_SECONDS."""
    now = time.monotonic()
    if now - _restored.get(driver, -RESTORE_PAUSE_SECONDS) >= RESTORE_PAUSE_SECONDS:
        _restored[driver] = now
        try:
            driver.repair_schema()
        except errors.StoreError as error:
            logger.info("The schema could not be restored: %s", error)


def shareable(prepare: Callable[Concatenate[Any, P], WriteStep[T]]) -> Callable[Concatenate[Any, P], T]:
    """Make a method that executes the step which the decorated function prepares.

    AsyncSessionDB finds the function as `prepare`, and commits its step together with the steps of other tasks.
    """

    @functools.wraps(prepare)
    def call(db: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return execute(db.driver, prepare(db, *args, **kwargs))

    vars(call)["prepare"] = prepare
    return call
