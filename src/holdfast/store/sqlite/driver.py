"""The SQLite driver, on apsw. No other file knows either.

One connection writes, under a lock for this process's threads, a fair queue for all processes, and
BEGIN IMMEDIATE; others read, each in a snapshot of its own. After every commit the files on disk are
compared with those that were opened: a commit into a file that was unlinked meanwhile is not
acknowledged but done again in the file that is there now.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
import urllib.parse
import weakref
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, TypeVar

import apsw
import msgspec

from holdfast import errors
from holdfast.store import fault_points, queries, schema_plan
from holdfast.store.driver import LeaseClock, Query, Row, Tx, lease_clock
from holdfast.store.sqlite import maintenance, wal_sync, writer_queue
from holdfast.store.sqlite import migration as sqlite_migration
from holdfast.store.sqlite import paths as sqlite_paths

T = TypeVar("T")

# 3.7.0 to 3.51.2 can corrupt a WAL when several processes write and checkpoint it.
OLDEST = (3, 51, 3)
DURABILITY = ("power-loss", "process-crash")
READERS = 4
PAUSE = 0.005
# Seconds that opening or closing a store waits for a process that writes for long, or hangs.
PATIENCE = 1.0
# The inode recorded for a file that was removed while the store was being opened: no file has it.
UNKNOWN = (0, 0)
ATTEMPTS = 3

_TYPED: tuple[tuple[type[apsw.Error], type[errors.StoreError]], ...] = (
    (apsw.BusyError, errors.StoreBusy),
    (apsw.LockedError, errors.StoreBusy),
    (apsw.FullError, errors.StoreFull),
    (apsw.CorruptError, errors.StoreCorrupt),
    (apsw.NotADBError, errors.StoreCorrupt),
    (apsw.ConstraintError, errors.StoreRefused),
    (apsw.ConnectionClosedError, errors.StoreClosed),
    (apsw.ReadOnlyError, errors.StoreUnusable),
    (apsw.CantOpenError, errors.StoreUnusable),
    (apsw.PermissionsError, errors.StoreUnusable),
    (apsw.AuthError, errors.StoreUnusable),
    (apsw.SQLError, errors.StoreBroken),
    (apsw.SchemaChangeError, errors.StoreBroken),
)

# Here SQLite does not tell a full disk from a broken one, and nowhere a quota.
_WRITING = {apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_TRUNCATE, apsw.SQLITE_IOERR_SHMSIZE}

# Text that a flipped bit made invalid reaches apsw as such, and Python cannot decode it.
_FAILURES = (apsw.Error, UnicodeDecodeError)


def translated(error: apsw.Error | UnicodeDecodeError, path: str) -> errors.StoreError:
    """The one place where SQLite's errors become ours. Their texts name tables, never what is in them."""
    if isinstance(error, UnicodeDecodeError):
        return errors.StoreCorrupt(f"{errors.StoreCorrupt()} (stored text is not valid Unicode)")
    if getattr(error, "extendedresult", 0) in _WRITING and sqlite_paths.full(os.path.dirname(path)):
        return errors.StoreFull(f"{errors.StoreFull()} ({path}: {error})")
    if isinstance(error, apsw.CantOpenError | apsw.IOError) and sqlite_paths.out_of_files():
        return sqlite_paths.too_many_files(path)
    for theirs, ours in _TYPED:
        if isinstance(error, theirs):
            where = f"{path}: " if ours in (errors.StoreFull, errors.StoreUnusable) else ""
            return ours(f"{ours()} ({where}{error})")
    return errors.StoreError(f"SQLite failed: {type(error).__name__} ({error})")


