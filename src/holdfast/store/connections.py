"""Connections to a PostgreSQL server: made ready for a store, and watched while the server says nothing.

What makes them is given here, as no other file than the driver's own knows which part of the program it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from holdfast.store import reaching, silence

# A statement that takes longer is stuck. A client that stands still in the middle of a write keeps others waiting:
# for less time than they have.
STATEMENT = 600.0
STANDSTILL = 5.0
# So long a question may take that somebody's receipt waits for.
SHORT = 0.5

_INT8, _BINARY, _ACTIVE = 20, 1, 1  # as PostgreSQL numbers types, and libpq formats and what a connection does
# Steps are written for READ COMMITTED, whatever the role or the database has as its default.
_SETTLE = """
SELECT set_config('lock_timeout', %(lock)s, false), set_config('statement_timeout', %(statement)s, false),
       set_config('idle_in_transaction_session_timeout', %(standstill)s, false),
       set_config('synchronous_commit', CASE WHEN %(durable)s AND current_setting('synchronous_commit') = 'off'
                                             THEN 'on' ELSE current_setting('synchronous_commit') END, false),
       set_config('default_transaction_isolation', 'read committed', false),
       current_setting('transaction_read_only') = 'off'
"""


class Connections:
    """Makes the connections of one driver."""

    def __init__(self, psycopg: ModuleType, settings: dict[str, Any], write_timeout: float, *, durable: bool) -> None:
        self._psycopg, self._settings, self._write_timeout = psycopg, settings, write_timeout
        self._durable = durable
        self.writable = False
        """Whether the server, or one of them, was ever seen to take writes."""

    def open(self) -> Any:
        """A connection that gives up when the server has nothing to say for longer than a write may wait."""
        connection = self._psycopg.connect(**self._settings, autocommit=True)
        pid = connection.info.backend_pid

        def ask() -> str:
            # Whoever only listens is told nothing most of the time.
            return self._ask(pid) if connection.pgconn.transaction_status == _ACTIVE else silence.WORKING

        connection.wait = silence.watched(connection.wait, ask, self._lost(connection), self._write_timeout + 1.0)
        # One type for whole numbers: a statement that is prepared serves small and large ones alike.
        connection.adapters.register_dumper(int, self._psycopg.adapters.get_dumper_by_oid(_INT8, _BINARY))
        return connection

    def settle(self, execute: Callable[..., Any]) -> None:
        """What a session of ours needs to be set, whatever it was before."""
        lock = max(1, int(self._write_timeout * 1000))
        times = {"lock": f"{lock}ms", "statement": f"{STATEMENT}s", "standstill": f"{STANDSTILL}s"}
        *_, writable = execute(_SETTLE, {**times, "durable": self._durable}).fetchone()
        self.writable = self.writable or writable

    @contextlib.contextmanager
    def hurried(self, connection: Any) -> Iterator[None]:
        """Whatever takes longer than a moment in here ends the connection."""
        usual = connection.wait
        connection.wait = silence.watched(usual, lambda: silence.GONE, self._lost(connection), SHORT)
        try:
            yield
        finally:
            connection.wait = usual

    def _lost(self, connection: Any) -> Callable[[], Exception]:
        def lost() -> Exception:
            connection.close()
            error: Exception = self._psycopg.OperationalError(silence.AWAY)
            return error

        return lost

    def _ask(self, pid: int) -> str:
        """Whether the server still works for the connection it gave this number."""
        try:
            with self._psycopg.connect(**self._settings, autocommit=True) as other:
                row = other.execute("SELECT state FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone()
        except self._psycopg.Error as error:
            # One that has no room for us is there.
            return silence.WORKING if reaching.refused(str(error)) else silence.GONE
        return silence.UNHEARD if row and str(row[0]).startswith("idle") else silence.WORKING
