"""The PostgreSQL driver: a connection pool, transactions with retries, and the schema.

Any number of threads, processes and hosts write concurrently. A write step locks the conversations it changes; other
rows it read may change before it commits. Then a constraint refuses the commit, and the step runs again. A step also
runs again after a lost connection: the ids it generated before the first attempt show whether that was committed.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import psycopg

from holdfast import errors, types
from holdfast.store import address, fault_points, log, notifications, queries, schema_plan
from holdfast.store.driver import Copy, Driver, Row, SearchIndex, Tx
from holdfast.store.postgres import connection as postgres_connection
from holdfast.store.postgres import errors as postgres_errors
from holdfast.store.postgres import fast_append, listener, notifier, server_status, table_rewrite, transaction
from holdfast.store.postgres.migration import Migration
from holdfast.store.search import postgres_index
from holdfast.store.sqlite import driver as sqlite_driver

T = TypeVar("T")

DURABILITY = ("power-loss", "process-crash")
FOLDER = "postgres"
# Idle connections to keep: as many as the threads of an AsyncSessionDB use at once. Any number may be in use.
IDLE = 40
# How often a step is retried that conflicts with concurrent writers.
ATTEMPTS = 10

_UNSYNCED = "; SET LOCAL synchronous_commit = off"
_BEGIN_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL idle_in_transaction_session_timeout = '1h'"


class PostgresDriver:
    """A store in one schema of a PostgreSQL database: the first of the connection's search_path."""

    name = "postgres"
    has_file = False
    concurrent_writes = True
    stores_blobs = True
    has_tokenizer = False

    def __init__(
        self,
        target: str,
        *,
        durability: str = "power-loss",
        clock: Callable[[], float] | None = None,
        write_timeout: float = 10.0,
        plan: schema_plan.Plan = schema_plan.PLAN,
    ) -> None:
        if durability not in DURABILITY:
            raise errors.InvalidArgument(f"`durability` must be one of {', '.join(DURABILITY)}.")
        self.target = target
        self.clock = clock
        self.durability = durability
        self._plan = plan
        self.write_timeout = write_timeout
        self._sql = {**queries.load(FOLDER), **queries.load(postgres_index.FOLDER)}
        self.pid = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self._idle: list[transaction.Transaction] = []
        self._tails = fast_append.Tails()
        self._notifier = notifier.Notifier(self._connect_unpooled, self._translating)
        self._listeners: list[listener.Listener] = []
        self.path = address.hide_password(target)
        self._connector = postgres_connection.Connector(target, write_timeout, durable=durability == "power-loss")
        try:
            # Retried when another process migrates the schema, but not while the server is unreachable.
            self._retry(self._prepare_schema, seconds=0.0)
        except BaseException:
            self._drop_idle()
            raise

    # --- connections ---------------------------------------------------------------------------------

    def _connect(self) -> transaction.Transaction:
        connection = self._connector.open()
        tx = transaction.Transaction(connection, self._sql, self._translate, self.clock)
        try:
            self._connector.configure(connection, tx.execute)
        except BaseException:
            connection.close()
            raise
        return tx

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[transaction.Transaction]:
        """Borrow a connection for one transaction."""
        tx = self._acquire()
        try:
            yield tx
        finally:
            self._release(tx)

    def _acquire(self) -> transaction.Transaction:
        self._check_usable()
        with self._lock:
            tx = self._idle.pop() if self._idle else None
        if tx is not None:
            return tx
        with self._translating():
            return self._connect()

    def _release(self, tx: transaction.Transaction) -> None:
        fit = tx.end()
        if tx.connection.closed:
            self._drop_idle()  # most likely lost as well
        with self._lock:
            keep = fit and len(self._idle) < IDLE and not self._closed
            if keep:
                self._idle.append(tx)
        if not keep:
            tx.connection.close()

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for tx in idle:
            tx.connection.close()

    def close(self) -> None:
        if self._closed or self.pid != os.getpid():
            return
        for each in self._listeners:
            each.close()
        self._notifier.close()
        self._closed = True
        self._drop_idle()

    def _check_usable(self) -> None:
        if self.pid != os.getpid():
            raise errors.StoreForked()
        if self._closed:
            raise errors.StoreClosed()

    @contextlib.contextmanager
    def _translating(self) -> Iterator[None]:
        failure: errors.StoreError | None = None
        try:
            yield
        except psycopg.Error as error:
            failure = self._translate(error)
        if failure is not None:
            raise failure

    def _translate(self, error: Exception) -> errors.StoreError:
        return postgres_errors.translate(error, self._connector.location)

    def _retry_policy(
        self, seconds: float | None = None, lost: errors.StoreUnreachable | None = None
    ) -> postgres_errors.RetryPolicy:
        seconds = self.write_timeout if seconds is None else seconds
        return postgres_errors.RetryPolicy(seconds, ATTEMPTS, writable=self._connector.writable, lost=lost)

    def _retry(self, work: Callable[[transaction.Transaction], T], seconds: float | None = None) -> T:
        """Run work that is safe to repeat; retry it on another connection for some seconds."""
        retries = self._retry_policy(seconds)
        while True:
            try:
                with self._translating(), self._transaction() as tx:
                    return work(tx)
            except errors.StoreError as error:
                retries.retry_or_raise(error)

    # --- writing -------------------------------------------------------------------------------------

    def write(self, operation: str, step: Callable[[Tx], T], begin: str = "BEGIN", *, durable: bool = True) -> T:
        retries = self._retry_policy(lost=getattr(step, "lost", None))
        if not isinstance(step, log.AppendRequest):
            return self._run(operation, step, begin if durable else begin + _UNSYNCED, retries)
        receipts = self._append_fast(step, retries) or self._run(operation, step, begin, retries)
        self._tails.note(step.session_id, receipts)
        return cast("T", receipts)

    def _run(self, operation: str, step: Callable[[Tx], T], begin: str, retries: postgres_errors.RetryPolicy) -> T:
        """Run the step in transactions until one is committed, or raise its error."""
        retry_state = dict[Any, Any]()
        while True:
            try:
                return self._transact(operation, step, begin, retry_state)
            except errors.StoreError as error:
                retries.retry_or_raise(error)

    def _transact(self, operation: str, step: Callable[[Tx], T], begin: str, retry_state: dict[Any, Any]) -> T:
        if fault_points.hook is not None:
            fault_points.reach(operation, "queued")
        with self._translating(), self._transaction() as tx:
            tx.begin(operation, begin)
            tx.retry_state = retry_state
            if fault_points.hook is not None:
                fault_points.reach(operation, "begun")
            result = step(tx)
            if fault_points.hook is not None:
                fault_points.reach(operation, "committing")
            tx.commit()
            hints = tx.recorder.hints
        if fault_points.hook is not None:
            fault_points.reach(operation, "committed")
        self._notifier.notify(hints)
        return result

    def _append_fast(
        self, request: log.AppendRequest, retries: postgres_errors.RetryPolicy
    ) -> list[types.Receipt] | None:
        """Append in one round trip; None if the request needs a transaction, which then reports any error."""
        values = self._tails.values(request, self.clock() if self.clock else None)
        if values is None:
            return None
        try:
            row = self._execute_append(values)
        except errors.StoreError as error:
            request.is_retry = True  # it may have been committed
            if isinstance(error, errors.StoreUnreachable) or not postgres_errors.should_run_in_transaction(error):
                retries.retry_or_raise(error)
            return None
        if row is None:
            return None
        self._notifier.notify((notifications.Hint("moved", values["conversation"]),))
        return [fast_append.receipt(request, values["conversation"], row)]

    def append_to_each(self, requests: Sequence[log.AppendRequest]) -> list[list[types.Receipt] | None]:
        now = self.clock() if self.clock else None
        receipts: list[list[types.Receipt] | None] = [None] * len(requests)
        found = self._tails.group_values(requests, now)
        if found is None:
            return receipts
        included, values = found
        if fault_points.hook is not None:
            fault_points.reach("append", "queued")
        try:
            with self._translating(), self._transaction() as tx:
                if fault_points.hook is not None:
                    fault_points.reach("append", "committing")
                rows = tx.all("append_to_each", **values)
        except errors.StoreError as error:
            for index in included:
                requests[index].is_retry = True  # it may have been committed
                requests[index].lost = error if isinstance(error, errors.StoreUnreachable) else None
            return receipts
        if fault_points.hook is not None:
            fault_points.reach("append", "committed")
        for number, *row in rows:
            index = included[number - 1]
            conversation_id = values["conversations"][number - 1]
            made = receipts[index] = [fast_append.receipt(requests[index], conversation_id, tuple(row))]
            self._tails.note(requests[index].session_id, made)
        self._notifier.notify([notifications.Hint("moved", values["conversations"][row[0] - 1]) for row in rows])
        return receipts

    def _execute_append(self, values: dict[str, Any]) -> Row | None:
        if fault_points.hook is not None:
            fault_points.reach("append", "queued")
        with self._translating(), self._transaction() as tx:
            if fault_points.hook is not None:
                fault_points.reach("append", "committing")
            row = tx.one("append_message", **values)
            if row is not None and values["unsynced"]:
                if fault_points.hook is not None:
                    fault_points.reach("append", "flushing")
                self._flush_wal(tx)
        if row is not None and fault_points.hook is not None:
            fault_points.reach("append", "committed")
        return row

    def _flush_wal(self, tx: transaction.Transaction) -> None:
        """Wait until the append that was just committed is on disk. Any failure leaves its outcome unknown."""
        try:
            tx.one("flush_wal")
        except errors.StoreUnreachable:
            raise
        except errors.StoreError as error:
            raise errors.StoreUnreachable(self._connector.location, str(error)) from None

    # --- notifications -------------------------------------------------------------------------------

    def listen(self, handler: Callable[[notifications.Hint], None]) -> bool:
        self._check_usable()
        own = self._notifier.sender
        self._listeners.append(listener.Listener(self._connect_unpooled, self._translating, own, handler))
        return True

    def _connect_unpooled(self) -> postgres_connection.Connection:
        return self._connect().connection

    # --- reading -------------------------------------------------------------------------------------

    def read(self, step: Callable[[Tx], T], begin: str = _BEGIN_READING) -> T:
        """Retry on another connection while the server has not answered; then the step has reported nothing."""
        retries = self._retry_policy()
        while True:
            answered = False
            try:
                with self._translating(), self._transaction() as tx:
                    tx.begin("read", begin)
                    try:
                        return step(tx)
                    finally:
                        answered = tx.answered
            except errors.StoreError as error:
                if answered:
                    raise
                retries.retry_or_raise(error)

    def _now(self) -> float:
        return self.clock() if self.clock else time.time()

    # --- the schema ----------------------------------------------------------------------------------

    def _prepare_schema(self, tx: transaction.Transaction) -> None:
        Migration(tx.execute, self._plan).prepare(self._now())

    def integrity_errors(self) -> list[str]:
        """Return constraint violations. PostgreSQL itself reports damaged pages when it reads them."""
        return self._retry(lambda tx: Migration(tx.execute, self._plan).violations())

    def schema_faults(self) -> list[schema_plan.Fault]:
        return self._retry(lambda tx: Migration(tx.execute, self._plan).faults())

    def repair_schema(self) -> None:
        self._retry(lambda tx: Migration(tx.execute, self._plan).repair(self._now()))

    # --- facts ---------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        found = self._retry(lambda tx: server_status.read_facts(tx.execute))
        return {"path": self.path, "durability": self.durability, **found}

    def status(self) -> dict[str, Any]:
        return {**self.facts(), **self._retry(self._read_status)}

    def _read_status(self, tx: transaction.Transaction) -> dict[str, Any]:
        client = tx.connection.pgconn
        link = server_status.Link(client.backend_pid, client.ssl_in_use, (client.hostaddr or client.host).decode())
        with self._transaction() as other:
            return server_status.read_status(tx.execute, link, other.execute)

    def allow(self, role: str) -> list[str]:
        return self._retry(lambda tx: Migration(tx.execute, self._plan).allow(role))

    # --- files and maintenance -----------------------------------------------------------------------

    def copy_to(self, *_: object) -> None:
        raise errors.StoreUnusable(_NO_COPY)

    def replace_with(self, *_: object) -> None:
        raise errors.StoreUnusable(_NO_RESTORE)

    def open_copy(self, path: str) -> Copy:
        """Backups are SQLite files, also those of a PostgreSQL store."""
        self._check_usable()
        with contextlib.closing(sqlite_driver.SqliteDriver(":memory:", clock=self.clock)) as scratch:
            return scratch.open_copy(path)

    def open_store(self, path: str) -> Driver:
        self._check_usable()
        return sqlite_driver.SqliteDriver(path, durability="process-crash", clock=self.clock)

    def scrub(self) -> None:
        """Rewrite the tables that contain text. Archived WAL of the server is not affected."""
        self.rewrite("scrub")
        now = repr(self._now())
        self.write("scrub", lambda tx: tx.run("scrub_noted", at=now))

    def shrink(self) -> None:
        self.rewrite("shrink")

    def rewrite(self, operation: str, tables: tuple[str, ...] = table_rewrite.TEXTS) -> None:
        def work(tx: transaction.Transaction) -> None:
            try:
                with tx.connection.without_time_limit():
                    table_rewrite.rewrite(tx.execute, tables, self.write_timeout)
            finally:
                if not tx.connection.closed:
                    self._connector.configure(tx.connection, tx.execute)

        fault_points.reach(operation, "begun")
        self._retry(work)
        fault_points.reach(operation, "rewritten")

    # --- search index ---------------------------------------------------------------------------

    def open_search_index(self) -> SearchIndex:
        return postgres_index.IndexTables(self)

    def has_search_index(self) -> bool:
        return postgres_index.IndexTables(self).begun()

    def drop_search_index(self) -> None:
        postgres_index.IndexTables(self).clear()


_NO_COPY = (
    "Copy a PostgreSQL store with `holdfast db copy`, into a file or to another server; use pg_dump to back up the "
    "whole database."
)
_NO_RESTORE = "Restore a backup into a new, empty PostgreSQL store with `holdfast db copy`, not over a store in use."