class Transaction:
    """One transaction on one connection."""

    def __init__(self, connection: apsw.Connection, sql: dict[str, str], clock: Callable[[], float] | None) -> None:
        self.operation = "read"
        self.shared = False
        self.meant: dict[Any, Any] = {}
        # One cursor for all: a new one for every statement costs more than the statement.
        self.execute = connection.cursor().execute
        self.connection = connection
        self._sql = sql
        self._clock = clock

    def one(self, query: str, /, **values: Any) -> Row | None:
        try:
            return self.execute(self._sql[query], values).fetchone()
        except _FAILURES as error:
            raise translated(error, self.connection.filename) from error

    def all(self, query: str, /, **values: Any) -> list[Row]:
        try:
            return self.execute(self._sql[query], values).fetchall()
        except _FAILURES as error:
            raise translated(error, self.connection.filename) from error

    def run(self, query: str, /, **values: Any) -> int:
        try:
            self.execute(self._sql[query], values)
        except apsw.Error as error:
            raise translated(error, self.connection.filename) from error
        if fault_points.hook is not None:
            fault_points.reach(self.operation, query)
        return self.connection.changes()

    later = run  # a statement more costs nothing here

    def batch(self, *queries: Query) -> list[list[Row]]:
        return [self._rows(query, values) for query, values in queries]

    finish = batch  # the driver commits after the step

    def _rows(self, query: str, values: dict[str, Any]) -> list[Row]:
        rows = self.all(query, **values)
        if fault_points.hook is not None:
            fault_points.reach(self.operation, query)
        return rows

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        self.execute("SAVEPOINT step")
        try:
            yield
        except BaseException:
            # Some failures (a full disk) have undone the whole transaction already.
            if not self.connection.get_autocommit():
                self.execute("ROLLBACK TO step")
                self.execute("RELEASE step")
            raise
        self.execute("RELEASE step")

    @property
    def clock(self) -> LeaseClock:
        return lease_clock(self._clock)


