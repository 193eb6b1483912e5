"""A transaction on PostgreSQL that takes as few round trips as possible.

BEGIN is sent with the first statement, changes whose result no caller needs are sent with the next statement, and
COMMIT is sent with the last ones. The ROLLBACK that ends a read is not waited for.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psycopg

from holdfast import errors
from holdfast.store import fault_points, notifications
from holdfast.store.driver import UNIX, LeaseClock, Query, Row
from holdfast.store.postgres import errors as postgres_errors
from holdfast.store.postgres import nul_text, statements
from holdfast.store.postgres.connection import Connection

# Deferred changes are sent when there are so many, at the latest.
MAX_DEFERRED = 500
# Queries whose last column is the time at the server, so that a lease costs no round trip of its own for it.
CLOCKED = frozenset(("lock_conversation", "claim_row"))
# Seconds for which the clock of this host measures the time since the server's time was read.
CLOCK_AGE = 10.0

_IN_TRANSACTION = 2  # as libpq numbers it
_NOW = "SELECT extract(epoch FROM clock_timestamp())::double precision"
_ROLLED_BACK = "The database has rolled back the step because it refused an earlier statement of it."


class Transaction:
    """The store's `Tx` on one connection, for one transaction after the other."""

    def __init__(
        self,
        connection: Connection,
        sql: Mapping[str, str],
        translate: Callable[[Exception], errors.StoreError],
        clock: Callable[[], float] | None,
    ) -> None:
        self.connection = connection
        self.operation = "read"
        self.shared = False
        self.retry_state: dict[Any, Any] = {}
        self.recorder = notifications.Recorder()
        self.answered = False
        """Whether the server has answered a statement since `begin`."""
        self._wire = statements.Wire(connection, sql)
        self._cursor = connection.cursor()
        self._server = connection.pgconn
        self._translate, self._clock = translate, clock
        self._server_time: tuple[float, float] | None = None
        """The time at the server, and the monotonic time of this host when it was read."""
        self._begin: tuple[str, ...] = ()
        """The statements that begin a transaction."""
        self._has_begun = True
        """Whether they were sent; otherwise they are sent with the next statement."""
        self._committed = False
        """Whether `finish` has committed everything that was sent."""
        self._deferred: list[Query] = []
        self._rolling_back = False
        """Whether a ROLLBACK was sent whose result is still to be read."""

    def begin(self, operation: str, statements: str) -> None:
        """Begin a transaction with the next statement; `statements` are separated by semicolons."""
        self.operation, self.recorder = operation, notifications.Recorder()
        if self._server_time is not None and time.monotonic() - self._server_time[1] > CLOCK_AGE:
            self._server_time = None
        self._begin = tuple(each.strip() for each in statements.split(";"))
        self._has_begun = self._committed = False
        self.shared = self.answered = False

    def one(self, query: str, /, **values: Any) -> Row | None:
        rows = self._rows(query, self._execute((query, values)), 1)
        return rows[0] if rows else None

    def all(self, query: str, /, **values: Any) -> list[Row]:
        return self._rows(query, self._execute((query, values)))

    def run(self, query: str, /, **values: Any) -> int:
        changed: int = self._execute((query, values)).command_tuples or 0
        if changed:
            self.recorder.record_change(query, values)
        if fault_points.hook is not None:
            fault_points.reach(self.operation, query)
        return changed

    def defer(self, query: str, /, **values: Any) -> None:
        if fault_points.hook is not None:
            self.run(query, **values)  # each is a point of its own
            return
        self.recorder.record_change(query, values)
        self._deferred.append((query, values))
        if len(self._deferred) >= MAX_DEFERRED:
            self._send()

    def batch(self, *queries: Query) -> list[list[Row]]:
        if fault_points.hook is not None:
            return [self._reach(query) for query in queries]
        return self._results(queries, self._send(*queries))

    def finish(self, *queries: Query) -> list[list[Row]]:
        if self.shared or fault_points.hook is not None:
            return self.batch(*queries)
        return self._results(queries, self._send_and_commit(*queries))

    def commit(self) -> None:
        if not self._committed or self._deferred:
            self._send_and_commit()

    def _send_and_commit(self, *queries: Query) -> list[Any]:
        *results, commit = self._send(*queries, "COMMIT")
        # PostgreSQL reports no error when the COMMIT of a failed transaction rolls it back.
        if commit.command_status != b"COMMIT":
            raise errors.StoreRefused(_ROLLED_BACK)
        # A query after this one begins another transaction.
        self._committed, self._has_begun = True, False
        return results

    def _reach(self, query: Query) -> list[Row]:
        result = self._execute(query)
        (rows,) = self._results((query,), [result])
        if not result.command_status.startswith(b"SELECT"):  # reads are no points
            fault_points.reach(self.operation, query[0])
        return rows

    def _results(self, queries: tuple[Query, ...], results: list[Any]) -> list[list[Row]]:
        for (query, values), result in zip(queries, results, strict=True):
            if result.command_tuples:
                self.recorder.record_change(query, values)
        return [self._rows(query, result) for (query, _), result in zip(queries, results, strict=True)]

    def _rows(self, query: str, result: Any, limit: int | None = None) -> list[Row]:
        rows = self._wire.rows(result, limit)
        if query in CLOCKED and rows:
            self._server_time = (rows[0][-1], time.monotonic())
            rows = [row[:-1] for row in rows]
            if query == "lock_conversation":
                self.recorder.record_lock(rows[0])
        return rows if query not in nul_text.READS else [nul_text.unescape(row) for row in rows]

    def _execute(self, query: Query) -> Any:
        return self._send(query)[-1]

    def _send(self, *calls: statements.Call) -> list[Any]:
        """Send BEGIN and the deferred changes, if there are any, and then these; return the results of these."""
        first: list[statements.Call] = [*(() if self._has_begun else self._begin), *map(_escape, self._deferred)]
        escaped = [_escape(call) for call in calls]
        if not first and not escaped:
            return []
        self._has_begun, self._committed, self._deferred = True, False, []
        try:
            self._await_rollback()
            if not first and len(escaped) == 1 and not isinstance(escaped[0], str):
                results = [self._wire.execute(*escaped[0])]
            else:
                results = self._wire.pipeline([*first, *escaped])[len(first) :]
            self.answered = True
            return results
        except psycopg.Error as error:
            failure = self._translate(error)
        if postgres_errors.should_close_connection(failure):
            self.connection.close()
        # Outside of the handler: psycopg's error may quote the row that was refused.
        raise failure

    def execute(self, sql: str, values: Any = None) -> Any:
        """Execute SQL of the driver itself; without values it may be several statements."""
        self._send()
        self._await_rollback()
        return self._cursor.execute(sql, values, prepare=False)

    def _command(self, sql: str) -> None:
        self._send()
        self._await_rollback()
        self._wire.command(sql)

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        self._command("SAVEPOINT step")
        try:
            yield
            self._send()
        except BaseException:
            self._deferred.clear()
            if not self.connection.closed:
                self._command("ROLLBACK TO SAVEPOINT step; RELEASE SAVEPOINT step")
            raise
        self._command("RELEASE SAVEPOINT step")

    @property
    def clock(self) -> LeaseClock:
        """The server's clock, unless another one was given: the clocks of two hosts may differ."""
        if self._clock is not None:
            return LeaseClock(UNIX, self._clock(), 0.0)
        if self._server_time is None:
            (now,) = self.execute(_NOW).fetchone()
            self._server_time = (now, time.monotonic())
        then, at = self._server_time
        return LeaseClock(UNIX, then + time.monotonic() - at, 0.0)

    def end(self) -> bool:
        """Roll back what was not committed; return whether the connection can be used again."""
        self._deferred.clear()
        self._begin, self._has_begun = (), True
        if self.connection.closed:
            return False
        if self._server.transaction_status == _IN_TRANSACTION and self.operation == "read":
            with contextlib.suppress(psycopg.Error):
                self._server.send_query(b"ROLLBACK")
                self._rolling_back = True
                return bool(self._server.flush() == 0)
            return False
        if self._server.transaction_status and not self._rolling_back:
            with contextlib.suppress(psycopg.Error):
                self._wire.command("ROLLBACK")
        return self._rolling_back or not (self._server.transaction_status or self.connection.closed)

    def _await_rollback(self) -> None:
        if self._rolling_back:
            self._rolling_back = False
            self._wire.result()


def _escape(call: statements.Call) -> statements.Call:
    if isinstance(call, str) or call[0] not in nul_text.WRITES:
        return call
    return call[0], nul_text.escape(call[1])
