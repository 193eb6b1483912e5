"""Operations on a whole SQLite database: copy, replace, scrub, shrink, check and repair.

Copies are made by SQLite's online backup, which reads one snapshot while other processes write. It also replaces the
content of a database in one transaction: other processes see the old content or the new, in the file they have open.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import apsw

from holdfast import errors, fault_points
from holdfast.store import queries
from holdfast.store.driver import SCHEMA_PLAN, Execute, Progress, SchemaFault, Tx
from holdfast.store.sqlite import migration
from holdfast.store.sqlite.connection import connect_file
from holdfast.store.sqlite.database_file import OpenDatabase
from holdfast.store.sqlite.errors import translate_errors
from holdfast.store.sqlite.transaction import SqliteTransaction, transact

T = TypeVar("T")

BACKUP_PAGES = 2_000  # about 8 MB between two progress reports
SCRUB_POLL_SECONDS = 0.02

READER_BLOCKS_SCRUB = (
    "Another process is reading, so the WAL could not be emptied and may still contain removed content. "
    "Try again when that process is done."
)
_NOTE_SCRUB = "INSERT INTO meta VALUES ('scrubbed_at', ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"


class Maintenance(OpenDatabase):
    """The maintenance operations of the SQLite driver."""

    def copy_to(self, path: str, finish: Callable[[Tx], object], progress: Progress | None = None) -> None:
        """Copy one snapshot into an empty file; `finish` then runs in a transaction of the copy."""
        self._check_usable()
        with translate_errors(self.path), self._snapshot() as source, contextlib.closing(connect_file(path)) as target:
            target.pragma("journal_mode", "memory")
            target.pragma("synchronous", "off")  # the caller syncs the finished file
            _copy_pages(source, target, "backup", progress)
            # A file in WAL mode could not be read without its -wal and -shm files.
            target.pragma("journal_mode", "delete")
            transact(self._transaction(target), finish)
            fault_points.reach("backup", "finished")

    @contextlib.contextmanager
    def _snapshot(self) -> Iterator[apsw.Connection]:
        if not self.has_file:
            with self._write_lock:
                yield self._writer
            return
        with contextlib.closing(self._connect_reader()) as source:
            source.execute("BEGIN; SELECT count(*) FROM sqlite_schema")
            yield source
            source.execute("ROLLBACK")

    def replace_with(self, path: str, finish: Callable[[Tx, Tx], T], progress: Progress | None = None) -> T:
        """Replace the whole content by that of a file, in one transaction; return the result of `finish`.

        `finish` reads the old content (first) and may change the new (second). No other process writes meanwhile.
        """
        with self._exclusive():
            result: T = self._run_in_queue(self._replace, path, finish, progress)
            # The restored schema has a new cookie, which is recorded here.
            self._prepare_schema()
            if self._wal is not None:
                self._sync(self._wal)
        return result

    def _replace(self, path: str, finish: Callable[[Tx, Tx], T], progress: Progress | None) -> T:
        with contextlib.closing(connect_file(path)) as source:
            source.pragma("journal_mode", "delete")
            old = self._transaction(self._writer)
            result = transact(self._transaction(source), lambda new: finish(old, new))
            fault_points.reach("restore", "finished")
            for tx in (old, self._tx):
                tx.execute("SELECT NULL").fetchall()  # ends a query that was read in part and counts as a reader
            if not self.has_file:
                _copy_pages(source, self._writer, "restore", progress)
                return result
            with contextlib.closing(self._connect_reader()) as target:
                _copy_pages(source, target, "restore", progress)
                target.set_busy_timeout(0)
                _checkpoint(target)  # fails while other processes read the old content; a later one succeeds
        return result

    def scrub(self) -> None:
        self._check_usable()
        if not self.has_file:
            return
        began = self._now()
        # Deleted text is left on pages that SQLite has rebalanced, whatever `secure_delete` overwrites.
        self._rewrite("scrub")
        deadline = time.monotonic() + self.write_timeout
        with translate_errors(self.path), contextlib.closing(self._connect_reader()) as connection:
            connection.set_busy_timeout(0)
            while True:
                with self._exclusive():
                    if self._run_in_queue(_checkpoint, connection):
                        break
                # Wait for readers outside of the queue, so that other processes can write meanwhile.
                if time.monotonic() > deadline:
                    raise errors.StoreBusy(READER_BLOCKS_SCRUB)
                time.sleep(SCRUB_POLL_SECONDS)
        fault_points.reach("scrub", "emptied")

        def note(tx: SqliteTransaction) -> None:
            tx.execute(_NOTE_SCRUB, (repr(began),))

        with self._exclusive():
            self._run_in_queue(transact, self._tx, note, self.write_timeout)
        fault_points.reach("scrub", "done")

    def shrink(self) -> None:
        self._rewrite("shrink")
        fault_points.reach("shrink", "done")

    def _rewrite(self, operation: str) -> None:
        """Write all pages anew."""
        with self._exclusive():
            if self.has_file:
                self._check_free_space()
            self._run_in_queue(self._vacuum, operation)
            self._prepare_schema()

    def _check_free_space(self) -> None:
        """Raise StoreFull unless the WAL has space for all pages that are in use."""
        pages = self._writer.pragma("page_count") - self._writer.pragma("freelist_count")
        needed = pages * self._writer.pragma("page_size")
        free = shutil.disk_usage(os.path.dirname(self.path)).free
        if free < needed:
            raise errors.StoreFull(
                f"Rewriting {self.path} needs {needed / 1e6:,.1f} MB of free space; "
                f"{free / 1e6:,.1f} MB are available. Nothing was written. Free some space and try again."
            )

    def _vacuum(self, operation: str) -> None:
        fault_points.reach(operation, "begun")
        self._writer.set_busy_timeout(int(self.write_timeout * 1000))
        try:
            self._writer.execute("VACUUM")
        finally:
            self._writer.set_busy_timeout(0)  # writers must not wait for a reader that prevents the checkpoint
        fault_points.reach(operation, "rewritten")
        if self.has_file:
            _checkpoint(self._writer)  # fails while other processes read; a later one returns the space

    def integrity_errors(self) -> list[str]:
        with self._exclusive():
            return check_integrity(self._writer.execute)

    def schema_faults(self) -> list[SchemaFault]:
        with self._exclusive():
            return migration.faults(self._writer.execute, self._plan, migration.declared_schema(self._folder))

    def repair_schema(self) -> None:
        with self._exclusive():
            self._run_in_queue(self._reconcile)


class SqliteCopy:
    """A database file that no process writes to, such as a backup, opened read-only."""

    def __init__(self, path: str) -> None:
        self._path = path
        with translate_errors(path):
            self._connection = connect_file(path, read_only=True)
        self._tx = SqliteTransaction(self._connection, queries.load("sqlite"), None)

    def read(self, step: Callable[[Tx], T]) -> T:
        with translate_errors(self._path):
            self._tx.execute("BEGIN")
            try:
                return step(self._tx)
            finally:
                self._tx.execute("ROLLBACK")

    def integrity_errors(self) -> list[str]:
        with translate_errors(self._path):
            return check_integrity(self._connection.execute)

    def schema_faults(self) -> list[SchemaFault]:
        with translate_errors(self._path):
            return migration.faults(self._connection.execute, SCHEMA_PLAN, migration.declared_schema("sqlite"))

    def was_opened(self) -> bool:
        """Return whether it was opened as a store since the copy was made."""
        with translate_errors(self._path):
            return bool(self._connection.pragma("journal_mode") == "wal")

    def copy_to(self, path: str) -> None:
        with translate_errors(path), contextlib.closing(connect_file(path)) as target:
            target.pragma("journal_mode", "memory")
            _copy_pages(self._connection, target, "restore", None)

    def close(self) -> None:
        self._connection.close()


def check_integrity(execute: Execute) -> list[str]:
    """Return the damage that SQLite finds in a database."""
    found = [str(row[0]) for row in execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
    broken = {f"a row of {row[0]} refers to a missing row of {row[2]}" for row in execute("PRAGMA foreign_key_check")}
    return found + sorted(broken)


def _copy_pages(source: apsw.Connection, target: apsw.Connection, operation: str, progress: Progress | None) -> None:
    """Copy all pages in one transaction of the target."""
    with target.backup("main", source, "main") as copying:
        while not copying.done:
            copying.step(BACKUP_PAGES)
            fault_points.reach(operation, "pages")
            if progress:
                progress(copying.page_count - copying.remaining, copying.page_count)
    fault_points.reach(operation, "copied")


def _checkpoint(connection: apsw.Connection) -> bool:
    """Move the WAL into the database file and truncate it; return whether no other process prevented that."""
    row = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return row is not None and row[0] == 0
