"""The SQLite driver: write transactions and reads on a database file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import apsw

from holdfast import errors, fault_points
from holdfast.store import notifications
from holdfast.store.driver import Tx
from holdfast.store.sqlite import database_file, maintenance, paths
from holdfast.store.sqlite.errors import translate, translate_errors
from holdfast.store.sqlite.transaction import SqliteTransaction

T = TypeVar("T")

MAX_IDLE_READERS = 4
MAX_ATTEMPTS = 3


class SqliteDriver(maintenance.Maintenance):
    """The store's driver for a database file, or for `:memory:`."""

    name = "sqlite"
    concurrent_writes, stores_blobs, has_tokenizer = False, False, True

    # --- writing -------------------------------------------------------------------------------------

    def write(
        self, operation: str, step: Callable[[Tx], T], *, durable: bool = True, lock_timeout: float | None = None
    ) -> T:
        """Commit a step, then sync the WAL while the next writer may already commit.

        After the commit the files at the paths are compared with the open ones: a commit to a file that was unlinked
        is not acknowledged but repeated in the file that replaced it.
        """
        if self.pid != os.getpid():
            raise errors.StoreForked()
        if not self._write_lock.acquire(timeout=self.write_timeout if lock_timeout is None else lock_timeout):
            raise errors.StoreBusy()
        try:
            result = self._commit(operation, step)
            wal = self._wal
        except apsw.Error as error:
            raise translate(error, self.path) from error
        finally:
            self._write_lock.release()
        if wal is not None and durable:
            self._sync(wal)
        return result

    def _commit(self, operation: str, step: Callable[[Tx], T]) -> T:
        if self._closed:
            raise errors.StoreClosed()
        if not self._files and self.has_file:  # the files were missing or read-only before
            self._reopen()
        if self._wal is not None and self._wal.damaged:
            self._repair_wal()
        retry_state: dict[Any, Any] = {}
        for _ in range(MAX_ATTEMPTS):
            try:
                result: T = self._run_in_queue(self._transact, operation, step, retry_state)
                if not self.has_file or self._is_reachable(self._files):
                    return result
            except database_file.FilesReplaced:
                pass
            self._reopen()
        raise errors.StoreMoved()

    def _transact(self, operation: str, step: Callable[[Tx], T], retry_state: dict[Any, Any]) -> T:
        tx = self._tx
        tx.operation, tx.retry_state = operation, retry_state
        if fault_points.hook is not None:
            fault_points.reach(operation, "queued")
        tx.begin(self.write_timeout)
        try:
            if fault_points.hook is not None:
                fault_points.reach(operation, "begun")
            result = step(tx)
            if fault_points.hook is not None:
                fault_points.reach(operation, "committing")
            tx.execute("COMMIT")
        except BaseException:
            tx.roll_back()
            raise
        if fault_points.hook is not None:
            fault_points.reach(operation, "committed")
        return result

    def append_to_each(self, requests: Sequence[Any]) -> list[Any]:
        return [None] * len(requests)

    # --- reading -------------------------------------------------------------------------------------

    def read(self, step: Callable[[Tx], T]) -> T:
        if not self.has_file:
            with self._exclusive():
                return step(self._tx)
        self._check_usable()
        if not self.read_only and not self._is_current():
            with self._exclusive():
                if not self._is_current():
                    self._reopen()
        with translate_errors(self.path):
            generation, tx = self._take_reader()
            try:
                tx.execute("BEGIN")
                return step(tx)
            finally:
                self._return_reader(generation, tx)

    def _take_reader(self) -> tuple[int, SqliteTransaction]:
        while True:
            try:
                generation, tx = self._idle.pop()
            except IndexError:
                return self._generation, self._transaction(self._connect_reader())
            if generation == self._generation:
                return generation, tx
            tx.connection.close()  # returned by another thread while the files were replaced

    def _return_reader(self, generation: int, tx: SqliteTransaction) -> None:
        if not tx.connection.get_autocommit():
            tx.execute("ROLLBACK")
        # A read-only connection may be immutable and so takes no locks: as a writer may start, each read opens one.
        is_current = generation == self._generation and not self._closed and not self.read_only
        if is_current and len(self._idle) < MAX_IDLE_READERS:
            self._idle.append((generation, tx))
        else:
            tx.connection.close()

    # --- status --------------------------------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        with self._exclusive():
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
        if self.has_file:
            facts["filesystem"] = paths.filesystem(os.path.realpath(os.path.dirname(self.path) or "."))
            suffixes = database_file.FILE_SUFFIXES
            facts["files"] = {suffix or "main": paths.size_and_mode(self.path + suffix) for suffix in suffixes}
        return facts

    def status(self) -> dict[str, Any]:
        return self.info()

    def listen(self, handler: Callable[[notifications.Hint], None]) -> bool:  # noqa: ARG002
        return False

    def allow(self, role: str) -> list[str]:
        raise errors.StoreUnusable(f"SQLite has no roles such as {errors.quote(role)}; the mode of the file decides.")

    # --- search index --------------------------------------------------------------------------------

    def open_search_index(self) -> SqliteDriver:
        target = self._search_path if self.has_file and not self.read_only else ":memory:"
        # It can be rebuilt, so it need not survive a power loss and is not worth a long wait.
        return SqliteDriver(
            target, durability="process-crash", clock=self._clock, write_timeout=2.0, sql="sqlite_search"
        )

    def has_search_index(self) -> bool:
        return self.has_file and not self.read_only and os.path.exists(self._search_path)

    def drop_search_index(self) -> None:
        for suffix in database_file.FILE_SUFFIXES if self.has_file and not self.read_only else ():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._search_path + suffix)

    @property
    def _search_path(self) -> str:
        return f"{self.path}.search"


def open_file(path: str) -> SqliteDriver:
    """Open a store in a temporary file, which need not survive a power loss; migrate it to the current schema."""
    return SqliteDriver(path, durability="process-crash")