class SqliteDriver(maintenance.Whole):
    """A database file, or `:memory:`, which lives as long as the driver."""

    name = "sqlite"
    asks_plainly, keeps_blobs, stems = False, False, True  # a statement more costs nothing here
    writers = 1
    _forked = False  # whether SQLite was in use when this process was forked

    def __init__(
        self,
        target: str,
        *,
        durability: str = "power-loss",
        clock: Callable[[], float] | None = None,
        write_timeout: float = 10.0,
        plan: schema_plan.Plan = schema_plan.PLAN,
        sql: str = "sqlite",
    ) -> None:
        _check_version(apsw.sqlite_lib_version())
        if self._forked:
            raise errors.StoreForked()
        if durability not in DURABILITY:
            raise errors.InvalidArgument(f"durability is one of {', '.join(DURABILITY)}.")
        self.memory = target == ":memory:"
        self.path = target if self.memory else sqlite_paths.named(target)
        self._durability = durability
        self._clock = clock
        self.write_timeout = write_timeout
        self._folder = sql
        with sqlite_paths.opening(self.path):
            self._sql = queries.load(sql)
        self._plan = plan
        self.pid = os.getpid()
        self._writing = threading.RLock()
        self._idle: list[tuple[int, Transaction]] = []
        self.read_only = ""
        self._closed, self._generation = False, 0
        self._log_path, self._shm_path = f"{self.path}-wal", f"{self.path}-shm"
        self._files: tuple[int, ...] = ()
        self._opened: tuple[int, ...] = ()
        self._mapped: tuple[int, ...] | None = None
        self._log: wal_sync.Log | None = None
        self._line: writer_queue.Turnstile | None = None
        _alive.add(self)
        try:
            with self._translating():
                self._open()
        except BaseException:
            self._closed = True
            if self._line is not None:
                self._line.close()
            raise

    # --- opening and closing -------------------------------------------------------------------------

    def _open(self, *, create: bool = True) -> None:
        # Why nothing can be written there; empty when it can. Asked again before each write that finds it read-only.
        self.read_only = "" if self.memory else sqlite_paths.read_only(self.path)
        if not self.memory and not self.read_only:
            if create:
                sqlite_paths.prepare(self.path)
            elif not os.path.exists(self.path):
                raise errors.StoreMoved(f"The database file {self.path} is gone; nothing was acknowledged.")
            self._wait_for_stale()
        self._writer = self._connect(reader=False)
        self._tx = Transaction(self._writer, self._sql, self._clock)
        try:
            self._prepare_schema()
        except BaseException:
            self._writer.close()
            if self._line is not None:
                self._line.close()
                self._line = None
            raise
        self._writer.set_busy_timeout(0)  # from here on it stands in line
        if not self.memory and not self.read_only:
            sqlite_paths.tighten(self.path + suffix for suffix in _FILES)
            # The -shm file that is mapped, not the one at its path: it may have been replaced since.
            shm = sqlite_paths.inode(self._shm_path) if self._mapped is None else self._mapped
            main, log = sqlite_paths.inode(self.path), sqlite_paths.inode(self._log_path)
            self._opened = self._writer.files = (main or UNKNOWN) + (log or UNKNOWN) + (shm or UNKNOWN)
            with sqlite_paths.opening(self._log_path):
                self._log = wal_sync.Log(self._log_path) if self._durability == "power-loss" else None
            self._files = self._opened

    def _connect(self, *, reader: bool) -> _Connection:
        flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if self.memory else 0)
        connection = _open_to_read(self.path, self.read_only) if self.read_only else _Connection(self.path, flags)
        try:
            self._set_up(connection, reader)
        except BaseException:
            connection.close()  # not left to the collector: a new one would share the -shm file that it mapped
            raise
        return connection

    def _set_up(self, connection: _Connection, reader: bool) -> None:
        connection.files = self._files
        connection.set_busy_timeout(int(self.write_timeout * 1000))
        # What closes a connection unseen (the collector, a forked child) must not remove a log that others write to.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        # Plans that do not depend on bound values: without this, joins are planned anew at every call.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        if not self.memory and not reader:
            self._mapped = self._map_shm(connection)
        if not self.memory and not reader and not self.read_only:
            self._line = self._line or writer_queue.Turnstile(self.path + ".queue")
        if not self.memory and not self.read_only and connection.pragma("journal_mode") != "wal":
            self._in_line(lambda: connection.pragma("journal_mode", "wal"))
        # Enough for SQLite to keep the file sound; what is acknowledged is synced in `write`.
        connection.pragma("synchronous", "NORMAL")
        connection.pragma("foreign_keys", True)
        # Without it, INSERT OR REPLACE would delete rows behind the triggers' back.
        connection.pragma("recursive_triggers", True)
        if connection.pragma("foreign_keys") != 1 or connection.pragma("recursive_triggers") != 1:
            raise errors.StoreUnusable("This SQLite enforces no foreign keys or triggers.")
        connection.pragma("journal_size_limit", 64 * 1024 * 1024)
        connection.pragma("secure_delete", True)  # what is deleted is overwritten; appends delete nothing

    def _map_shm(self, connection: apsw.Connection) -> tuple[int, ...] | None:
        """Do the first read of a connection; return the inode of the -shm file that SQLite mapped for it.

        If there is none, SQLite makes it from the log. It does so in line: a process that has not yet noticed that the
        file was removed may be writing to the log.
        """
        queue = f"{self.path}.queue"
        if not self.read_only and os.path.exists(queue):  # a file of another program has none
            self._line = self._line or writer_queue.Turnstile(queue)
            there = sqlite_paths.inode(self._shm_path)
            try:
                return self._line.run(PATIENCE if there else self.write_timeout, self._read_first, connection)
            except errors.StoreBusy:
                if not there:
                    raise
                self._refuse_foreign(connection)
                return there
        self._refuse_foreign(connection)
        return None

    def _read_first(self, connection: apsw.Connection) -> tuple[int, ...]:
        self._refuse_foreign(connection)
        # Another connection of this process may have mapped a file that is not there any more; SQLite shares that one.
        return (not self._is_stale() and sqlite_paths.inode(self._shm_path)) or UNKNOWN

    def _refuse_foreign(self, connection: apsw.Connection) -> None:
        """Before anything is changed in it; in one snapshot, as another process may be making it just now."""
        connection.execute("BEGIN")
        found = connection.pragma("application_id")
        filled = bool(sqlite_migration.entries(connection.execute))
        connection.execute("ROLLBACK")
        if found != sqlite_migration.APPLICATION_ID and (found != 0 or filled):
            raise errors.StoreUnusable(f"{self.path} is a database of another program.")

    def _prepare_schema(self) -> None:
        if sqlite_migration.is_current(self._writer.execute, self._plan):
            return
        self._in_line(self._reconcile)
        fault_points.reach("migrate", "committed")

    def _reconcile(self) -> None:
        self._begin()
        try:
            now = self._clock() if self._clock else time.time()
            sqlite_migration.reconcile(self._writer.execute, self._plan, _declared(self._folder), now)
            fault_points.reach("migrate", "committing")
            self._tx.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def _in_line(self, work: Callable[[], T]) -> T:
        if self.read_only:
            raise errors.StoreUnusable(f"{self.path} can only be read: {self.read_only}. Nothing was written.")
        return work() if self._line is None else self._line.run(self.write_timeout, self._checked, work)

    def _checked(self, work: Callable[[], T]) -> T:
        """Do the work unless the -shm file was replaced: with the old one it would overwrite others' commits.

        Once at the front of the queue is enough: no process creates another one before this process leaves it.
        """
        if files := self._files:
            try:
                found = os.stat(self._shm_path)
            except OSError:
                raise _Stale() from None
            if found.st_ino != files[4] or found.st_dev != files[5]:
                raise _Stale()
        return work()

    def close(self) -> None:
        if self._closed or self.pid != os.getpid():
            return
        with self._writing:
            self._closed = True
            self._drop_connections()
            if self._line is not None:
                self._line.close()

    def _drop_connections(self) -> None:
        if self._line is not None and self._opened:
            with contextlib.suppress(errors.StoreBusy):  # the log is left to the next process that closes the store
                self._line.run(PATIENCE, self._close_all, True)
        self._close_all(False)

    def _close_all(self, empty_log: bool) -> None:
        """Close all connections; with `empty_log`, SQLite empties and removes the log if no other process is there.

        That is done in line, and not with a replaced -shm file: it lacks the commits of other processes.
        """
        # The log too: whoever syncs has it still, and a file that is gone takes up room while it is open.
        idle, self._idle, self._log = self._idle, [], None
        for _, tx in idle:
            tx.connection.close()
        opened = self._opened[:2] + self._opened[4:]
        if empty_log and opened == sqlite_paths.inode(self.path) + sqlite_paths.inode(self._shm_path):
            with contextlib.suppress(apsw.ConnectionClosedError):
                self._writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
        self._writer.close()

    # --- other files ---------------------------------------------------------------------------------

    def _translating(self) -> contextlib.AbstractContextManager[None]:
        return _translating(self.path)

    def _elsewhere(self, path: str, *, look: bool = False) -> apsw.Connection:
        return apsw.Connection(path, apsw.SQLITE_OPEN_READONLY if look else apsw.SQLITE_OPEN_READWRITE)

    def _file(self) -> apsw.VFSFile:
        return apsw.VFSFile("", self.path, [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READWRITE, 0])

    def adopt(self, path: str) -> SqliteDriver:
        return SqliteDriver(path, durability="process-crash", clock=self._clock)

    def _transaction(self, connection: apsw.Connection) -> Transaction:
        return Transaction(connection, self._sql, self._clock)

    def _declared_here(self) -> sqlite_migration.Entries:
        return _declared(self._folder)

    # --- a file beside it ----------------------------------------------------------------------------

    def side(self, name: str) -> SqliteDriver:
        target = ":memory:" if self.memory or self.read_only else f"{self.path}.{name}"
        # It can be made again, so it need not survive a power loss, nor is it worth a long wait.
        return SqliteDriver(
            target, durability="process-crash", clock=self._clock, write_timeout=2.0, sql=f"sqlite_{name}"
        )

    def has_side(self, name: str) -> bool:
        return not self.memory and not self.read_only and os.path.exists(f"{self.path}.{name}")

    def discard_side(self, name: str) -> None:
        for suffix in () if self.memory or self.read_only else _FILES:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self.path}.{name}{suffix}")

    # --- writing -------------------------------------------------------------------------------------

    def write(self, operation: str, step: Callable[[Tx], T], *, lasting: bool = True) -> T:
        result, log = self._commit(operation, step)
        if log is not None and lasting:
            self._sync(log)
        return result

    def _commit(self, operation: str, step: Callable[[Tx], T]) -> tuple[T, wal_sync.Log | None]:
        """Committed, and into which log: it is synced when nobody waits for this thread any more."""
        if self.pid != os.getpid():
            raise errors.StoreForked()
        if not self._writing.acquire(timeout=self.write_timeout):
            raise errors.StoreBusy()
        try:
            self._check_open()
            self._mend_log()
            self._meant: dict[Any, Any] = {}
            for _ in range(ATTEMPTS):
                try:
                    result = self._attempt(operation, step)
                    if self.memory or self._is_reachable():
                        return result, self._log
                except _Stale:
                    pass
                # Not committed, or committed into an unlinked file: not acknowledged, done again.
                self._reopen()
            raise errors.StoreMoved()
        except apsw.Error as error:
            raise translated(error, self.path) from error
        finally:
            self._writing.release()

    def _attempt(self, operation: str, step: Callable[[Tx], T]) -> T:
        return self._in_line(partial(self._transact, operation, step))

    def _transact(self, operation: str, step: Callable[[Tx], T]) -> T:
        tx = self._tx
        tx.operation, tx.meant = operation, self._meant
        if fault_points.hook is not None:
            fault_points.reach(operation, "queued")
        self._begin()
        try:
            if fault_points.hook is not None:
                fault_points.reach(operation, "begun")
            result = step(tx)
            if fault_points.hook is not None:
                fault_points.reach(operation, "committing")
            tx.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        if fault_points.hook is not None:
            fault_points.reach(operation, "committed")
        return result

    def _begin(self) -> None:
        try:
            self._tx.execute("BEGIN IMMEDIATE")
        except apsw.BusyError:
            self._begin_patiently()

    def _begin_patiently(self) -> None:
        """The front of the line, and still locked: a foreign program writes, or there is no line."""
        deadline = time.monotonic() + self.write_timeout
        while True:
            time.sleep(random.uniform(0.0002, 0.004))
            try:
                self._tx.execute("BEGIN IMMEDIATE")
                return
            except apsw.BusyError:
                if time.monotonic() > deadline:
                    raise

    def _roll_back(self) -> None:
        if not self._writer.get_autocommit():
            with contextlib.suppress(apsw.Error):
                self._tx.execute("ROLLBACK")

    def _is_reachable(self) -> bool:
        """Whether the database and the log that were written to are still at their paths."""
        try:
            main, log = os.stat(self.path), os.stat(self._log_path)
        except OSError:
            return False
        return (main.st_ino, main.st_dev, log.st_ino, log.st_dev) == self._files[:4]

    def _files_now(self) -> tuple[int, ...]:
        """Which files are at the paths now: of the database, its log and -shm file; empty when one is not there."""
        try:
            main, log, shm = os.stat(self.path), os.stat(self._log_path), os.stat(self._shm_path)
        except OSError:
            return ()
        return (main.st_ino, main.st_dev, log.st_ino, log.st_dev, shm.st_ino, shm.st_dev)

    def _reopen(self) -> None:
        self._files = ()
        sqlite_paths.refuse_strange_log(self.path, self._opened)
        self._generation += 1
        self._drop_connections()
        self._open(create=False)

    def _wait_for_stale(self) -> None:
        """Until no connection of this process has a log or a -shm file mapped that is not at its path any more.

        SQLite maps one -shm file per database and process: a new connection would share the old one.
        """
        deadline = time.monotonic() + self.write_timeout
        while self._is_stale():
            if time.monotonic() > deadline:
                raise _Stale()
            for other in list(_alive):
                if other.path == self.path and other is not self and other._writing.acquire(blocking=False):
                    try:
                        other._let_go()
                    finally:
                        other._writing.release()
            time.sleep(PAUSE)

    def _is_stale(self) -> bool:
        main, now = sqlite_paths.inode(self.path), self._files_now()
        return any(files[:2] == main and files != now for files in _opened_files())

    def _let_go(self) -> None:
        """Of files that were replaced; the next call opens those that are there."""
        if not self._closed and self._files != self._files_now():
            self._files = ()
            self._generation += 1
            self._drop_connections()

    def _check_open(self) -> None:
        if self._closed:
            raise errors.StoreClosed()
        # Lost when the file was gone the last time; it may have come back.
        if not self._files and not self.memory:
            self._reopen()

    # --- reading -------------------------------------------------------------------------------------

    def read(self, step: Callable[[Tx], T]) -> T:
        self._check_usable()
        if self.memory:
            return self._read_in_memory(step)
        if not self.read_only and (not self._files or self._files_now() != self._files):
            with self._writing, self._translating():
                if not self._files or self._files_now() != self._files:
                    self._reopen()
        with self._translating():
            generation, tx = self._reader()
            try:
                tx.execute("BEGIN")
                return step(tx)
            finally:
                self._put_back(generation, tx)

    def _reader(self) -> tuple[int, Transaction]:
        try:
            return self._idle.pop()
        except IndexError:
            return self._generation, Transaction(self._connect(reader=True), self._sql, self._clock)

    def _put_back(self, generation: int, tx: Transaction) -> None:
        if not tx.connection.get_autocommit():
            tx.execute("ROLLBACK")
        # A connection opened as immutable takes no locks. If a writer may start, each read opens a new one.
        keep = len(self._idle) < READERS and generation == self._generation and not self._closed
        if keep and not self.read_only:
            self._idle.append((generation, tx))
        else:
            tx.connection.close()

    def _read_in_memory(self, step: Callable[[Tx], T]) -> T:
        with self._writing, self._translating():
            return step(self._tx)

    # --- facts ---------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        self._check_usable()
        with self._writing, self._translating():
            pragma = self._writer.pragma
            facts: dict[str, Any] = {
                "engine": "SQLite",
                "version": apsw.sqlite_lib_version(),
                "path": self.path,
                "durability": self._durability,
                "format": pragma("user_version"),
                "journal": pragma("journal_mode"),
                "page_size": pragma("page_size"),
                "pages": pragma("page_count"),
                "free_pages": pragma("freelist_count"),
                "read_only": self.read_only,
            }
        if not self.memory:
            facts["filesystem"] = sqlite_paths.filesystem(os.path.realpath(os.path.dirname(self.path) or "."))
            facts["files"] = {suffix or "main": sqlite_paths.size_and_mode(self.path + suffix) for suffix in _FILES}
        return facts

    def _check_usable(self) -> None:
        if self.pid != os.getpid():
            raise errors.StoreForked()
        if self._closed:
            raise errors.StoreClosed()


