"""An open SQLite store: its connections, its place in the writer queue, and the files behind its paths.

One connection writes, any number read. The inodes of the database, WAL and -shm file are recorded when the store is
opened. If a file at one of these paths is removed or replaced later, the store opens the new files: SQLite itself would
continue to write to files that no other process can open.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import apsw
import msgspec

from holdfast import errors, fault_points
from holdfast.store import queries
from holdfast.store.driver import SCHEMA_PLAN, SchemaPlan
from holdfast.store.sqlite import connection as connections
from holdfast.store.sqlite import migration, paths, wal_sync
from holdfast.store.sqlite.errors import translate_errors
from holdfast.store.sqlite.transaction import SqliteTransaction, transact
from holdfast.store.sqlite.writer_queue import WriterQueue

T = TypeVar("T")

FILE_SUFFIXES = ("", "-wal", "-shm", ".queue")
STALE_POLL_SECONDS = 0.005
# Limit for opening or closing a store while another process writes for long, or hangs.
QUEUE_SECONDS = 1.0
# Recorded for a file that was removed while the store was being opened; no file has this inode.
NO_INODE = (0, 0)


class FilesReplaced(errors.StoreMoved):
    """Raised when the -wal or -shm file was removed or replaced while the store was open."""

    default_message = (
        "The -wal or -shm file of the store was removed or replaced while it was open. Nothing was acknowledged."
    )


class OpenDatabase:
    """A database file, or `:memory:`, which lives as long as this object."""

    _forked = False  # whether SQLite was in use when this process was forked

    def __init__(
        self,
        target: str,
        *,
        durability: str = "power-loss",
        clock: Callable[[], float] | None = None,
        write_timeout: float = 10.0,
        plan: SchemaPlan = SCHEMA_PLAN,
        sql: str = "sqlite",
    ) -> None:
        connections.check_version(apsw.sqlite_lib_version())
        if self._forked:
            raise errors.StoreForked()
        self.has_file = target != ":memory:"
        self.path = paths.resolve(target) if self.has_file else target
        self.write_timeout = write_timeout
        self.pid = os.getpid()
        self.read_only = ""  # why the store cannot be written; empty if it can
        self._wal_path, self._shm_path = f"{self.path}-wal", f"{self.path}-shm"
        self._durability, self._clock, self._plan, self._folder = durability, clock, plan, sql
        with paths.translate_open_errors(self.path):
            self._sql = queries.load(sql)
        self._write_lock = threading.RLock()
        self._queue: WriterQueue | None = None
        self._wal: wal_sync.Wal | None = None
        self._idle: list[tuple[int, SqliteTransaction]] = []  # readers, with the generation of files they have open
        self._closed, self._generation = False, 0
        self._opened: paths.Inodes | None = None
        # As `_opened` while the files are in place; None if they are not, and for `:memory:` and read-only stores.
        self._files: paths.Inodes | None = None
        _instances.add(self)
        try:
            with translate_errors(self.path):
                self._open()
        except BaseException:
            self._closed = True
            raise

    # --- opening -------------------------------------------------------------------------------------

    def _open(self, *, create: bool = True) -> None:
        self.read_only = paths.read_only_reason(self.path) if self.has_file else ""
        writable = self.has_file and not self.read_only
        if writable:
            if create:
                paths.create_file(self.path)
            elif not os.path.exists(self.path):
                raise errors.StoreMoved(
                    f"The database file {self.path} does not exist any more; nothing was acknowledged."
                )
            self._wait_for_stale_connections()
        self._writer = connections.connect(self.path, self.write_timeout, self.read_only)
        try:
            shm = self._map_shm() if self.has_file else None
            if writable:
                self._queue = self._queue or WriterQueue(f"{self.path}.queue")
                if self._writer.pragma("journal_mode") != "wal":
                    self._run_in_queue(lambda: self._writer.pragma("journal_mode", "wal"))
            connections.configure(self._writer)
            self._tx = self._transaction(self._writer)
            self._prepare_schema()
            self._writer.set_busy_timeout(0)  # from now on the queue orders the writers
            if writable:
                self._record_files(shm)
        except BaseException:
            # Closed here, not by the garbage collector: a new connection would share the -shm file that it mapped.
            self._writer.close()
            if self._queue is not None:
                self._queue.close()
                self._queue = None
            raise

    def _record_files(self, shm: paths.Inode | None) -> None:
        paths.restrict_permissions(self.path + suffix for suffix in FILE_SUFFIXES)
        # The -shm file that is mapped, not the one at its path: another process may have replaced it since.
        shm = paths.inode(self._shm_path) if shm is None else shm
        main, wal = paths.inode(self.path), paths.inode(self._wal_path)
        opened = paths.Inodes(main or NO_INODE, wal or NO_INODE, shm or NO_INODE)
        self._opened = self._writer.files = opened
        with paths.translate_open_errors(self._wal_path):
            self._wal = wal_sync.Wal(self._wal_path, opened.wal) if self._durability == "power-loss" else None
        self._files = opened

    def _map_shm(self) -> paths.Inode | None:
        """Do the first read of the writer; return the inode of the -shm file that SQLite mapped for it, if known.

        If there is no -shm file, SQLite creates one from the WAL. It must do so at the front of the queue: a process
        that has not yet noticed the missing file may be writing to the WAL.
        """
        queue = f"{self.path}.queue"
        if self.read_only or not os.path.exists(queue):  # another program's file has no queue
            connections.check_not_foreign(self._writer, self.path)
            return None
        self._queue = self._queue or WriterQueue(queue)
        present = paths.inode(self._shm_path)
        try:
            return self._queue.run(QUEUE_SECONDS if present else self.write_timeout, self._read_first)
        except errors.StoreBusy:
            if not present:
                raise
            connections.check_not_foreign(self._writer, self.path)
            return present

    def _read_first(self) -> paths.Inode:
        connections.check_not_foreign(self._writer, self.path)
        # SQLite shares the -shm file of other connections of this process, which may have been unlinked.
        return (not self._is_stale() and paths.inode(self._shm_path)) or NO_INODE

    def _prepare_schema(self) -> None:
        if migration.is_current(self._writer.execute, self._plan):
            return
        self._run_in_queue(self._reconcile)
        fault_points.reach("migrate", "committed")

    def _reconcile(self) -> None:
        def step(_: SqliteTransaction) -> None:
            migration.reconcile(self._writer.execute, self._plan, migration.declared_schema(self._folder), self._now())
            fault_points.reach("migrate", "committing")

        transact(self._tx, step, self.write_timeout)

    def _now(self) -> float:
        return self._clock() if self._clock else time.time()

    # --- connections ---------------------------------------------------------------------------------

    def _connect_reader(self) -> connections.SqliteConnection:
        connection = connections.connect(self.path, self.write_timeout, self.read_only)
        try:
            connection.files = self._files
            connections.configure(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _transaction(self, connection: apsw.Connection) -> SqliteTransaction:
        return SqliteTransaction(connection, self._sql, self._clock)

    def _run_in_queue(self, work: Callable[..., T], *args: Any) -> T:
        if self.read_only:
            raise errors.StoreUnusable(f"{self.path} can only be read: {self.read_only}. Nothing was written.")
        if self._queue is None:
            return work(*args)
        result: T = self._queue.run(self.write_timeout, self._run_on_current_shm, work, args)
        return result

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Keep other threads of this process from writing."""
        self._check_usable()
        with self._write_lock, translate_errors(self.path):
            yield

    def _run_on_current_shm(self, work: Callable[..., T], args: tuple[Any, ...]) -> T:
        """Run the work unless the -shm file was replaced: with the old one it would overwrite other commits.

        One check at the front of the queue is enough: no process creates a -shm file anywhere else.
        """
        if self._files and paths.inode(self._shm_path) != self._files.shm:
            raise FilesReplaced()
        return work(*args)

    # --- durability ----------------------------------------------------------------------------------

    def _sync(self, wal: wal_sync.Wal) -> None:
        """When this returns, everything committed so far survives a power loss."""
        if not wal.sync():
            with self._write_lock, translate_errors(self.path):
                if wal is not self._wal:
                    raise errors.StoreError(wal_sync.SYNC_FAILED)
                self._repair_wal()

    def _repair_wal(self) -> None:
        """Checkpoint and truncate a WAL whose sync has failed, or raise StoreError."""
        if self._wal is None or not self._wal.damaged:
            return
        checkpoint = self._writer.execute
        busy, *_ = self._run_in_queue(lambda: checkpoint("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() or (1,))
        if busy:
            raise errors.StoreError(wal_sync.SYNC_FAILED)
        self._wal.damaged = False

    # --- replaced files ------------------------------------------------------------------------------

    def _is_reachable(self, files: paths.Inodes | None) -> bool:
        """Return whether the database and WAL with these inodes are still at their paths."""
        if files is None or paths.inode(self.path) != files.main:
            return False
        wal = self._wal
        return paths.inode(self._wal_path) == files.wal if wal is None else wal.is_in_place()

    def _is_current(self) -> bool:
        files = self._files
        return files is not None and paths.inode(self._shm_path) == files.shm and self._is_reachable(files)

    def _current_files(self) -> paths.Inodes | None:
        """Return the files at the paths; None if one is missing."""
        main, wal, shm = paths.inode(self.path), paths.inode(self._wal_path), paths.inode(self._shm_path)
        return paths.Inodes(main, wal, shm) if main and wal and shm else None

    def _reopen(self) -> None:
        self._files = None
        paths.check_no_former_wal(self.path, self._opened)
        self._generation += 1
        self._close_connections()
        self._open(create=False)

    def _wait_for_stale_connections(self) -> None:
        """Wait until no connection of this process has a WAL or -shm file open that is no longer at its path.

        SQLite maps one -shm file per database and process, so a new connection would share the old one.
        """
        deadline = time.monotonic() + self.write_timeout
        while self._is_stale():
            if time.monotonic() > deadline:
                raise FilesReplaced()
            for other in list(_instances):
                if other.path == self.path and other is not self and other._write_lock.acquire(blocking=False):
                    try:
                        other._release_replaced_files()
                    finally:
                        other._write_lock.release()
            time.sleep(STALE_POLL_SECONDS)

    def _is_stale(self) -> bool:
        main, current = paths.inode(self.path), self._current_files()
        return any(files.main == main and files != current for files in connections.opened_files())

    def _release_replaced_files(self) -> None:
        """Close connections to replaced files; the next call opens the current ones."""
        if not self._closed and self._files != self._current_files():
            self._files = None
            self._generation += 1
            self._close_connections()

    # --- closing -------------------------------------------------------------------------------------

    def close(self) -> None:
        if self._closed or self.pid != os.getpid():
            return
        with self._write_lock:
            self._closed = True
            self._close_connections()
            if self._queue is not None:
                self._queue.close()

    def _close_connections(self) -> None:
        if self._queue is not None and self._opened:
            with contextlib.suppress(errors.StoreBusy):  # then the next process that closes the store removes the WAL
                self._queue.run(QUEUE_SECONDS, self._close_all, True)
        self._close_all(False)

    def _close_all(self, remove_wal: bool) -> None:
        """Close all connections. With `remove_wal`, SQLite checkpoints and removes the WAL if no other process has it.

        Only at the front of the queue, and not with a replaced -shm file, which lacks other processes' commits.
        """
        # A thread that syncs keeps the WAL descriptor; otherwise it is closed, as a deleted file would keep its space.
        idle, self._idle, self._wal = self._idle, [], None
        for _, tx in idle:
            tx.connection.close()
        current = paths.inode(self.path), paths.inode(self._shm_path)
        if remove_wal and self._opened and current == (self._opened.main, self._opened.shm):
            with contextlib.suppress(apsw.ConnectionClosedError):
                self._writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
        self._writer.close()

    def _check_usable(self) -> None:
        if self.pid != os.getpid():
            raise errors.StoreForked()
        if self._closed:
            raise errors.StoreClosed()


# --- forks -----------------------------------------------------------------------------------------------

# SQLite keeps a list of its process's POSIX locks in memory. A fork copies the list but none of the locks, so a child
# that opens the file again overwrites other processes' commits. A fork also copies mutexes that a thread of the parent
# holds, on which any call to SQLite waits for ever. SQLite cannot be reset, so such a child is refused every store.
_instances: weakref.WeakSet[OpenDatabase] = weakref.WeakSet()


class _ImmortalReference(msgspec.Struct, gc=False):
    """Keeps an object from being freed, even at interpreter exit: the garbage collector does not see this cycle."""

    kept: Any
    itself: Any = None


def _abandon_inherited() -> None:
    """In a forked child, neither use nor close the connections of the parent."""
    stores, inherited = list(_instances), apsw.connections()
    OpenDatabase._forked |= bool(inherited) or not all(store._closed for store in stores)
    leak = _ImmortalReference((stores, inherited, apsw))  # apsw closes every connection when the module is freed
    leak.itself = leak
    for store in stores:
        if store._queue is not None:  # a lock inherited here would outlive the parent
            store._queue.close_inherited()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_inherited)
