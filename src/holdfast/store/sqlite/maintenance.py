"""What is done to a database as a whole: copy it, replace it, scrub it, examine it.

A copy is made by SQLite's online backup, which reads one snapshot while others write. It also replaces the
content of a database in one transaction: whatever happens, others find the old content or the new, in the
same file they have open.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from holdfast import errors
from holdfast.store import fault_points, notifications, schema_plan
from holdfast.store.driver import Progress, Tx
from holdfast.store.sqlite import migration as sqlite_migration
from holdfast.store.sqlite import page_slack, wal_sync

T = TypeVar("T")

# Some 8 MB at a time: often enough to show progress.
PAGES = 2_000
PAUSE = 0.02

IN_THE_WAY = (
    "A process that reads kept the log from being emptied; what was removed may still be in it. "
    "Try again when it is done."
)
# Counted, since a clock may stand still.
_SCRUBBED = """
INSERT INTO meta VALUES ('scrubs', '1') ON CONFLICT (key) DO UPDATE SET value = value + 1;
INSERT INTO meta VALUES ('scrubbed_at', ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value;
"""


class Whole:
    """The part of the SQLite driver that works on whole databases. Connections are the driver's."""

    memory: bool
    path: str
    _writer: Any
    _tx: Any
    _log: wal_sync.Log | None
    _writing: threading.RLock
    write_timeout: float
    _clock: Callable[[], float] | None
    facts: Callable[[], dict[str, Any]]
    _check_usable: Callable[[], None]
    _in_line: Callable[[Callable[[], Any]], Any]
    _plan: schema_plan.Plan
    _prepare_schema: Callable[[], None]
    _reconcile: Callable[[], None]
    _connect: Callable[..., Any]
    _elsewhere: Callable[..., Any]
    _file: Callable[[], Any]
    _transaction: Callable[[Any], Any]
    _translating: Callable[[], contextlib.AbstractContextManager[None]]
    _declared_here: Callable[[], sqlite_migration.Entries]

    def listen(self, heard: Callable[[notifications.Hint], None]) -> bool:  # noqa: ARG002
        """A file tells nobody that it was written to."""
        return False

    def standing(self) -> dict[str, Any]:
        return self.facts()

    def allow(self, role: str) -> list[str]:
        raise errors.StoreUnusable(f"SQLite has no roles such as {errors.shown(role)}; the mode of the file decides.")

    def copy_to(self, path: str, finish: Callable[[Tx], object], progress: Progress | None = None) -> None:
        self._check_usable()
        with self._translating(), self._source() as source, contextlib.closing(self._elsewhere(path)) as target:
            target.pragma("journal_mode", "memory")
            target.pragma("synchronous", "off")  # whoever asked for the copy syncs the finished file
            _pages(source, target, "backup", progress)
            # In the mode of a database in use it could not be read without files beside it.
            target.pragma("journal_mode", "delete")
            _transact(self._transaction(target), finish)
            fault_points.reach("backup", "finished")

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

    def replace_with(self, path: str, finish: Callable[[Tx, Tx], object], progress: Progress | None = None) -> None:
        self._check_usable()
        with self._writing, self._translating():
            self._in_line(lambda: self._replace(path, finish, progress))
            # SQLite has told everybody to read the schema again; the note of what was read is written anew.
            self._prepare_schema()
            if self._log is not None:
                self._sync(self._log)

    def _sync(self, log: wal_sync.Log) -> None:
        """When this returns, everything committed so far survives a loss of power."""
        if not log.synced():
            with self._writing, self._translating():
                if log is not self._log:
                    raise errors.StoreError(wal_sync.HOLED)
                self._mend_log()

    def _mend_log(self) -> None:
        """What is in a log with a hole goes into the database, which is synced too; or StoreError."""
        if self._log is None or not self._log.holed:
            return
        work = self._writer.execute
        busy, *_ = self._in_line(lambda: work("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() or (1,))
        if busy:
            raise errors.StoreError(wal_sync.HOLED)
        self._log.holed = False

    def _replace(self, path: str, finish: Callable[[Tx, Tx], object], progress: Progress | None) -> None:
        with contextlib.closing(self._elsewhere(path)) as source:
            source.pragma("journal_mode", "delete")
            old = self._transaction(self._writer)
            _transact(self._transaction(source), lambda new: finish(old, new))
            fault_points.reach("restore", "finished")
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
        if self.memory:
            return
        deadline = time.monotonic() + self.write_timeout
        with self._translating(), contextlib.closing(self._connect(reader=True)) as own:
            own.set_busy_timeout(0)
            while not self._wiped(own):
                # Readers are waited for outside of the line: SQLite itself would let nobody write meanwhile.
                if time.monotonic() > deadline:
                    raise errors.StoreBusy(IN_THE_WAY)
                time.sleep(PAUSE)
        fault_points.reach("scrub", "done")

    def _wiped(self, own: Any) -> bool:
        with self._writing:
            return bool(self._in_line(lambda: self._wipe(own)))

    def _wipe(self, own: Any) -> bool:
        """With an empty log and nobody writing, what is not clear can be cleared in the file itself."""
        fault_points.reach("scrub", "begun")
        if not _checkpoint(own):
            return False
        fault_points.reach("scrub", "emptied")
        _transact(self._transaction(own), lambda _: self._clear(own))
        return True

    def _clear(self, own: Any) -> None:
        if os.path.getsize(f"{self.path}-wal"):
            raise errors.StoreBusy()  # somebody who does not stand in line was faster
        file = self._file()
        try:
            page_slack.clear(file)
        finally:
            file.xClose()
        fault_points.reach("scrub", "cleared")
        # A commit makes everybody forget the pages they remember, which are as they were before.
        own.execute(_SCRUBBED, (repr(self._clock() if self._clock else time.time()),))

    def shrink(self) -> None:
        self._check_usable()
        with self._writing, self._translating():
            try:
                self._in_line(self._vacuum)
            finally:
                self._writer.set_busy_timeout(0)
            self._prepare_schema()

    def _vacuum(self) -> None:
        self._writer.set_busy_timeout(int(self.write_timeout * 1000))
        fault_points.reach("shrink", "begun")
        self._writer.execute("VACUUM")
        fault_points.reach("shrink", "rewritten")
        if not self.memory:
            _checkpoint(self._writer)  # or later: the room is given back when the last reader has gone

    def complaints(self) -> list[str]:
        self._check_usable()
        with self._writing, self._translating():
            return complaints(self._writer.execute)

    def faults(self) -> list[schema_plan.Fault]:
        self._check_usable()
        with self._writing, self._translating():
            return sqlite_migration.faults(self._writer.execute, self._plan, self._declared_here())

    def repair_schema(self) -> None:
        self._check_usable()
        with self._writing, self._translating():
            self._in_line(self._reconcile)

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
        declared: sqlite_migration.Entries,
        translating: Callable[[], contextlib.AbstractContextManager[None]],
        elsewhere: Callable[..., Any],
    ) -> None:
        self._connection = connection
        self._tx = tx
        self._declared = declared
        self._translating = translating
        self._elsewhere = elsewhere

    def read(self, step: Callable[[Tx], T]) -> T:
        with self._translating():
            self._tx.execute("BEGIN")
            try:
                return step(self._tx)
            finally:
                self._tx.execute("ROLLBACK")

    def complaints(self) -> list[str]:
        with self._translating():
            return complaints(self._connection.execute)

    def faults(self) -> list[schema_plan.Fault]:
        with self._translating():
            return sqlite_migration.faults(self._connection.execute, schema_plan.PLAN, self._declared)

    def used(self) -> bool:
        with self._translating():
            return bool(self._connection.pragma("journal_mode") == "wal")

    def copy_to(self, path: str, progress: Progress | None = None) -> None:
        with self._translating(), contextlib.closing(self._elsewhere(path)) as target:
            target.pragma("journal_mode", "memory")
            _pages(self._connection, target, "restore", progress)

    def close(self) -> None:
        self._connection.close()


def complaints(execute: schema_plan.Execute) -> list[str]:
    """What SQLite finds wrong with a database."""
    found = [str(row[0]) for row in execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
    broken = {f"a row of {row[0]} refers to a missing row of {row[2]}" for row in execute("PRAGMA foreign_key_check")}
    return found + sorted(broken)


def _pages(source: Any, target: Any, operation: str, progress: Progress | None) -> None:
    """All of source into target, which is left as it was unless all of it arrives."""
    with target.backup("main", source, "main") as copying:
        while not copying.done:
            copying.step(PAGES)
            fault_points.reach(operation, "pages")
            if progress:
                progress(copying.page_count - copying.remaining, copying.page_count)
    fault_points.reach(operation, "copied")


def _transact(tx: Any, step: Callable[[Tx], object]) -> None:
    tx.execute("BEGIN IMMEDIATE")
    try:
        step(tx)
        tx.execute("COMMIT")
    except BaseException:
        if not tx.connection.get_autocommit():
            tx.execute("ROLLBACK")
        raise


def _checkpoint(connection: Any) -> bool:
    """Everything from the log into the database file, and the log emptied; whether nobody was in the way."""
    return bool(connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0)