_FILES = ("", "-wal", "-shm", ".queue")


class _Connection(apsw.Connection):
    """A connection that records the files it was opened with, readable while another thread uses it."""

    files: tuple[int, ...] = ()


def _open_to_read(path: str, reason: str) -> _Connection:
    """A connection to a store that cannot be written, also where SQLite cannot make the files it needs beside it."""
    connection = _Connection(path, apsw.SQLITE_OPEN_READONLY)
    try:
        connection.pragma("schema_version")
    except (apsw.CantOpenError, apsw.ReadOnlyError):
        connection.close()
    else:
        return connection
    # Every process that opens the store creates a -shm file. Without one, the store is not open elsewhere, and the
    # database file is complete if the log is empty.
    log = sqlite_paths.size_and_mode(f"{path}-wal")
    if os.path.exists(f"{path}-shm") or (log and log["bytes"]):
        raise errors.StoreUnusable(
            f"{path} cannot be read: {reason}, and its newest messages are in {path}-wal. Make both writable, "
            "or copy them together to a folder that is, and open the copy."
        )
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    return _Connection(f"file:{urllib.parse.quote(path)}?immutable=1", flags)


def _opened_files() -> list[tuple[int, ...]]:
    """Inodes of the database, log and -shm file that each connection of this process was opened with."""
    return [each.files for each in apsw.connections() if isinstance(each, _Connection) and each.files]


