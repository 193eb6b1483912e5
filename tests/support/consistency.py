"""What is asked of a store after every test: whether it kept its promises; and, of some, whether anything changed.

A whole fsck of a PostgreSQL store plans some thirty statements on a connection that was just made, and looks at every
constraint and every part of the schema: that takes longer than most tests. Here the same checks are one statement,
prepared once, on a connection that stays. Whoever finds nothing broken that way is done; else fsck says what it is.

Constraints are not looked at (the server keeps them, and a test that gets around them says so), nor the schema (a
store whose schema changed is not emptied and used again, see tests/support/postgres.py).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, cast

import psycopg

from holdfast import SessionDB, types
from holdfast.store import fsck, queries
from holdfast.store.driver import Row, Tx
from holdfast.store.postgres import definitions
from holdfast.store.sqlite import migration as sqlite_migration

_SQL = queries.load("postgres")
# Every check of fsck at once; what it is called is only told by fsck itself.
_BROKEN = " UNION ALL ".join(f"(SELECT broken::text FROM ({_SQL[name]}) broken)" for name in fsck.CHECKS)

# What is searched by is made from the rest, whenever somebody looks for something.
_TABLES = [name for name in definitions.declared_schema().names("table") if not name.startswith("search_")]
_ROWS = " UNION ALL ".join(f"SELECT '{name}', kept::text FROM {name} kept" for name in _TABLES)
_SQLITE_TABLES = [name for kind, name in sqlite_migration.declared_schema("sqlite") if kind == "table"]


def rows(db: SessionDB) -> list[Row]:
    """All that a store holds: equal before and after means that nothing was changed."""
    if db.driver.name != "postgres":
        return db.driver.read(_all_of)
    with _looking(db.driver.target) as tx:
        return sorted(tx.all("rows"))


def _all_of(tx: Tx) -> list[Row]:
    """Of SQLite, where a look at a table costs next to nothing."""
    return [(name, *row) for name in _SQLITE_TABLES for row in tx.execute(f"SELECT * FROM {name}")]


def report(db: SessionDB) -> types.Report | None:
    """What is wrong with a store, or None."""
    if db.driver.name == "postgres" and _keeps_its_promises(db.driver.target):
        return None
    found = db.admin.fsck()
    return None if found.ok else found


def _keeps_its_promises(target: str) -> bool:
    try:
        with _looking(target) as tx:
            return not (tx.all("broken") or fsck._check_summaries(tx) or fsck._check_digests(tx, 0, None))
    except psycopg.Error:
        return False


class _Look:
    """As much of a transaction as fsck's own looks need."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._connection = connection

    def all(self, query: str, /, **values: Any) -> list[Row]:
        sql = {"broken": _BROKEN, "rows": _ROWS}.get(query) or _SQL[query]
        return self._connection.execute(sql, values or None, prepare=True).fetchall()


@contextlib.contextmanager
def _looking(target: str) -> Iterator[Tx]:
    connection = _connection(os.getpid(), target)
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield cast("Tx", _Look(connection))


_KEPT = 4  # the stores of a run are few, and each is used again and again
_open: dict[tuple[int, str], psycopg.Connection[tuple[Any, ...]]] = {}


def _connection(pid: int, target: str) -> psycopg.Connection[tuple[Any, ...]]:
    connection = _open.pop((pid, target), None)
    if connection is None or connection.closed:
        connection = psycopg.connect(target, autocommit=True)
    _open[pid, target] = connection
    for key in [key for key in _open if key[0] == pid][:-_KEPT]:
        _open.pop(key).close()
    return connection
