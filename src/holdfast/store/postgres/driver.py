"""The PostgreSQL driver: a connection pool, transactions with retries, and the schema.

Any number of threads, processes and hosts write concurrently. A write step locks the conversations it changes. If other
rows it has read change before it commits, a constraint refuses the commit, and the driver runs the step again. It also
does so after a lost connection: the ids that the step generated before the first attempt show whether that attempt was
committed.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import psycopg

from holdfast import errors, fault_points, types
from holdfast.store import log, notifications, queries, store_meta
from holdfast.store.driver import (
    SCHEMA_PLAN,
    Row,
    SchemaFault,
    SchemaPlan,
    SearchIndex,
    Tx,
    hide_password,
)
from holdfast.store.postgres import connection as postgres_connection
from holdfast.store.postgres import errors as postgres_errors
from holdfast.store.postgres import fast_append, notify, server_status, transaction
from holdfast.store.postgres.migration import Migration
from holdfast.store.search import postgres_index

T = TypeVar("T")

FOLDER = "postgres"
# The pool keeps as many idle connections as the threads of an AsyncSessionDB use at once. Any number may be in use.
MAX_IDLE = 40
# The number of retries of a step that conflicts with concurrent writers.
MAX_CONFLICTS = 10

# The tables that contain conversation text.
TEXT_TABLES = (
    *("conversations", "messages", "compactions", "inbox", "arrivals", "outbox", "processes", "audit", "memories"),
    *("blob_parts", "meta"),
)
# No time limit for a rewrite, but one for its lock: writers queue behind it while it waits for a reader.
_REWRITE_TIMEOUTS = "SELECT set_config('statement_timeout', '0', false), set_config('lock_timeout', %(wait)s, false)"
_OWNED_BY_OTHERS = """
SELECT 1 FROM pg_class c
 WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND c.relname = ANY(%(tables)s)
   AND NOT pg_has_role(c.relowner, 'USAGE')
