"""What SQLite does to a database as a whole: copy it, replace it, scrub it, examine it.

A copy is made by SQLite's online backup, which reads one snapshot while others write. It also replaces the
content of a database in one transaction: whatever happens, others find the old content or the new, in the
same file they have open.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from holdfast import errors
from holdfast.store import durable, points, port, reconcile

T = TypeVar("T")

# Some 8 MB at a time: often enough to show progress.
PAGES = 2_000


class Whole:
    """The part of the SQLite driver that works on whole databases. Connections are the driver's."""

    memory: bool
    _writer: Any
    _tx: Any
    _log: durable.Log | None
    _writing: threading.RLock
    _write_timeout: float
    _check_usable: Callable[[], None]
    _in_line: Callable[[Callable[[], Any]], Any]
    _prepare_schema: Callable[[], None]
    _connect: Callable[..., Any]
    _elsewhere: Callable[..., Any]
    _transaction: Callable[[Any], Any]
    _translating: Callable[[], contextlib.AbstractContextManager[None]]
    _declared_here: Callable[[], reconcile.Entries]

    def copy_to(self, path: str, finish: Callable[[port.Tx], object], progress: port.Progress | None = None) -> None:
        self._check_usable()
        with self._translating(), self._source() as source, contextlib.closing(self._elsewhere(path)) as target:
            target.pragma("journal_mode", "memory")
            target.pragma("synchronous", "off")  # whoever asked for the copy syncs the finished file
            _pages(source, target, "backup", progress)
            # In the mode of a database in use it could not be read without files beside it.
            target.pragma("journal_mode", "delete")
            _transact(self._transaction(target), finish)
            points.reach("backup", "finished")

    @contextlib.contextmanager
    def _source(self) -> Iterator[Any]:
        if self.memory:
            with self._writing:
                yield self._writer
            return
        with contextlib.closing(self._connect(reader=True)) as source:
            source.execute("BEGIN; SELECT count(*) FROM sqlite_schema")  # from here on it is one snapshot
            yield source
            source.execute("ROLLBACK")

    def replace_with(
        self, path: str, finish: Callable[[port.Tx, port.Tx], object], progress: port.Progress | None = None
    ) -> None:
        self._check_usable()
        with self._writing, self._translating():
            self._in_line(lambda: self._replace(path, finish, progress))
            # SQLite has told everybody to read the schema again; the note of what was read is written anew.
            self._prepare_schema()
            if self._log is not None:
                self._sync(self._log)

    def _sync(self, log: durable.Log) -> None:
        """When this returns, everything committed so far survives a loss of power."""
        if not log.synced():
            with self._writing, self._translating():
                if log is not self._log:
                    raise errors.StoreError(durable.HOLED)
                self._mend_log()

    def _mend_log(self) -> None:
        """What is in a log with a hole goes into the database, which is synced too; or StoreError."""
        if self._log is None or not self._log.holed:
            return
        work = self._writer.execute
        busy, *_ = self._in_line(lambda: work("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() or (1,))
        if busy:
            raise errors.StoreError(durable.HOLED)
        self._log.holed = False

    def _replace(self, path: str, finish: Callable[[port.Tx, port.Tx], object], progress: port.Progress | None) -> None:
        with contextlib.closing(self._elsewhere(path)) as source:
            source.pragma("journal_mode", "delete")
            old = self._transaction(self._writer)
            _transact(self._transaction(source), lambda new: finish(old, new))
            points.reach("restore", "finished")
            for tx in (old, self._tx):
                tx.execute("SELECT NULL").fetchall()  # a query left half read would count as a reader
            if self.memory:
                _pages(source, self._writer, "restore", progress)
                return
            with contextlib.closing(self._connect(reader=True)) as target:
                _pages(source, target, "restore", progress)
                target.set_busy_timeout(0)
                _checkpoint(target)  # or later: readers of the old content may be there still

    def scrub(self) -> None:
        self._check_usable()
        with self._writing, self._translating():
            try:
                self._in_line(self._vacuum)
            finally:
                self._writer.set_busy_timeout(0)
            self._prepare_schema()
            points.reach("scrub", "done")

    def _vacuum(self) -> None:
        self._writer.set_busy_timeout(int(self._write_timeout * 1000))
        points.reach("scrub", "begun")
        # Pages that were split keep copies of what moved out of them; only new pages surely have none.
        self._writer.execute("VACUUM")
        points.reach("scrub", "rewritten")
        if not self.memory and not _checkpoint(self._writer):
            raise errors.StoreBusy(
                "A process that reads kept the log from being emptied; what was removed may still be in it. Try again."
            )
        points.reach("scrub", "emptied")

    def look_at(self, path: str) -> Copy:
        self._check_usable()
        with self._translating():
            connection = self._elsewhere(path, look=True)
        return Copy(
            connection, self._transaction(connection), self._declared_here(), self._translating, self._elsewhere
        )


class Copy:
    """A database in a file nobody writes to, opened to be read."""

    def __init__(
        self,
        connection: Any,
        tx: Any,
        declared: reconcile.Entries,
        translating: Callable[[], contextlib.AbstractContextManager[None]],
        elsewhere: Callable[..., Any],
    ) -> None:
        self._connection = connection
        self._tx = tx
        self._declared = declared
        self._translating = translating
        self._elsewhere = elsewhere

    def read(self, step: Callable[[port.Tx], T]) -> T:
        with self._translating():
            self._tx.execute("BEGIN")
            try:
                return step(self._tx)
            finally:
                self._tx.execute("ROLLBACK")

    def complaints(self) -> list[str]:
        with self._translating():
            return complaints(self._connection.execute, self._declared)

    def used(self) -> bool:
        with self._translating():
            return bool(self._connection.pragma("journal_mode") == "wal")

    def copy_to(self, path: str, progress: port.Progress | None = None) -> None:
        with self._translating(), contextlib.closing(self._elsewhere(path)) as target:
            target.pragma("journal_mode", "memory")
            _pages(self._connection, target, "restore", progress)

    def close(self) -> None:
        self._connection.close()


def complaints(execute: reconcile.Execute, declared: reconcile.Entries) -> list[str]:
    """What SQLite finds wrong with a database, and what of its schema is not there."""
    found = [str(row[0]) for row in execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
    broken = {f"a row of {row[0]} refers to a missing row of {row[2]}" for row in execute("PRAGMA foreign_key_check")}
    return found + sorted(broken) + list(reconcile.lacking(execute, declared))


def _pages(source: Any, target: Any, operation: str, progress: port.Progress | None) -> None:
    """All of source into target, which is left as it was unless all of it arrives."""
    with target.backup("main", source, "main") as copying:
        while not copying.done:
            copying.step(PAGES)
            points.reach(operation, "pages")
            if progress:
                progress(copying.page_count - copying.remaining, copying.page_count)
    points.reach(operation, "copied")


def _transact(tx: Any, step: Callable[[port.Tx], object]) -> None:
    tx.execute("BEGIN IMMEDIATE")
    step(tx)
    tx.execute("COMMIT")


def _checkpoint(connection: Any) -> bool:
    """Everything from the log into the database file, and the log emptied; whether nobody was in the way."""
    return bool(connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0)
