"""The check of a store after every test, and all its rows for comparisons.

A whole fsck of PostgreSQL plans some thirty statements on a new connection, which takes longer than most tests. Here
the same checks are one prepared statement on a connection that stays open; fsck runs only if it finds something.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Iterator
from typing import Any, cast

import apsw
import psycopg

from holdfast import SessionDB, types
from holdfast.store import fsck, queries
from holdfast.store.driver import Row, Tx
from holdfast.store.postgres import definitions
from holdfast.store.sqlite import migration as sqlite_migration

_SQL, _SQLITE_SQL = queries.load("postgres"), queries.load("sqlite")
# Every check of fsck at once.
_BROKEN = " UNION ALL ".join(f"(SELECT broken::text FROM ({_SQL[name]}) broken)" for name in fsck.CHECKS)

# The search index is derived from the other tables.
_TABLES = [name for name in definitions.declared_schema().names("table") if not name.startswith("search_")]
_ROWS = " UNION ALL ".join(f"SELECT '{name}', kept::text FROM {name} kept" for name in _TABLES)
_SQLITE_TABLES = [name for kind, name in sqlite_migration.declared_schema("sqlite") if kind == "table"]


def rows(db: SessionDB) -> list[Row]:
    """Return all rows of a store."""
    if db.driver.name != "postgres":
        return db.driver.read(_all_of)
    with _looking(db.driver.target) as tx:
        return sorted(tx.all("rows"))


def _all_of(tx: Tx) -> list[Row]:
    return [(name, *row) for name in _SQLITE_TABLES for row in tx.execute(f"SELECT * FROM {name}")]


def report(db: SessionDB) -> types.Report | None:
    """Return the fsck report of a damaged store, or None."""
    if db.driver.name == "postgres" and _keeps_its_promises(db.driver.target):
        return None
    found = db.admin.fsck()
    return None if found.ok else found


def _keeps_its_promises(target: str) -> bool:
    try:
        with _looking(target) as tx:
            return not is_broken(tx)
    except psycopg.Error:
        return False


def is_broken(tx: Tx) -> bool:
    """Return whether fsck would find a violation in the rows that a transaction sees."""
    return bool(tx.all("broken") or fsck._check_summaries(tx) or fsck._check_digests(tx, 0, None))


class Look:
    """The part of a transaction that fsck needs."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._connection = connection

    def all(self, query: str, /, **values: Any) -> list[Row]:
        sql = {"broken": _BROKEN, "rows": _ROWS}.get(query) or _SQL[query]
        return self._connection.execute(sql, values or None, prepare=True).fetchall()


class SqliteLook:
    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def all(self, query: str, /, **values: Any) -> list[Row]:
        names = fsck.CHECKS if query == "broken" else [query]
        return [row for name in names for row in self._connection.execute(_SQLITE_SQL[name], values)]


@contextlib.contextmanager
def _looking(target: str) -> Iterator[Tx]:
    connection = _connection(os.getpid(), target)
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield cast("Tx", Look(connection))


_KEPT = 4  # A run has few stores, and uses each one repeatedly.
_open: dict[tuple[int, str], psycopg.Connection[tuple[Any, ...]]] = {}


def _connection(pid: int, target: str) -> psycopg.Connection[tuple[Any, ...]]:
    connection = _open.pop((pid, target), None)
    if connection is None or connection.closed:
        connection = psycopg.connect(target, autocommit=True)
    _open[pid, target] = connection
    _close(pid, keep=_KEPT)
    return connection


def _close(pid: int, keep: int) -> None:
    """Close the connections that a process opened, except the newest ones."""
    own = [key for key in _open if key[0] == pid]
    for key in own[: len(own) - keep]:
        _open.pop(key).close()


atexit.register(lambda: _close(os.getpid(), keep=0))
