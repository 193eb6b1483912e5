"""Which database a store is in: what a path or an address names."""

from __future__ import annotations

import os
from collections.abc import Callable

from holdfast import errors
from holdfast.store import arguments, schema_plan
from holdfast.store.driver import Driver
from holdfast.store.postgres import driver as postgres_driver
from holdfast.store.postgres import dsn
from holdfast.store.sqlite import driver as sqlite_driver


def driver(
    target: str | os.PathLike[str],
    clock: Callable[[], float] | None,
    durability: str,
    write_timeout: float,
    begin: bool,
) -> Driver:
    """The driver of that store, open. Without `begin` a server that has no store gets none."""
    arguments.text_or_none(durability)
    if isinstance(write_timeout, bool) or not isinstance(write_timeout, int | float) or not 0 <= write_timeout < 1e6:
        raise errors.OutOfRange("write_timeout is a number of seconds.")
    path = os.fspath(target) if isinstance(target, str | os.PathLike) else None
    if not isinstance(path, str):
        raise errors.StoreUnusable("The store needs the path of a file, as text.")
    if "://" in path and not dsn.is_address(path):
        raise errors.StoreUnusable(f"{dsn.shown(path)} names no store: a path does, or postgresql://...")
    if dsn.is_address(path):
        plan = schema_plan.Plan(begin=begin)
        return postgres_driver.PostgresDriver(
            path, durability=durability, clock=clock, write_timeout=write_timeout, plan=plan
        )
    return sqlite_driver.SqliteDriver(path, durability=durability, clock=clock, write_timeout=write_timeout)
