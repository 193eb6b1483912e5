"""Translate PostgreSQL errors into Holdfast errors, and decide which are retried.

Writers run concurrently. A constraint violation or a deadlock may mean that another writer was faster: the step runs
again, sees the committed state and reports the outcome itself.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import psycopg

from holdfast import errors

T = TypeVar("T")

# By SQLSTATE prefix; the first match wins.
_ERRORS_BY_SQLSTATE: tuple[tuple[str, type[errors.StoreError]], ...] = (
    ("40", errors.StoreBusy),  # deadlock or serialization failure
    ("55P03", errors.StoreBusy),  # lock_timeout
    ("55006", errors.StoreBusy),
    ("57014", errors.StoreBusy),  # statement_timeout
    ("57", errors.StoreUnreachable),  # the server starts or shuts down
    ("25P03", errors.StoreUnreachable),  # idle_in_transaction_session_timeout
    ("25P04", errors.StoreUnreachable),  # transaction_timeout
    ("08", errors.StoreUnreachable),
    ("53100", errors.StoreFull),
    ("53", errors.StoreBusy),
    ("54", errors.StoreFull),
    ("23", errors.StoreRefused),
    ("P0001", errors.StoreRefused),  # raised by a trigger
    ("22", errors.StoreRefused),
    ("XX001", errors.StoreCorrupt),
    ("XX002", errors.StoreCorrupt),
    ("XX", errors.StoreBroken),  # usually a concurrent schema change
    ("58", errors.StoreCorrupt),
    ("25006", errors.StoreUnusable),  # read-only, e.g. a standby
    ("42501", errors.StoreUnusable),
    ("26000", errors.StoreUnusable),  # a prepared statement is missing, or belongs to another client
    ("42P05", errors.StoreUnusable),
    ("28", errors.StoreUnusable),
    ("3D", errors.StoreUnusable),
    ("3F", errors.StoreUnusable),
    ("42", errors.StoreBroken),
    ("0A", errors.StoreBroken),
)
# A concurrent writer may be the cause: unique and foreign keys, deadlocks, schema changes.
_CONFLICTS = ("23505", "23503", "40001", "40P01", "0A000", "XX000")
# The connection keeps failing while a new one may not: its prepared statements belong to an older schema, or its
# server is read-only.
STALE_CONNECTION = ("0A000", "XX000", "25006")
# For a refused login, which has no SQLSTATE in psycopg.
_LOGIN_REFUSED = "08004"

_READ_ONLY = "The database is read-only (a standby, or configured so); use the address of its primary"
_SHARED_BY_POOLER = (
    "A connection pooler shares this connection between clients; set its pool_mode = session, or use the address of "
    "the server itself"
)
_MESSAGES = {"25006": _READ_ONLY, "26000": _SHARED_BY_POOLER, "42P05": _SHARED_BY_POOLER}


def translate(error: Exception, location: str) -> errors.StoreError:
    """Return the Holdfast error for a psycopg error. Its text may name tables but never quotes a row."""
    state = getattr(error, "sqlstate", None)
    if state is None and isinstance(error, psycopg.OperationalError):
        return connection_error(location, str(error))
    message = getattr(getattr(error, "diag", None), "message_primary", None)
    return from_sqlstate(state or "", message or type(error).__name__, location)


def from_sqlstate(state: str, message: str, location: str) -> errors.StoreError:
    kind = next((kind for prefix, kind in _ERRORS_BY_SQLSTATE if state.startswith(prefix)), errors.StoreError)
    message = _MESSAGES.get(state, message)
    if kind is errors.StoreUnreachable:
        error: errors.StoreError = errors.StoreUnreachable(location, message)
    else:
        error = kind(f"{kind.default_message} ({message})")
    error.sqlstate = state
    return error


def connection_error(location: str, text: str) -> errors.StoreError:
    """Return the error for a connection that failed or was lost, from libpq's message."""
    reason, transient, remedy = parse_connection_failure(text)
    if transient:
        return errors.StoreUnreachable(location, reason)
    if remedy:
        return errors.StoreUnusable(f"No connection to PostgreSQL at {location}: {reason.rstrip('.')}. {remedy}")
    error = errors.StoreUnusable(f"PostgreSQL at {location} refused the connection: {reason}.")
    error.sqlstate = _LOGIN_REFUSED
    return error