def refuse_live(path: str) -> None:
    """Refuse to open a file of a store that is open here: closing it would cancel the locks SQLite holds on it."""
    found = sqlite_paths.inode(path)
    if any(found in (files[:2], files[4:]) for files in _opened_files()):
        raise errors.StoreUnusable(f"{errors.shown(path, 250)} belongs to a store that is open; name another file.")


class _Stale(errors.StoreMoved):
    """The -wal or -shm file of the store was removed or replaced while it was open. Nothing was acknowledged."""


@contextlib.contextmanager
def _translating(path: str) -> Iterator[None]:
    try:
        yield
    except _FAILURES as error:
        raise translated(error, path) from error


def _check_version(version: str) -> None:
    if tuple(int(part) for part in version.split(".")) < OLDEST:
        raise errors.StoreUnusable(
            f"This apsw carries SQLite {version}, which can corrupt a WAL that several processes write; "
            f"at least {'.'.join(map(str, OLDEST))} is needed. Upgrade with: pip install --upgrade apsw"
        )


@cache
def _declared(folder: str) -> sqlite_migration.Entries:
    """The declared schema, as SQLite itself keeps it."""
    scratch = apsw.Connection(":memory:")
    scratch.execute(queries.schema(folder))
    return sqlite_migration.entries(scratch.execute)


# --- forks -----------------------------------------------------------------------------------------------

# SQLite lists the POSIX locks of its process in memory. A fork copies the list and none of the locks, so a child that
# opens the file again overwrites commits of others; it also copies mutexes that a thread of the parent holds, on which
# any call to SQLite waits for ever. SQLite cannot be reset: such a child is refused every store.
_alive: weakref.WeakSet[SqliteDriver] = weakref.WeakSet()


class _Leak(msgspec.Struct, gc=False):
    """Keeps an object from being freed, even when the interpreter ends: the collector does not see this cycle."""

    kept: Any
    itself: Any = None


def _abandon_inherited() -> None:
    """In a forked child: neither use nor close what was open in the parent."""
    drivers, connections = list(_alive), apsw.connections()
    SqliteDriver._forked |= bool(connections) or not all(driver._closed for driver in drivers)
    leak = _Leak((drivers, connections, apsw))  # the module closes every connection when it is freed
    leak.itself = leak
    for driver in drivers:
        if driver._line is not None:  # a place in line kept here would outlive the parent
            driver._line.let_go()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_inherited)