"""
_ASYNC_COMMIT = "; SET LOCAL synchronous_commit = off"
_BEGIN_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL idle_in_transaction_session_timeout = '1h'"


class PostgresDriver:
    """A store in one schema of a PostgreSQL database: the first schema of the connection's search_path."""

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
        plan: SchemaPlan = SCHEMA_PLAN,
    ) -> None:
        self.target = target
        self.clock = clock
        self.durability = durability
        self._plan = plan
        self.write_timeout = write_timeout
        self._sql = {**queries.load(FOLDER), **queries.load(postgres_index.FOLDER)}
        self.pid = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self._idle: list[transaction.PostgresTransaction] = []
        self._tails = fast_append.TailCache()
        self._notifier = notify.Notifier(self._connect_unpooled, self._translate_errors)
        self._listeners: list[notify.Listener] = []
        self.path = hide_password(target)
        self._connector = postgres_connection.Connector(target, write_timeout, durable=durability == "power-loss")
        try:
            # Retried when another process migrates the schema, but not while the server is unreachable.
            self._with_migration(lambda migration: migration.prepare(self._now()), seconds=0.0)
        except BaseException:
            self._drop_idle()
            raise

    # --- connections ---------------------------------------------------------------------------------

    def _connect(self) -> transaction.PostgresTransaction:
        connection = self._connector.open()
        tx = transaction.PostgresTransaction(connection, self._sql, self._translate, self.clock)
        try:
            self._connector.configure(connection, tx.execute)
        except BaseException:
            connection.close()
            raise
        return tx

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[transaction.PostgresTransaction]:
        """Borrow a connection for one transaction."""
        self._check_usable()
        with self._lock:
            tx = self._idle.pop() if self._idle else None
        if tx is None:
            with self._translate_errors():
                tx = self._connect()
        try:
            yield tx
        finally:
            self._release(tx)

    def _release(self, tx: transaction.PostgresTransaction) -> None:
        is_usable = tx.end()
        if tx.connection.closed:
            self._drop_idle()  # most likely lost as well
        with self._lock:
            keep = is_usable and len(self._idle) < MAX_IDLE and not self._closed
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
    def _translate_errors(self) -> Iterator[None]:
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
        return postgres_errors.RetryPolicy(seconds, MAX_CONFLICTS, writable=self._connector.writable, lost=lost)

    def _retry(self, work: Callable[[transaction.PostgresTransaction], T], seconds: float | None = None) -> T:
        """Run work that is safe to repeat; retry it on another connection for some seconds."""

        def attempt() -> T:
            with self._translate_errors(), self._transaction() as tx:
                return work(tx)

        return self._retry_policy(seconds).run(attempt)

    # --- writing -------------------------------------------------------------------------------------

    def write(
        self,
        operation: str,
        step: Callable[[Tx], T],
        begin: str = "BEGIN",
        *,
        durable: bool = True,
        lock_timeout: float | None = None,
    ) -> T:
        retries = self._retry_policy(lost=getattr(step, "lost", None))
        if not isinstance(step, log.AppendRequest):
            begin += "" if durable else _ASYNC_COMMIT
            begin += "" if lock_timeout is None else f"; SET LOCAL lock_timeout = {round(lock_timeout * 1000)}"
            return retries.run(partial(self._transact, operation, step, begin, {}))
        receipts = self._append_fast(step, retries)
        if receipts is None:
            receipts = retries.run(partial(self._transact, operation, step, begin, {}))
            self._tails.record_session(step.session_id, receipts[-1])
        return cast("T", receipts)

    def _transact(self, operation: str, step: Callable[[Tx], T], begin: str, retry_state: dict[Any, Any]) -> T:
        fault_points.reach(operation, "queued")
        with self._translate_errors(), self._transaction() as tx:
            tx.begin(operation, begin)
            tx.retry_state = retry_state
            fault_points.reach(operation, "begun")
            result = step(tx)
            tx.operation = operation  # a group of steps has changed it
            tx.commit()
            changes = tx.recorder
        for conversation_id, (first_seq, last_seq) in changes.appended.items():
            self._tails.record_append(conversation_id, first_seq, last_seq)
        self._notifier.notify(changes.hints)
        return result

    def _append_fast(
        self, request: log.AppendRequest, retries: postgres_errors.RetryPolicy
    ) -> list[types.Receipt] | None:
        """Append in one round trip; None if the request needs a transaction, which then reports any error."""
        parameters = self._tails.build_parameters(request, self.clock() if self.clock else None)
        if parameters is None:
            return None
        try:
            row = self._execute_append(parameters)
        except errors.StoreError as error:
            request.may_be_stored = True  # it may have been committed
            if isinstance(error, errors.StoreUnreachable) or not postgres_errors.should_run_in_transaction(error):
                retries.retry_or_raise(error)
            return None
        if row is None:
            return None
        self._notifier.notify((notifications.Hint("moved", parameters["conversation"]),))
        return self._record_append(request, parameters["conversation"], row)

    def _execute_append(self, parameters: dict[str, Any]) -> Row | None:
        fault_points.reach("append", "queued")
        with self._translate_errors(), self._transaction() as tx:
            fault_points.reach("append", "committing")
            row = tx.one("append_message", **parameters)
            if row is not None and parameters["unsynced"]:
                fault_points.reach("append", "flushing")
                self._flush_wal(tx)
        if row is not None:
            fault_points.reach("append", "committed")
        return row

    def append_to_each(self, requests: Sequence[log.AppendRequest]) -> list[list[types.Receipt] | None]:
        receipts: list[list[types.Receipt] | None] = [None] * len(requests)
        included, parameters = self._tails.build_group_parameters(requests, self.clock() if self.clock else None)
        if not included:
            return receipts
        fault_points.reach("append", "queued")
        try:
            with self._translate_errors(), self._transaction() as tx:
                fault_points.reach("append", "committing")
                rows = tx.all("append_to_each", **parameters)
        except errors.StoreError as error:
            for index in included:
                requests[index].may_be_stored = True  # it may have been committed
                requests[index].lost = error if isinstance(error, errors.StoreUnreachable) else None
            return receipts
        fault_points.reach("append", "committed")
        for number, *row in rows:
            index, conversation_id = included[number - 1], parameters["conversation"][number - 1]
            receipts[index] = self._record_append(requests[index], conversation_id, tuple(row))
        self._notifier.notify([notifications.Hint("moved", made[0].conversation_id) for made in receipts if made])
        return receipts

    def _record_append(self, request: log.AppendRequest, conversation_id: str, row: Row) -> list[types.Receipt]:
        seq, session_id, epoch = row
        moved_from = request.session_id if session_id != request.session_id else None
        receipt = types.Receipt(seq, request.messages[0].uid, session_id, conversation_id, epoch, moved_from)
        self._tails.record_append(conversation_id, receipt.seq, receipt.seq)
        self._tails.record_session(request.session_id, receipt)
        return [receipt]

    def _flush_wal(self, tx: transaction.PostgresTransaction) -> None:
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
        self._listeners.append(notify.Listener(self._connect_unpooled, self._translate_errors, own, handler))
        return True

    def _connect_unpooled(self) -> postgres_connection.PostgresConnection:
        return self._connect().connection

    # --- reading -------------------------------------------------------------------------------------

    def read(self, step: Callable[[Tx], T], begin: str = _BEGIN_READ) -> T:
        """Run a step in one snapshot; retry it on another connection if the server has not answered any statement."""
        retries = self._retry_policy()
        while True:
            has_answered = False
            try:
                with self._translate_errors(), self._transaction() as tx:
                    tx.begin("read", begin)
                    try:
                        return step(tx)
                    finally:
                        has_answered = tx.has_answered
            except errors.StoreError as error:
                if has_answered:
                    raise
                retries.retry_or_raise(error)

    def _now(self) -> float:
        return self.clock() if self.clock else time.time()

    # --- the schema ----------------------------------------------------------------------------------

    def _with_migration(self, work: Callable[[Migration], T], seconds: float | None = None) -> T:
        return self._retry(lambda tx: work(Migration(tx.execute, self._plan)), seconds)

    def integrity_errors(self) -> list[str]:
        """Return constraint violations. PostgreSQL itself reports damaged pages when it reads them."""
        return self._with_migration(Migration.violations)

    def schema_faults(self) -> list[SchemaFault]:
        return self._with_migration(Migration.faults)

    def repair_schema(self) -> None:
        self._with_migration(lambda migration: migration.repair(self._now()))

    # --- info ----------------------------------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        found = self._retry(lambda tx: server_status.read_info(tx.execute))
        return {"path": self.path, "durability": self.durability, **found}

    def status(self) -> dict[str, Any]:
        return {**self.info(), **self._retry(self._read_status)}

    def _read_status(self, tx: transaction.PostgresTransaction) -> dict[str, Any]:
        with self._transaction() as other:
            return server_status.read_status(tx.execute, tx.connection.pgconn, other.execute)

    def allow(self, role: str) -> list[str]:
        return self._with_migration(lambda migration: migration.allow(role))

    # --- maintenance ---------------------------------------------------------------------------------

    def scrub(self) -> None:
        """Rewrite the tables that contain text. Archived WAL of the server is not affected."""
        began = repr(self._now())
        self.rewrite("scrub")
        self.write("scrub", lambda tx: tx.run("meta_set", key=store_meta.SCRUBBED_AT, value=began))

    def shrink(self) -> None:
        self.rewrite("shrink")

    def rewrite(self, operation: str, tables: tuple[str, ...] = TEXT_TABLES) -> None:
        """Rewrite tables with VACUUM FULL, which removes the bytes of deleted rows from the files.

        A table is locked meanwhile, so this runs only on request of the owner of the tables.
        """

        def work(tx: transaction.PostgresTransaction) -> None:
            try:
                tx.connection.total_timeout = math.inf
                rewrite_tables(tx.execute, tables, self.write_timeout)
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
        return self.open_search_index().read(lambda tx: tx.one("index_begun")) is not None

    def drop_search_index(self) -> None:
        postgres_index.IndexTables(self).clear()


def rewrite_tables(execute: Callable[..., Any], tables: tuple[str, ...], write_timeout: float) -> None:
    """Rewrite the tables in turn. Changes the timeouts of the session."""
    # VACUUM skips the tables of other owners with a mere warning.
    if execute(_OWNED_BY_OTHERS, {"tables": list(tables)}).fetchone():
        raise errors.StoreUnusable("Only the owner of the tables can rewrite them. Connect as that role.")
    execute(_REWRITE_TIMEOUTS, {"wait": f"{max(1, int(write_timeout * 500))}ms"})
    for table in tables:
        execute(f"VACUUM (FULL) {table}")
