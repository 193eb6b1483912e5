"""The databases that the contract suite runs on, and access to their rows without the store."""

from __future__ import annotations

import functools
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from holdfast import SessionDB
from tests.support import conversations, postgres

# Stores that a test damaged on purpose: they are not checked after it.
spoiled: weakref.WeakSet[SessionDB] = weakref.WeakSet()

Clock = Callable[[], float]
MakeDb = Callable[..., SessionDB]
AtPoint = Callable[[Callable[[str], None] | None], None]


class Backend(NamedTuple):
    """A kind of database; the target is what a SessionDB opens for a folder and a name."""

    name: str
    target: Callable[[Path, str], str]


def _sqlite_file(folder: Path, name: str) -> str:
    """A file that other processes can open; a copy of an empty one, because creating one takes long."""
    path = folder / f"{name}.db"
    if not path.exists():
        path.touch(0o600)
        path.write_bytes(_empty_file())
    return str(path)


@functools.cache
def _empty_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "store.db")
        SessionDB(path, clock=lambda: conversations.NOON).close()
        return path.read_bytes()


FILE = Backend("sqlite", _sqlite_file)
MEMORY = Backend("memory", lambda *_: ":memory:")
POSTGRES = Backend("postgres", functools.cache(lambda *_: postgres.fresh()))  # a schema per folder and name
SHARED = [FILE, POSTGRES]
# One for each driver: the result of a single call does not depend on where a file is.
DRIVERS = [POSTGRES, MEMORY]


def _run_on(*chosen: Backend) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("db", chosen, ids=lambda backend: backend.name, indirect=True)


on_memory = _run_on(MEMORY)
"""For tests of arguments that are refused, and of code that knows no database."""
on_files = _run_on(*SHARED)
"""For tests of threads: a database in memory has one connection."""


def open_db(backend: Backend, folder: Path, name: str, clock: Clock | None, **more: Any) -> SessionDB:
    # Power is not cut in this suite, so nothing waits for the disk.
    return SessionDB(backend.target(folder, name), clock=clock, **{"durability": "process-crash", **more})


_BREAKS = {
    "missing": "DROP TABLE leases",
    "a view": "DROP TABLE leases; CREATE VIEW leases AS SELECT 1 AS conversation",
    "read-only": """
        CREATE TRIGGER leases_refuse_inserts BEFORE INSERT ON leases BEGIN SELECT raise(ABORT, 'broken'); END;
        CREATE TRIGGER leases_refuse_updates BEFORE UPDATE ON leases BEGIN SELECT raise(ABORT, 'broken'); END;
        CREATE TRIGGER leases_refuse_deletes BEFORE DELETE ON leases BEGIN SELECT raise(ABORT, 'broken'); END;
    """,
    "without a column": "ALTER TABLE leases DROP COLUMN boot",
}
_POSTGRES_BREAKS = {
    **_BREAKS,
    "read-only": """
        CREATE TRIGGER leases_refuse BEFORE INSERT OR UPDATE OR DELETE ON leases EXECUTE FUNCTION refuse('broken')
    """,
}
LEASE_BREAKS = ("a view", "read-only")
"""Breaks that restoring the schema does not repair."""


def in_postgres(db: SessionDB) -> bool:
    return db.driver.name == "postgres"


def break_leases(db: SessionDB, how: str) -> None:
    """Leave the store without working leases."""
    spoiled.add(db)
    if in_postgres(db):
        _behind(db, _POSTGRES_BREAKS[how])
    else:
        db.driver._writer.execute(_BREAKS[how])


