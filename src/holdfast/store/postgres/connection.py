"""Connections to a PostgreSQL server: prepared for a store, and bounded by a client-side deadline.

psycopg is passed in, as only the driver's own module imports it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

from holdfast.store.postgres import deadline

# Limits that the server enforces: for one statement, and for a client that stops in the middle of a transaction, which
# keeps other writers waiting.
STATEMENT = 600.0
STANDSTILL = 5.0
# For the question whether another process listens: a receipt waits for it.
SHORT = 0.5
# After SILENCE seconds without a byte the server is asked whether it still executes the statement, which may take PROBE
# seconds, like the first statement of a connection. Together they are shorter than the default write_timeout, so that a
# write has time left for another connection.
SILENCE = 2.5
PROBE = 5
EXPIRED = "it does not answer"

_INT8, _BINARY = 20, 1  # as PostgreSQL numbers types, and libpq formats
# Steps are written for READ COMMITTED, whatever the role or the database has as its default.
_SETTLE = """
SELECT set_config('lock_timeout', %(lock)s, false), set_config('statement_timeout', %(statement)s, false),
       set_config('idle_in_transaction_session_timeout', %(standstill)s, false),
       set_config('synchronous_commit', CASE WHEN %(durable)s AND current_setting('synchronous_commit') = 'off'
                                             THEN 'on' ELSE current_setting('synchronous_commit') END, false),
       set_config('default_transaction_isolation', 'read committed', false),
       current_setting('transaction_read_only') = 'off',
       pg_backend_pid(), extract(epoch FROM pg_postmaster_start_time())::text,
       (SELECT extract(epoch FROM backend_start)::text FROM pg_stat_get_activity(pg_backend_pid()))
"""
# A backend that waits for its client is idle, or its answer does not get through. A commit that waits for a synchronous
# standby may wait for ever: PostgreSQL has no timeout for it. `backend_start` is unknown (NULL) where the address sets
# a role that may not see its own login.
_IS_WORKING = """
SELECT 1 FROM pg_stat_get_activity(%(pid)s)
 WHERE extract(epoch FROM pg_postmaster_start_time())::text = %(server_start)s
   AND extract(epoch FROM backend_start)::text = coalesce(%(start)s, extract(epoch FROM backend_start)::text)
   AND wait_event_type IS DISTINCT FROM 'Client' AND wait_event IS DISTINCT FROM 'SyncRep'
"""


class Backend(NamedTuple):
    """The server process behind a connection: on a promoted standby or a restarted server its pid is another's."""

    pid: int
    server_start: str
    start: str | None


class Connections:
    """Makes the connections of one driver."""

    def __init__(self, psycopg: ModuleType, settings: dict[str, Any], write_timeout: float, *, durable: bool) -> None:
        self._psycopg, self._settings, self._write_timeout = psycopg, settings, write_timeout
        self._durable = durable
        self.writable = False
        """Whether the server, or one of them, was ever seen to take writes."""
        self._several = settings.get("target_session_attrs", "any") != "any"
        self._found: dict[str, Any] | None = None
        """Of several servers, the settings of the one that was found last: not every connection tries those first that
        are frozen or switched off."""

    def open(self) -> Any:
        found = self._found  # another thread may forget it
        try:
            connection = self._open(found or self._settings)
        except self._psycopg.OperationalError:
            if found is None:
                raise
            self._found = None
            connection = self._open(self._settings)
        self._found = self._same_server(connection) if self._several else None
        # One type for whole numbers: a statement that is prepared serves small and large ones alike.
        connection.adapters.register_dumper(int, self._psycopg.adapters.get_dumper_by_oid(_INT8, _BINARY))
        return connection

    def settle(self, connection: Any, execute: Callable[..., Any]) -> None:
        """Set what a session of ours needs, whatever it was before, and note which backend serves it."""
        lock = max(1, int(self._write_timeout * 1000))
        times = {"lock": f"{lock}ms", "statement": f"{STATEMENT}s", "standstill": f"{STANDSTILL}s"}
        *_, writable, pid, server_start, start = execute(_SETTLE, {**times, "durable": self._durable}).fetchone()
        self.writable = self.writable or writable
        connection.backend = Backend(pid, server_start, start)
        connection.wait.silence = SILENCE

    @contextlib.contextmanager
    def limited(self, connection: Any, silence: float | None = None, total: float = math.inf) -> Iterator[None]:
        """Other limits for the round trips inside the block."""
        wait: deadline.Deadline = connection.wait
        usual = wait.silence, wait.total
        wait.silence, wait.total = usual[0] if silence is None else silence, total
        try:
            yield
        finally:
            wait.silence, wait.total = usual

    def _open(self, settings: dict[str, Any], total: float = STATEMENT + 1.0) -> Any:
        connection = self._psycopg.connect(**settings, autocommit=True)
        connection.backend = None

        def expire() -> Exception:
            # No cancel request: a frozen server accepts the connection for it, and never reads it.
            connection.close()
            self._found = None
            error: Exception = self._psycopg.OperationalError(EXPIRED)
            return error

        connection.wait = deadline.Deadline(
            connection.wait, PROBE, total, is_working=lambda: self._is_working(connection), expire=expire
        )
        return connection

    def _is_working(self, connection: Any) -> bool:
        """Ask the same server, on another connection, whether this one's backend executes a statement."""
        if connection.backend is None:
            return False
        same = {**self._same_server(connection), "target_session_attrs": "any", "connect_timeout": PROBE}
        try:
            with self._open(same, PROBE) as other:
                other.execute("SET ROLE NONE")  # the login may see its own backends
                return other.execute(_IS_WORKING, connection.backend._asdict()).fetchone() is not None
        except self._psycopg.Error:
            return False

    def _same_server(self, connection: Any) -> dict[str, Any]:
        """Settings that lead to the server of this connection and to no other."""
        there = connection.info
        place = {"host": there.host, "hostaddr": there.hostaddr, "port": there.port}
        rest = {name: value for name, value in self._settings.items() if name not in place}
        return {**rest, **{name: value for name, value in place.items() if value}}
