"""A transaction on PostgreSQL that takes as few round trips as possible.

BEGIN is sent with the first statement, changes whose result no caller needs are sent with the next statement, and
COMMIT is sent with the last ones. The ROLLBACK that ends a transaction without changes is not waited for.
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

# So many changes are gathered before they are sent.
MANY = 500
# Queries whose last column is the time at the server, so that a lease costs no round trip of its own for it.
CLOCKED = frozenset(("lock_conversation", "claim_row"))
# Seconds for which the clock of this host measures the time since the server's time was read.
CLOCK_AGE = 10.0

_IN_TRANSACTION = 2  # as libpq numbers it
_NOW = "SELECT extract(epoch FROM clock_timestamp())::double precision"
_UNDONE = "The database has undone the step: something in it was refused before."


class Transaction:
    """One transaction on one connection. `failed` translates an error of psycopg."""

    def __init__(
        self,
        connection: Connection,
        sql: Mapping[str, str],
        failed: Callable[[Exception], errors.StoreError],
        clock: Callable[[], float] | None,
    ) -> None:
        self.connection = connection
        self.operation = "read"
        self.shared = False
        self.answered = False
        """Whether the server has answered a statement of this transaction."""
        self._wire = statements.Wire(connection, sql)
        self._commander = connection.cursor()
        self._server = connection.pgconn
        self._translated, self._clock = failed, clock
        self._seen: tuple[float, float] | None = None
        self.retry_state: dict[Any, Any] = {}
        self.recorder = notifications.Recorder()
        self._how: tuple[str, ...] = ()
        self._unsent: tuple[str, ...] = ()
        """The statements that begin the transaction, until they are sent with the first one."""
        self._gathered: list[Query] = []
        self._rolling_back = False
        """Whether a ROLLBACK was sent whose result is still to be read."""

    def one(self, query: str, /, **values: Any) -> Row | None:
        found = self._read(query, self._ask((query, values)), 1)
        return found[0] if found else None

    def all(self, query: str, /, **values: Any) -> list[Row]:
        return self._read(query, self._ask((query, values)))

    def run(self, query: str, /, **values: Any) -> int:
        changed: int = self._ask((query, values)).command_tuples or 0
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
        self._gathered.append((query, values))
        if len(self._gathered) >= MANY:
            self._flush()

    def batch(self, *queries: Query) -> list[list[Row]]:
        if fault_points.hook is not None:
            return [self._reached(query) for query in queries]
        return self._results(queries, self._send(*queries))

    def finish(self, *queries: Query) -> list[list[Row]]:
        if self.shared or fault_points.hook is not None:
            return self.batch(*queries)
        *answers, committed = self._send(*queries, "COMMIT")
        self._unsent = self._how
        self._check_committed(committed)
        return self._results(queries, answers)

    def _reached(self, query: Query) -> list[Row]:
        answer = self._ask(query)
        (rows,) = self._results((query,), [answer])
        if not answer.command_status.startswith(b"SELECT"):  # reads are no points
            fault_points.reach(self.operation, query[0])
        return rows

    def _results(self, queries: tuple[Query, ...], answers: list[Any]) -> list[list[Row]]:
        for (query, values), answer in zip(queries, answers, strict=True):
            if answer.command_tuples:
                self.recorder.record_change(query, values)
        return [self._read(query, answer) for (query, _), answer in zip(queries, answers, strict=True)]

    def _read(self, query: str, answer: Any, most: int | None = None) -> list[Row]:
        rows = self._wire.rows(answer, most)
        if query in CLOCKED and rows:
            self._seen = (rows[0][-1], time.monotonic())
            rows = [row[:-1] for row in rows]
            if query == "lock_conversation":
                self.recorder.record_lock(rows[0])
        return rows if query not in nul_text.READS else [nul_text.unescape(row) for row in rows]

    def _ask(self, query: Query) -> Any:
        return self._send(query)[-1]

    def _flush(self) -> None:
        self._send()

    def _send(self, *calls: statements.Call) -> list[Any]:
        """Send what is still unsent and then these; return the results of these."""
        first: list[statements.Call] = [*self._unsent, *map(self._folded, self._gathered)]
        folded = [call if isinstance(call, str) else self._folded(call) for call in calls]
        self._unsent, self._gathered = (), []
        if not first and not folded:
            return []
        try:
            self._await_rollback()
            if not first and len(folded) == 1 and not isinstance(folded[0], str):
                answers = [self._wire.ask(*folded[0])]
            else:
                answers = self._wire.pipeline([*first, *folded])[len(first) :]
            self.answered = True
            return answers
        except psycopg.Error as error:
            failure = self._failed(error)
        # Outside of the handler: the error at hand may quote the row that was refused.
        raise failure

    def _folded(self, query: Query) -> Query:
        name, values = query
        return (name, nul_text.escape(values)) if name in nul_text.WRITES else query

    def _failed(self, error: Exception) -> errors.StoreError:
        failure = self._translated(error)
        if postgres_errors.should_close_connection(failure):
            self.connection.close()
        return failure

    def execute(self, sql: str, values: Any = None) -> Any:
        """SQL that is no query by name: the driver's own. Without values it may be several statements."""
        self._flush()
        self._await_rollback()
        return self._commander.execute(sql, values, prepare=False)

    def command(self, sql: str) -> None:
        """The same, where nothing is answered."""
        self._flush()
        self._await_rollback()
        self._wire.command(sql)

    def commit(self) -> None:
        """Commit, unless `finish` did. PostgreSQL reports no error when a refused step is committed all the same."""
        if self._how and self._unsent == self._how and self.answered and not self._gathered:
            return
        (committed,) = self._send("COMMIT")
        self._check_committed(committed)

    def _check_committed(self, answer: Any) -> None:
        if answer.command_status != b"COMMIT":
            raise errors.StoreRefused(_UNDONE)

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        self.command("SAVEPOINT step")
        try:
            yield
            self._flush()
        except BaseException:
            self._gathered.clear()
            if not self.connection.closed:
                self.command("ROLLBACK TO SAVEPOINT step; RELEASE SAVEPOINT step")
            raise
        self.command("RELEASE SAVEPOINT step")

    @property
    def clock(self) -> LeaseClock:
        """The server's, unless one was given: hosts need not agree about the time."""
        if self._clock is not None:
            return LeaseClock(UNIX, self._clock(), 0.0)
        if self._seen is None:
            (now,) = self.execute(_NOW).fetchone()
            self._seen = (now, time.monotonic())
        then, at = self._seen
        return LeaseClock(UNIX, then + time.monotonic() - at, 0.0)

    def begin(self, operation: str, how: str) -> None:
        """Begin with the next statement; `how` is a list of statements separated by semicolons."""
        self.operation, self.recorder = operation, notifications.Recorder()
        if self._seen is not None and time.monotonic() - self._seen[1] > CLOCK_AGE:
            self._seen = None
        self._how = self._unsent = tuple(each.strip() for each in how.split(";") if each.strip())
        self.shared = self.answered = False

    def end(self) -> bool:
        """Leave the transaction; whether the connection is fit for another."""
        self._gathered.clear()
        self._how = self._unsent = ()
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
            self._wire.answer()
