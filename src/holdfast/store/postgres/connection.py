"""Connections to a PostgreSQL server: libpq settings, session settings and the client-side deadline.

A frozen server, or a proxy that lost its backend, keeps its connections open: the kernel still acknowledges TCP
keepalives, and the frozen server cannot enforce statement_timeout. Only the client can end such a wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import sys
import termios
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

import psycopg
from psycopg import conninfo

from holdfast import errors

# psycopg's warnings repeat the errors that are raised; without a handler they would go to stderr.
logging.getLogger("psycopg").addHandler(logging.NullHandler())

# Limits that the server enforces, in seconds: for one statement, and for a client that stalls inside a transaction
# while other writers wait for its locks.
STATEMENT_TIMEOUT = 600.0
IDLE_IN_TRANSACTION_TIMEOUT = 5.0
# After PROBE_AFTER seconds without progress a second connection asks, for at most PROBE_TIMEOUT seconds, whether the
# server still executes the statement. If not, its answer may be in transit for PROBE_GRACE seconds. Together they are
# shorter than the default write_timeout, so that a write can be retried.
PROBE_AFTER = 2.5
PROBE_TIMEOUT = 5
PROBE_GRACE = 1.0
# TCP reports a host that vanished (power cut, network partition) after this many seconds.
KEEPALIVE_TIMEOUT = 15
_NO_ANSWER = "it does not answer"
_MALFORMED = "The PostgreSQL address is malformed. Example: postgresql://user@host:5432/database"

_INT8, _BINARY = 20, psycopg.pq.Format.BINARY
# Write steps require READ COMMITTED, whatever default the role or database sets.
_CONFIGURE = """
SELECT set_config('lock_timeout', %(lock)s, false), set_config('statement_timeout', %(statement)s, false),
       set_config('idle_in_transaction_session_timeout', %(idle)s, false),
       set_config('synchronous_commit', CASE WHEN %(durable)s AND current_setting('synchronous_commit') = 'off'
                                             THEN 'on' ELSE current_setting('synchronous_commit') END, false),
       set_config('default_transaction_isolation', 'read committed', false),
       current_setting('transaction_read_only') = 'off',
       pg_backend_pid(), extract(epoch FROM pg_postmaster_start_time())::text,
       (SELECT extract(epoch FROM backend_start)::text FROM pg_stat_get_activity(pg_backend_pid()))
"""
# A backend that waits for its client is idle, or its answer is stuck. A commit that waits for a synchronous standby may
# wait for ever: PostgreSQL has no timeout for it. `backend_start` is NULL if the address sets a role that may not see
# its own login.
_IS_WORKING = """
SELECT 1 FROM pg_stat_get_activity(%(pid)s)
 WHERE extract(epoch FROM pg_postmaster_start_time())::text = %(server_start)s
   AND extract(epoch FROM backend_start)::text = coalesce(%(start)s, extract(epoch FROM backend_start)::text)
   AND wait_event_type IS DISTINCT FROM 'Client' AND wait_event IS DISTINCT FROM 'SyncRep'
