"""A transaction on one SQLite connection, which runs queries by name."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

import apsw

from holdfast import fault_points
from holdfast.store.driver import LeaseClock, QueryCall, Row, lease_clock
from holdfast.store.sqlite.errors import FAILURES, translate

T = TypeVar("T")


class SqliteTransaction:
    """The store's `Tx`. One per connection: the driver begins and ends the transactions."""

    def __init__(self, connection: apsw.Connection, sql: dict[str, str], clock: Callable[[], float] | None) -> None:
        self.operation = "read"
        self.shared = False
        self.retry_state: dict[Any, Any] = {}
        # One cursor for all statements: creating one costs more than most statements.
        self.execute = connection.cursor().execute
        self.connection = connection
        self._sql = sql
        self._clock = clock
        self._savepoint = _Savepoint(connection, self.execute)

    def one(self, query: str, /, **values: Any) -> Row | None:
        try:
            return self.execute(self._sql[query], values).fetchone()
        except FAILURES as error:
            raise translate(error, self.connection.filename) from error

    def all(self, query: str, /, **values: Any) -> list[Row]:
        try:
            return self.execute(self._sql[query], values).fetchall()
        except FAILURES as error:
            raise translate(error, self.connection.filename) from error

    def run(self, query: str, /, **values: Any) -> int:
        try:
            self.execute(self._sql[query], values)
        except apsw.Error as error:
            raise translate(error, self.connection.filename) from error
        if fault_points.hook is not None:
            fault_points.reach(self.operation, query)
        return self.connection.changes()

    defer = run  # PostgreSQL defers these to save round trips; here there are none

    def batch(self, *queries: QueryCall) -> list[list[Row]]:
        if fault_points.hook is not None:
            return [self._run_and_reach(query, values) for query, values in queries]
        return [self.all(query, **values) for query, values in queries]

    finish = batch  # the driver commits after the step

    def _run_and_reach(self, query: str, values: dict[str, Any]) -> list[Row]:
        before = self.connection.total_changes()
        rows = self.all(query, **values)
        if self.connection.total_changes() > before:
            fault_points.reach(self.operation, query)
        return rows

    def savepoint(self) -> _Savepoint:
        return self._savepoint

    @property
    def clock(self) -> LeaseClock:
        return lease_clock(self._clock)

    def begin(self, timeout: float = 0.0) -> None:
        """Begin to write. Another program may hold SQLite's lock, as may other writers without a writer queue."""
        deadline = 0.0
        while True:
            try:
                self.execute("BEGIN IMMEDIATE")
                return
            except apsw.BusyError:
                deadline = deadline or time.monotonic() + timeout
                if time.monotonic() > deadline:
                    raise
            time.sleep(random.uniform(0.0002, 0.004))

    def roll_back(self) -> None:
        """Undo the transaction, if SQLite has not done so already. Raises nothing, so that its cause can be raised."""
        if not self.connection.get_autocommit():
            with contextlib.suppress(apsw.Error):
                self.execute("ROLLBACK")


class _Savepoint:
    """Undoes the changes of a block that raises. Without state, so that blocks can be nested."""

    def __init__(self, connection: apsw.Connection, execute: Callable[[str], object]) -> None:
        self._connection, self._execute = connection, execute

    def __enter__(self) -> None:
        self._execute("SAVEPOINT step")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            # After some errors, such as a full disk, SQLite has rolled back the whole transaction.
            if self._connection.get_autocommit():
                return
            self._execute("ROLLBACK TO step")
        self._execute("RELEASE step")


def transact(tx: SqliteTransaction, step: Callable[[SqliteTransaction], T], timeout: float = 0.0) -> T:
    """Run a step in a write transaction of its own."""
    tx.begin(timeout)
    try:
        result = step(tx)
        tx.execute("COMMIT")
    except BaseException:
        tx.roll_back()
        raise
    return result
