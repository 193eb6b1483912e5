"""The databases the contract suite runs over. What only one of them knows stays in this file.

A new database is one more class here: the tests themselves never learn which one they have.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import SessionDB

# Damaged on purpose: these are not asked to be sound in the end.
spoiled: weakref.WeakSet[SessionDB] = weakref.WeakSet()

Clock = Callable[[], float]


class SqliteFile:
    """A database other SessionDBs and processes can open too."""

    name = "sqlite"

    def target(self, folder: Path, name: str) -> str:
        return str(folder / f"{name}.db")


class SqliteMemory:
    """A database nobody else can open."""

    name = "memory"

    def target(self, folder: Path, name: str) -> str:
        return ":memory:"


SHARED = [SqliteFile()]
EVERY = [*SHARED, SqliteMemory()]


def open_db(backend: SqliteFile | SqliteMemory, folder: Path, name: str, clock: Clock | None, **more: Any) -> SessionDB:
    # Power is not cut in this suite, so nothing waits for the disk.
    return SessionDB(backend.target(folder, name), clock=clock, **{"durability": "process-crash", **more})


_BREAKS = {
    "missing": "DROP TABLE leases",
    "read-only": """
        CREATE TRIGGER leases_refuse_inserts BEFORE INSERT ON leases BEGIN SELECT raise(ABORT, 'broken'); END;
        CREATE TRIGGER leases_refuse_updates BEFORE UPDATE ON leases BEGIN SELECT raise(ABORT, 'broken'); END;
        CREATE TRIGGER leases_refuse_deletes BEFORE DELETE ON leases BEGIN SELECT raise(ABORT, 'broken'); END;
    """,
    "without a column": "ALTER TABLE leases DROP COLUMN boot",
}
LEASE_BREAKS = sorted(_BREAKS)


def break_leases(db: SessionDB, how: str) -> None:
    """Leave the store without working leases: the table gone, raising, or of another shape."""
    spoiled.add(db)
    db.driver._writer.execute(_BREAKS[how])


def raw(db: SessionDB, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """Change rows behind the store's back, constraints or not."""
    spoiled.add(db)
    connection = db.driver._writer
    connection.pragma("foreign_keys", False)
    rows = connection.execute(sql, values).fetchall()
    connection.pragma("foreign_keys", True)
    return rows


def drop_triggers(db: SessionDB) -> None:
    """Leave nothing in the way of a row that must not be."""
    for (name,) in raw(db, "SELECT name FROM sqlite_schema WHERE type = 'trigger'"):
        raw(db, f"DROP TRIGGER {name}")
    raw(db, "PRAGMA ignore_check_constraints = ON")


# One row each that no step of the store can write; `c` has messages 1 to 3 and one compaction, `b` branches off.
_DAMAGES = {
    "a text was changed": ("P1", "UPDATE messages SET body = '{}' WHERE seq = 2 AND conversation = 1"),
    "a message went": ("P2", "DELETE FROM messages WHERE seq = 2 AND conversation = 1"),
    "the last message went": ("P2", "DELETE FROM messages WHERE seq = 3 AND conversation = 1"),
    "a message is in the wrong session": ("P2", "UPDATE messages SET session = 2 WHERE seq = 1 AND conversation = 1"),
    "a conversation went": ("P1", "DELETE FROM conversations WHERE key = 1"),
    "the head ended alone": (
        "P3",
        "UPDATE sessions SET live = NULL, ended_at = 1, end_reason = 'x', last_seq = 3 WHERE live = 1 AND ordinal = 2",
    ),
    "the conversation ended alone": ("P3", "UPDATE conversations SET live = NULL WHERE key = 1"),
    "the head went back": ("P3", "UPDATE conversations SET head = 1 WHERE key = 1"),
    "an end has no reason": ("P3", "UPDATE sessions SET end_reason = NULL WHERE ordinal = 1 AND conversation = 1"),
    "a session lost its parent": ("P4", "UPDATE sessions SET parent = NULL WHERE ordinal = 2 AND conversation = 1"),
    "a cut lies beyond what was seen": ("P5", "UPDATE compactions SET cut_seq = 3, seen_seq = 2"),
    "a summary saw what came later": ("P5", "UPDATE compactions SET seen_seq = 3 WHERE conversation = 1"),
    "the context stands on nothing": ("P5", "UPDATE conversations SET compaction_epoch = 1 WHERE key = 1"),
    "a hide reaches beyond the log": ("P5", "UPDATE hides SET to_seq = 99"),
    "a token was never given": ("P6", "UPDATE compactions SET token = 99"),
    "the epoch went back": ("P6", "UPDATE conversations SET epoch = 1 WHERE key = 1"),
    "a branch begins beyond its origin": (
        "branches",
        "UPDATE conversations SET forked_at = 9, last_seq = 9 WHERE id = 'b'",
    ),
    "a route leads nowhere": ("routes", "UPDATE routes SET conversation = 99"),
    "a deleted id is in use": ("deletion", "INSERT INTO tombstones VALUES ('c', 1.0)"),
    "a budget is of no conversation": ("budgets", "UPDATE budgets SET conversation = 99"),
    "a budget is not readable": ("budgets", "UPDATE budgets SET body = '{\"spent\":'"),
    "a memory was learnt nowhere": ("memories", "UPDATE memories SET source = 99"),
    "a memory lost its words": ("memories", "UPDATE memories SET text = ''"),
    "what came in is of no conversation": ("inbox", "UPDATE inbox SET conversation = 99"),
    "what came in became no message": ("inbox", "UPDATE inbox SET seq = 99 WHERE outcome IS NOT NULL"),
    "what came in is half settled": ("inbox", "UPDATE inbox SET settled_by = 'u' WHERE outcome IS NULL"),
    "a process is of no conversation": ("processes", "UPDATE processes SET conversation = 99"),
    "a process ended and nobody is told": ("processes", "DELETE FROM inbox WHERE kind = 'process'"),
    "a process runs and has ended": ("processes", "UPDATE processes SET ended_at = 1 WHERE state = 'running'"),
    "a grant holds nowhere": ("grants", "UPDATE grants SET conversation = 99"),
    "an act is of no conversation": ("audit", "UPDATE audit SET conversation = 99"),
    "an act is half ended": ("audit", "UPDATE audit SET ok = NULL WHERE ended_at IS NOT NULL"),
    "what is pinned is not there": ("pins", "UPDATE pins SET seq = 99"),
    "a pin is of no conversation": ("pins", "UPDATE pins SET conversation = 99"),
    "a lease bears no token of ours": ("leases", "UPDATE leases SET token = 99"),
}
DAMAGES = sorted(_DAMAGES)


def damage(db: SessionDB, what: str) -> str:
    """Break one promise behind the store's back; which one."""
    drop_triggers(db)
    promise, sql = _DAMAGES[what]
    raw(db, sql)
    return promise