"""

RoundTrip = Generator[Any, Any, Any]


class Backend(NamedTuple):
    """The server process of a connection. After a restart or failover its pid may belong to another one."""

    pid: int
    server_start: str
    start: str | None


class PostgresConnection(psycopg.Connection[Any]):
    """A psycopg connection with a deadline for every round trip, all of which go through `wait`."""

    # Before `configure`.
    probe_after, total_timeout = float(PROBE_TIMEOUT), STATEMENT_TIMEOUT + 1.0
    backend: Backend | None = None
    is_working: Callable[[], bool]
    expire: Callable[[], Exception]

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        bounded = enforce_deadline(
            gen, self.probe_after, self.total_timeout, self.unsent_bytes, self.is_working, self.expire
        )
        return super().wait(bounded, *args, **kwargs)

    def unsent_bytes(self) -> int:
        """Return how many bytes of the request the kernel still has to send; 0 if the platform does not report it."""
        with contextlib.suppress(OSError):
            return int.from_bytes(fcntl.ioctl(self.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
        return 0


def enforce_deadline(
    round_trip: RoundTrip,
    probe_after: float,
    total_timeout: float,
    unsent_bytes: Callable[[], int],
    is_working: Callable[[], bool],
    expire: Callable[[], Exception],
) -> RoundTrip:
    """Wrap a psycopg generator so that it raises `expire()` when the server does not answer.

    After `probe_after` seconds in which no byte was sent or received, `is_working` probes whether the server still
    executes the statement. If it does not, or after `total_timeout` seconds in any case, `expire` closes the connection
    and returns the error to raise. The outcome of the statement is then unknown.
    """
    probe_at = end = 0.0
    unsent, is_doubtful = 0, False
    try:
        wanted = next(round_trip)
        while True:
            # psycopg's wait loop sends 0 after each interval without an event.
            ready = yield wanted
            if not ready:
                # A large request leaves the socket's buffer slowly, and the backend waits for the rest of it.
                unsent_before, unsent = unsent, unsent_bytes()
            if ready or unsent < unsent_before:
                probe_at = 0.0
            else:
                now = time.monotonic()
                end = end or now + total_timeout
                if not probe_at:
                    probe_at, is_doubtful = now + probe_after, False
                elif now > end or (now > probe_at and is_doubtful):
                    raise expire()
                elif now > probe_at:
                    is_doubtful = not is_working()
                    probe_at = time.monotonic() + (PROBE_GRACE if is_doubtful else probe_after)
            wanted = round_trip.send(ready)
    except StopIteration as done:
        return done.value


class Connector:
    """Opens the connections of one driver."""

    def __init__(self, target: str, write_timeout: float, *, durable: bool) -> None:
        try:
            given = conninfo.conninfo_to_dict(target)
        except psycopg.ProgrammingError:
            raise errors.StoreUnusable(_MALFORMED) from None  # libpq's message quotes the address with its password
        # The settings that libpq reads from the environment.
        found = psycopg.pq.Conninfo.get_defaults()
        defaults = {option.keyword.decode(): option.val.decode() for option in found if option.val}
        self._settings = build_settings(given, write_timeout, defaults)
        self.location = describe_location({**defaults, **self._settings})
        self._write_timeout, self._durable = write_timeout, durable
        self.writable = False
        """Whether a server of this address ever accepted writes."""
        self._has_several_hosts = self._settings.get("target_session_attrs", "any") != "any"
        self._last_server: dict[str, Any] | None = None
        """The settings of the server used last, which is tried first: other hosts of the address may be down."""

    def open(self) -> PostgresConnection:
        last = self._last_server  # another thread may reset it
        try:
            connection = self._open(last or self._settings)
        except psycopg.OperationalError:
            if last is None:
                raise
            self._last_server = None
            connection = self._open(self._settings)
        self._last_server = self._same_server(connection) if self._has_several_hosts else None
        # One parameter type for all integers, so that each query is prepared once.
        connection.adapters.register_dumper(int, psycopg.adapters.get_dumper_by_oid(_INT8, _BINARY))
        return connection

    def configure(self, connection: PostgresConnection, execute: Callable[..., Any]) -> None:
        """Apply the session settings of a store and record which backend serves the connection."""
        lock = max(1, int(self._write_timeout * 1000))
        limits = {"lock": f"{lock}ms", "statement": f"{STATEMENT_TIMEOUT}s", "idle": f"{IDLE_IN_TRANSACTION_TIMEOUT}s"}
        *_, writable, pid, server_start, start = execute(_CONFIGURE, {**limits, "durable": self._durable}).fetchone()
        self.writable = self.writable or writable
        connection.backend = Backend(pid, server_start, start)
        connection.probe_after, connection.total_timeout = PROBE_AFTER, STATEMENT_TIMEOUT + 1.0

    def _open(self, settings: dict[str, Any]) -> PostgresConnection:
        connection = PostgresConnection.connect(**settings, autocommit=True)

        def expire() -> Exception:
            # No cancel request: a frozen server accepts the connection for it and never reads it.
            connection.close()
            self._last_server = None
            return psycopg.OperationalError(_NO_ANSWER)

        connection.is_working, connection.expire = lambda: self._is_working(connection), expire
        return connection

    def _is_working(self, connection: PostgresConnection) -> bool:
        """Return whether the backend executes a statement, asking the same server on a second connection."""
        if connection.backend is None:
            return False
        same = {**self._same_server(connection), "target_session_attrs": "any", "connect_timeout": PROBE_TIMEOUT}
        try:
            with self._open(same) as probe:
                probe.total_timeout = PROBE_TIMEOUT
                probe.execute("SET ROLE NONE")  # the login role may see its own backends
                return probe.execute(_IS_WORKING, connection.backend._asdict()).fetchone() is not None
        except psycopg.Error:
            return False

    def _same_server(self, connection: PostgresConnection) -> dict[str, Any]:
        """Return settings that lead to the server of this connection only."""
        info = connection.info
        server = {"host": info.host, "hostaddr": info.hostaddr, "port": info.port}
        rest = {name: value for name, value in self._settings.items() if name not in server}
        return {**rest, **{name: value for name, value in server.items() if value}}


def build_settings(given: Mapping[str, Any], write_timeout: float, defaults: Mapping[str, str]) -> dict[str, Any]:
    """Return libpq settings with timeouts. The environment overrides our defaults, and the address overrides both."""
    host_count = max(str(given.get(name) or defaults.get(name, "")).count(",") + 1 for name in ("host", "hostaddr"))
    own = {
        "application_name": "holdfast",
        "client_encoding": "utf8",
        # libpq tries the hosts in turn: the first may be frozen while the last one accepts writes.
        "connect_timeout": str(max(2, round(min(10, write_timeout) / host_count))),
        "keepalives_idle": str(KEEPALIVE_TIMEOUT),
        "keepalives_interval": "5",
        "keepalives_count": "3",
        "tcp_user_timeout": str(KEEPALIVE_TIMEOUT * 1000),
    }
    if host_count > 1:
        # A standby would return old data and refuse every write.
        own["target_session_attrs"] = "read-write"
    # "any" is libpq's built-in default, not a choice of the user.
    environment = {name: value for name, value in defaults.items() if name in own and value != "any"}
    return {**own, **environment, **given, "client_encoding": "utf8"}


def describe_location(settings: Mapping[str, Any]) -> str:
    host, port = settings.get("host") or settings.get("hostaddr"), settings.get("port") or 5432
    if not host:
        return f"the service {settings['service']}" if settings.get("service") else f"this machine, port {port}"
    return f"the socket in {host}, port {port}" if str(host).startswith("/") else f"{host}, port {port}"
