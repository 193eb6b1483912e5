"""A transaction on PostgreSQL that takes as few round trips as possible.

BEGIN is sent with the first statement, changes whose result no caller needs are sent with the next statement, and
COMMIT is sent with the last ones. Nothing waits for the result of the ROLLBACK that ends a read.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psycopg

from holdfast import errors, fault_points
from holdfast.store import notifications
from holdfast.store.driver import UNIX, LeaseClock, QueryCall, Row
from holdfast.store.postgres import errors as postgres_errors
from holdfast.store.postgres.connection import PostgresConnection
from holdfast.store.postgres.statements import Command, StatementExecutor

# The number of deferred changes that are sent without waiting for the next statement.
MAX_DEFERRED = 500
# Queries whose last column is the server's time, so that a lease needs no round trip to read it.
QUERIES_WITH_TIME = frozenset(("lock_conversation", "claim_row"))
# After this many seconds the server's time is read again; until then the client's clock measures the time since.
MAX_CLOCK_AGE = 10.0

_IN_TRANSACTION = 2  # libpq's PQTRANS_INTRANS
_SERVER_TIME = "SELECT extract(epoch FROM clock_timestamp())::double precision"
_ROLLED_BACK = "The database has rolled back the step because it refused an earlier statement of it."


class PostgresTransaction:
    """The store's `Tx` on one connection, for one transaction after the other."""

    def __init__(
        self,
        connection: PostgresConnection,
        sql: Mapping[str, str],
        translate: Callable[[Exception], errors.StoreError],
        clock: Callable[[], float] | None,
    ) -> None:
        self.connection = connection
        self.operation = "read"
        self.shared = False
        self.retry_state: dict[Any, Any] = {}
        self.recorder = notifications.HintRecorder()
        self.has_answered = False
        """Whether the server has answered a statement of this transaction."""
        self._sql = sql
        self._executor = StatementExecutor(connection, sql)
        self._cursor = connection.cursor()
        self._pgconn = connection.pgconn
        self._translate, self._clock = translate, clock
        self._server_time: tuple[float, float] | None = None
        """The server's time, and the client's monotonic time at which it was read."""
        self._begin_statements: tuple[str, ...] = ()
        self._has_begun = True
        """Whether the begin statements were sent; otherwise they are sent with the next statement."""
        self._is_committed = False
        """Whether `finish` has committed everything that was sent."""
        self._deferred: list[Command] = []
        self._savepoints = 0
        self._awaits_rollback = False
        """Whether a ROLLBACK was sent whose result has not been received."""

    def begin(self, operation: str, statements: str) -> None:
        """Begin a transaction with the next statement; `statements` are separated by semicolons."""
        self.operation, self.recorder = operation, notifications.HintRecorder()
        if self._server_time is not None and time.monotonic() - self._server_time[1] > MAX_CLOCK_AGE:
            self._server_time = None
        self._begin_statements = tuple(each.strip() for each in statements.split(";"))
        self._has_begun = self._is_committed = False
        self.shared = self.has_answered = False
        self._savepoints = 0

    def one(self, query: str, /, **values: Any) -> Row | None:
        rows = self._load_rows(query, self._send((query, values))[0], 1)
        return rows[0] if rows else None

    def all(self, query: str, /, **values: Any) -> list[Row]:
        return self._load_rows(query, self._send((query, values))[0])

    def run(self, query: str, /, **values: Any) -> int:
        changed: int = self._send((query, values))[0].command_tuples or 0
        if changed:
            self.recorder.record_change(query, values)
        fault_points.reach(self.operation, query)
        return changed

    def defer(self, query: str, /, **values: Any) -> None:
        self.recorder.record_change(query, values)
        self._deferred.append((query, values))
        if len(self._deferred) >= MAX_DEFERRED:
            self._send()
        fault_points.reach(self.operation, query)

    def batch(self, *queries: QueryCall) -> list[list[Row]]:
        results = self._send(*queries)
        for (query, _), result in zip(queries, results, strict=True):
            if fault_points.hook is not None and not result.command_status.startswith(b"SELECT"):
                fault_points.reach(self.operation, query)
        return self._collect(queries, results)

    def finish(self, *queries: QueryCall) -> list[list[Row]]:
        if self.shared:
            return self.batch(*queries)
        # The queries and COMMIT are one round trip: a fault that interrupts a query happens before all of them.
        for query, _ in queries:
            if fault_points.hook is not None and not self._sql[query].lstrip().startswith("SELECT"):
                fault_points.reach(self.operation, query)
        return self._collect(queries, self._send_and_commit(*queries))

    def commit(self) -> None:
        if not self._is_committed or self._deferred:
            self._send_and_commit()

    def _send_and_commit(self, *queries: QueryCall) -> list[Any]:
        fault_points.reach(self.operation, "committing")
        *results, commit = self._send(*queries, "COMMIT")
        # PostgreSQL reports no error when the COMMIT of a failed transaction rolls it back.
        if commit.command_status != b"COMMIT":
            raise errors.StoreRefused(_ROLLED_BACK)
        # A query after this one begins another transaction.
        self._is_committed, self._has_begun = True, False
        fault_points.reach(self.operation, "committed")
        return results

    def _collect(self, queries: tuple[QueryCall, ...], results: list[Any]) -> list[list[Row]]:
        """Record the changes and return the rows of each query."""
        for (query, values), result in zip(queries, results, strict=True):
            if result.command_tuples:
                self.recorder.record_change(query, values)
        return [self._load_rows(query, result) for (query, _), result in zip(queries, results, strict=True)]

    def _load_rows(self, query: str, result: Any, limit: int | None = None) -> list[Row]:
        rows = self._executor.load_rows(result, limit)
        if query in QUERIES_WITH_TIME and rows:
            self._server_time = (rows[0][-1], time.monotonic())
            rows = [row[:-1] for row in rows]
            if query == "lock_conversation":
                self.recorder.record_lock(rows[0])
        return rows

    def _send(self, *commands: Command) -> list[Any]:
        """Send BEGIN and the deferred changes, if there are any, and then `commands`; return the results of these."""
        pending = [*(() if self._has_begun else self._begin_statements), *self._deferred]
        if not pending and not commands:
            return []
        self._has_begun, self._is_committed, self._deferred = True, False, []
        try:
            self._receive_rollback()
            results = self._executor.execute([*pending, *commands])
            self.has_answered = True
            return results[len(pending) :]
        except psycopg.Error as error:
            failure = self._translate(error)
        if failure.sqlstate in postgres_errors.STALE_CONNECTION:
            self.connection.close()
        # Raised outside of the handler: psycopg's error may quote the refused row.
        raise failure

    def execute(self, sql: str, values: Any = None) -> Any:
        """Execute SQL of the driver itself; without values it may be several statements."""
        self._send()
        self._receive_rollback()
        return self._cursor.execute(sql, values, prepare=False)

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        # SAVEPOINT and RELEASE are sent with other statements. A group of steps also defers the changes of the block:
        # if the server refuses one of them later, the whole transaction fails, and each step runs alone. Each savepoint
        # has a name of its own, so that a later step cannot roll back to the one of the refused change.
        self._savepoints += 1
        name = f"SAVEPOINT step_{self._savepoints}"
        deferred, start = self._deferred, len(self._deferred)
        deferred.append(name)
        try:
            yield
            if not self.shared and any(isinstance(command, tuple) for command in self._deferred):
                self._send()
        except BaseException:
            was_sent = self._deferred is not deferred
            del self._deferred[0 if was_sent else start :]
            if was_sent and not self.connection.closed:
                self._send(f"ROLLBACK TO {name}", f"RELEASE {name}")
            raise
        self._deferred.append(f"RELEASE {name}")

    @property
    def clock(self) -> LeaseClock:
        """The server's clock, or the one given to the driver. The clocks of two clients may differ."""
        if self._clock is not None:
            return LeaseClock(UNIX, self._clock(), 0.0)
        if self._server_time is None:
            (now,) = self.execute(_SERVER_TIME).fetchone()
            self._server_time = (now, time.monotonic())
        then, read_at = self._server_time
        return LeaseClock(UNIX, then + time.monotonic() - read_at, 0.0)

    def end(self) -> bool:
        """Roll back uncommitted changes; return whether the connection can be used again."""
        self._deferred.clear()
        self._begin_statements, self._has_begun = (), True
        if self.connection.closed:
            return False
        if self._pgconn.transaction_status == _IN_TRANSACTION and self.operation == "read":
            with contextlib.suppress(psycopg.Error):
                self._pgconn.send_query(b"ROLLBACK")
                self._awaits_rollback = True
                return bool(self._pgconn.flush() == 0)
            return False
        if self._pgconn.transaction_status and not self._awaits_rollback:
            with contextlib.suppress(psycopg.Error):
                self._executor.execute(["ROLLBACK"])
        return self._awaits_rollback or not (self._pgconn.transaction_status or self.connection.closed)

    def _receive_rollback(self) -> None:
        if self._awaits_rollback:
            self._awaits_rollback = False
            self._executor.receive()
