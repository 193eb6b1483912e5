"""A transaction on one SQLite connection, which runs queries by name."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import apsw

from holdfast.store import fault_points
from holdfast.store.driver import LeaseClock, Query, Row, lease_clock
from holdfast.store.sqlite.errors import FAILURES, translate


class Transaction:
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

    def batch(self, *queries: Query) -> list[list[Row]]:
        if fault_points.hook is not None:
            return [self._reach(query, values) for query, values in queries]
        return [self.all(query, **values) for query, values in queries]

    finish = batch  # the driver commits after the step

    def _reach(self, query: str, values: dict[str, Any]) -> list[Row]:
        before = self.connection.total_changes()
        rows = self.all(query, **values)
        if self.connection.total_changes() > before:
            fault_points.reach(self.operation, query)
        return rows

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        self.execute("SAVEPOINT step")
        try:
            yield
        except BaseException:
            # After some errors, such as a full disk, SQLite has rolled back the whole transaction.
            if not self.connection.get_autocommit():
                self.execute("ROLLBACK TO step")
                self.execute("RELEASE step")
            raise
        self.execute("RELEASE step")

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


def transact(tx: Transaction, step: Callable[[Transaction], object], timeout: float = 0.0) -> None:
    """Run a step in a write transaction of its own."""
    tx.begin(timeout)
    try:
        step(tx)
        tx.execute("COMMIT")
    except BaseException:
        tx.roll_back()
        raise