def raw(db: SessionDB, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """Change rows without the store and its constraints."""
    spoiled.add(db)
    if in_postgres(db):
        return _behind(db, sql.replace("?", "%s"), values)
    connection = db.driver._writer
    connection.pragma("foreign_keys", False)
    rows = connection.execute(sql, values).fetchall()
    connection.pragma("foreign_keys", True)
    return rows


def _behind(db: SessionDB, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    with db.driver._transaction() as tx:
        tx.execute("SET session_replication_role = replica")
        try:
            found = tx.execute(sql, values or None)
            rows = found.fetchall() if found.description else []
        finally:
            tx.execute("RESET session_replication_role")
    if sql.split(maxsplit=1)[0] in ("ALTER", "CREATE", "DROP"):
        db.driver._drop_idle()
    return rows


_CONSTRAINTS = """
SELECT r.relname, c.conname FROM pg_constraint c JOIN pg_class r ON r.oid = c.conrelid
 WHERE c.connamespace = current_schema()::regnamespace AND c.contype IN ('c', 'f')
"""


def drop_triggers(db: SessionDB) -> None:
    """Drop triggers and constraints, so that invalid rows can be written."""
    if in_postgres(db):
        tables = raw(db, "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
        drops = [f"ALTER TABLE {table} DROP CONSTRAINT {name}" for table, name in raw(db, _CONSTRAINTS)]
        raw(db, "; ".join(drops + [f"ALTER TABLE {table} DISABLE TRIGGER USER" for (table,) in tables]))
        return
    for (name,) in raw(db, "SELECT name FROM sqlite_schema WHERE type = 'trigger'"):
        raw(db, f"DROP TRIGGER {name}")
    raw(db, "PRAGMA ignore_check_constraints = ON")


def rewrite_bodies(db: SessionDB, body: bytes) -> None:
    """Replace every message body; PostgreSQL stores valid text only."""
    text = body.decode(errors="replace") if in_postgres(db) else body
    raw(db, "UPDATE messages SET body = CAST(? AS TEXT)", text)


def shelved(db: SessionDB) -> dict[str, bytes]:
    """Return all stored content by its digest, sound or not."""
    if in_postgres(db):
        found: dict[str, bytes] = {}
        for digest, content in _behind(db, "SELECT digest, content FROM blob_parts ORDER BY digest, part"):
            found[digest] = found.get(digest, b"") + bytes(content)
        return found
    return {digest: Path(db.blobs.files.path(digest)).read_bytes() for digest, _ in db.blobs.files.files()}


def lose_blob(db: SessionDB, digest: str) -> None:
    if in_postgres(db):
        _behind(db, "DELETE FROM blob_parts WHERE digest = %s", (digest,))
    else:
        Path(db.blobs.files.path(digest)).unlink()


def rewrite_blob(db: SessionDB, digest: str, content: bytes) -> None:
    if in_postgres(db):
        lose_blob(db, digest)
        _behind(db, "INSERT INTO blob_parts VALUES (%s, 0, %s)", (digest, content))
    else:
        Path(db.blobs.files.path(digest)).write_bytes(content)


# Rows that the store cannot write: `c` has messages 1 to 3 and one compaction; `b` is its branch. At least one for each
# promise; tests/faults/forbidden_states.py has all others.
_DAMAGES = {
    "a text was changed": ("P1", "UPDATE messages SET body = '{}' WHERE seq = 2 AND conversation = 1"),
    "a message is missing": ("P2", "DELETE FROM messages WHERE seq = 2 AND conversation = 1"),
    "the last message is missing": ("P2", "DELETE FROM messages WHERE seq = 3 AND conversation = 1"),
    "the head went back": ("P3", "UPDATE conversations SET head = 1 WHERE key = 1"),
    "a session lost its parent": ("P4", "UPDATE sessions SET parent = NULL WHERE ordinal = 2 AND conversation = 1"),
    "a summary saw later messages": ("P5", "UPDATE compactions SET seen_seq = 3 WHERE conversation = 1"),
    "a summary was changed": ("P5", "UPDATE compactions SET body = '{}' WHERE conversation = 1"),
    "a token was never given": ("P6", "UPDATE compactions SET token = 99"),
    "the epoch went back": ("P6", "UPDATE conversations SET epoch = 1 WHERE key = 1"),
    "a branch begins beyond its origin": (
        "branches",
        "UPDATE conversations SET forked_at = 9, last_seq = 9 WHERE id = 'b'",
    ),
    "a deleted id is in use": ("deletion", "INSERT INTO tombstones VALUES ('c', 1.0)"),
    "a memory has an unknown source": ("memories", "UPDATE memories SET source = 99"),
    "a process ended without a notice": ("processes", "DELETE FROM inbox WHERE kind = 'process'"),
    "a lease has a token that was never given": ("leases", "UPDATE leases SET token = 99"),
    **{
        f"{table} of no conversation": (table, f"UPDATE {table} SET conversation = 99")
        for table in ("routes", "budgets", "inbox", "grants", "audit", "pins")
    },
}
DAMAGES = sorted(_DAMAGES)


def damage(db: SessionDB, what: str) -> str:
    """Break one guarantee without the store; return its name."""
    promise, sql = _DAMAGES[what]
    if not in_postgres(db) or not _gets_past(db, sql):
        drop_triggers(db)
        raw(db, sql)
    return promise


def _gets_past(db: SessionDB, sql: str) -> bool:
    """Try without dropping a constraint, which would leave another schema than the declared one."""
    try:
        raw(db, sql)
    except psycopg.IntegrityError:
        return False
    return True
