"""A transaction on PostgreSQL: queries by name, and changes that are gathered where nobody asks what each did."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psycopg

from holdfast import errors
from holdfast.store import fault_points, notifications
from holdfast.store.driver import UNIX, LeaseClock, Row
from holdfast.store.postgres import errors as postgres_errors
from holdfast.store.postgres import nul_text, statements
from holdfast.store.postgres.connection import Connection

# So many changes are gathered before they are sent.
MANY = 500

_NOW = "SELECT extract(epoch FROM clock_timestamp())::double precision"


class Transaction:
    """One transaction on one connection. `failed` makes an error of ours of one of psycopg's."""

    def __init__(
        self,
        connection: Connection,
        sql: Mapping[str, str],
        failed: Callable[[Exception], errors.StoreError],
        clock: Callable[[], float] | None,
    ) -> None:
        self.connection = connection
        self.operation = "read"
        self._wire = statements.Wire(connection, sql)
        self._commander = connection.cursor()
        self._server = connection.pgconn
        self._translated, self._clock = failed, clock
        self._seen: tuple[float, float] | None = None
        self.meant: dict[Any, Any] = {}
        self.recorder = notifications.Recorder()
        self._gathered: list[tuple[str, dict[str, Any]]] = []

    def one(self, query: str, /, **values: Any) -> Row | None:
        found = self._wire.rows(self._ask(query, values), 1)
        if not found:
            return None
        (row,) = found
        if query == "lock_conversation":
            # It comes with the time it was locked at, so that a lease costs no question of its own.
            self._seen = (row[-1], time.monotonic())
            self.recorder.record_lock(row)
            return row[:-1]
        return row if query not in nul_text.READS else nul_text.unfolded(row)

    def all(self, query: str, /, **values: Any) -> list[Row]:
        rows = self._wire.rows(self._ask(query, values))
        return rows if query not in nul_text.READS else [nul_text.unfolded(row) for row in rows]

    def run(self, query: str, /, **values: Any) -> int:
        changed: int = self._ask(query, values).command_tuples or 0
        if changed:
            self.recorder.record_change(query, values)
        if fault_points.hook is not None:
            fault_points.reach(self.operation, query)
        return changed

    def later(self, query: str, /, **values: Any) -> None:
        if fault_points.hook is not None:
            self.run(query, **values)  # each is a point of its own
            return
        self.recorder.record_change(query, values)
        self._gathered.append((query, values))
        if len(self._gathered) >= MANY:
            self._send()

    def _ask(self, query: str, values: dict[str, Any]) -> Any:
        if self._gathered:
            self._send()
        try:
            return self._wire.ask(query, self._folded(query, values))
        except psycopg.Error as error:
            failure = self._failed(error)
        # Outside of the handler: the error at hand may quote the row that was refused.
        raise failure

    def _send(self) -> None:
        gathered, self._gathered = self._gathered, []
        try:
            self._wire.send((query, self._folded(query, values)) for query, values in gathered)
            return
        except psycopg.Error as error:
            failure = self._failed(error)
        raise failure

    def _folded(self, query: str, values: dict[str, Any]) -> dict[str, Any]:
        return nul_text.folded(values) if query in nul_text.WRITES else values

    def _failed(self, error: Exception) -> errors.StoreError:
        failure = self._translated(error)
        if postgres_errors.spent(failure):
            self.connection.close()
        return failure

    def execute(self, sql: str, values: Any = None) -> Any:
        """SQL that is no query by name: the driver's own. Without values it may be several statements."""
        if self._gathered:
            self._send()
        return self._commander.execute(sql, values, prepare=False)

    def command(self, sql: str) -> None:
        """The same, where nothing is answered."""
        if self._gathered:
            self._send()
        self._wire.command(sql)

    def commit(self) -> None:
        """What a step was refused and went on after, the server has undone, and says so by no error."""
        if self._gathered:
            self._send()
        if self._wire.command("COMMIT") != b"COMMIT":
            raise errors.StoreRefused("The database has undone the step: something in it was refused before.")

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        self.command("SAVEPOINT step")
        try:
            yield
            if self._gathered:
                self._send()
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
        self.operation, self._seen, self.recorder = operation, None, notifications.Recorder()
        self.command(how)

    def end(self) -> bool:
        """Out of whatever transaction it is in; whether the connection is fit for another."""
        self._gathered.clear()
        if self._server.transaction_status and not self.connection.closed:
            with contextlib.suppress(psycopg.Error):
                self._wire.command("ROLLBACK")
        return not self._server.transaction_status and not self.connection.closed
