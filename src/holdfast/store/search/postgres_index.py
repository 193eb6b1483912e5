"""The search index on PostgreSQL: tables in the schema of the store.

One process at a time writes to the index, under an advisory lock that it holds for the transaction. A process that does
not get the lock within two seconds searches the index as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from holdfast.store.driver import Tx

T = TypeVar("T")

FOLDER = "postgres_search"
# Tables with words of messages.
TABLES = ("search_words", "search_blocks")

# The lock is a separate statement, so that the statements after it see what its last holder wrote. The transaction is
# idle while a batch of the log is read and compared, which may take longer than the store's idle timeout.
_BEGIN = """
BEGIN; SET LOCAL lock_timeout = '2s'; SET LOCAL idle_in_transaction_session_timeout = '1min';
SELECT pg_advisory_xact_lock(hashtextextended('holdfast search ' || current_schema(), 0))
"""
# Queries differ in their words only, so one generic plan serves all. Sequential scans would be chosen for small tables
# only, where every look-up of a block would read all of them.
_BEGIN_READING = """
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET LOCAL plan_cache_mode = force_generic_plan; SET LOCAL jit = off; SET LOCAL enable_seqscan = off
"""
_CLEAR = """;
DELETE FROM search_words; DELETE FROM search_blocks; DELETE FROM search_totals;
DELETE FROM search_progress; DELETE FROM search_meta
"""


class Store(Protocol):
    """The methods of the driver that the index uses."""

    def read(self, step: Callable[[Tx], T], begin: str) -> T: ...

    def write(self, operation: str, step: Callable[[Tx], T], begin: str) -> T: ...

    def rewrite(self, operation: str, tables: tuple[str, ...]) -> None: ...


class IndexTables:
    """The index of one store. It uses the connections of the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def write(self, operation: str, step: Callable[[Tx], T]) -> T:
        return self._store.write(operation, step, _BEGIN)

    def read(self, step: Callable[[Tx], T]) -> T:
        return self._store.read(step, _BEGIN_READING)

    def begun(self) -> bool:
        return self.read(lambda tx: tx.one("index_begun")) is not None

    def clear(self) -> None:
        """Delete all rows. That takes no right to create tables, and other processes can still search."""
        self._store.write("discard", lambda _: None, _BEGIN + _CLEAR)

    def scrub(self) -> None:
        self._store.rewrite("scrub", TABLES)

    def integrity_errors(self) -> list[str]:
        return []

    def close(self) -> None:
        pass