class ConnectionFailure(NamedTuple):
    """Why a connection failed, whether a retry may help, and what to do if not."""

    reason: str
    transient: bool
    remedy: str = ""


# The server's part of a message: the severity in the server's language, a colon and two spaces.
_SERVER_MESSAGE = re.compile(r"[^\W\d_]+ ?:  +(.+)")
# Refusals that no retry changes. Messages in other languages do not match and are retried.
_PERMANENT = re.compile(
    r"authentication failed|authentication rejected|does not exist|no pg_hba\.conf entry|rejects connection|"
    r"not permitted to|permission denied|password|configuration parameter|value for parameter|command-line argument|"
    r"unsupported frontend protocol|no such (?:database|user)"
)
# Configuration errors on the client's side.
_REMEDIES = (
    (re.compile(r"no password supplied"), "Set it in ~/.pgpass or PGPASSWORD."),
    (re.compile(r"definition of service|service file"), "Define the service in PGSERVICEFILE or ~/.pg_service.conf."),
    (
        re.compile(
            r"certificate|private key|SSL was required|sslmode|unknown ca|protocol version|wrong version number"
        ),
        "Check sslmode and sslrootcert in the address, or PGSSLMODE and PGSSLROOTCERT.",
    ),
)


def parse_connection_failure(text: str) -> ConnectionFailure:
    found = _SERVER_MESSAGE.findall(text)
    if found:
        return ConnectionFailure(found[-1].strip(), not _PERMANENT.search(found[-1]))
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no answer"]
    reason = re.sub(r".* failed: ", "", lines[0])
    remedy = next((remedy for pattern, remedy in _REMEDIES if pattern.search(reason)), "")
    return ConnectionFailure(reason, not remedy, remedy)


# --- retries ------------------------------------------------------------------------------------------


def should_run_in_transaction(error: errors.StoreError) -> bool:
    """Return whether a step that failed as a single statement should run as a transaction."""
    known = (errors.StoreRefused, errors.StoreUnreachable, errors.StoreUnusable, errors.StoreBroken)
    # A plain StoreError never reached the server: psycopg could not convert the values into one array.
    return isinstance(error, known) or type(error) is errors.StoreError or error.sqlstate in _CONFLICTS


class RetryPolicy:
    """Limits how often and how long a step is retried.

    A refused login is retried, because the store was open before. With `writable`, so is a read-only server: a standby
    may be promoted. `lost` is the error of an earlier attempt that may have been committed.
    """

    def __init__(
        self, seconds: float, attempts: int, *, writable: bool = True, lost: errors.StoreUnreachable | None = None
    ) -> None:
        self._unavailable = (_LOGIN_REFUSED, "25006") if writable else (_LOGIN_REFUSED,)
        self._until = time.monotonic() + seconds
        self._left = attempts
        self._refused = False
        self._lost_attempt = lost
        self._pause = 0.01

    def run(self, attempt: Callable[[], T]) -> T:
        while True:
            try:
                return attempt()
            except errors.StoreError as error:
                self.retry_or_raise(error)

    def retry_or_raise(self, error: errors.StoreError) -> None:
        """Return when the step may be retried; otherwise raise the error."""
        state = error.sqlstate
        if isinstance(error, errors.StoreUnreachable) or state in self._unavailable:
            self._wait(error)
        elif state in _CONFLICTS and self._left > 0:
            self._left -= 1
            # Random, so that two writers that collided do not collide again.
            time.sleep(random.uniform(0, 0.002))
        elif isinstance(error, errors.StoreRefused) and state and not self._refused:
            # A concurrent writer may have reached a limit first; the retried step reports that.
            self._refused = True
        elif self._lost_attempt is not None and isinstance(error, errors.StoreBusy | errors.StoreFull):
            # These claim that nothing was written, but an earlier attempt with a lost connection may be committed.
            raise self._lost_attempt
        else:
            raise error

    def _wait(self, error: errors.StoreError) -> None:
        if isinstance(error, errors.StoreUnreachable):
            self._lost_attempt = error
        if time.monotonic() + self._pause > self._until:
            raise error
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, 0.5)
