"""The tables of the search index in PostgreSQL, beside those of the store and in the same schema.

Any number of hosts find the index behind the log at once, and one at a time brings it on: whoever writes there holds
one lock for as long as its transaction takes, and what it looks at it sees as the one before left it. Who does not get
the lock within a moment searches what is indexed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from holdfast.store.driver import Tx

T = TypeVar("T")

FOLDER = "postgres_search"
# Those that hold something of what was said.
TABLES = ("search_words", "search_blocks")

# The lock is a statement of its own: those after it see what its last holder wrote. Between them a stretch of the log
# is read and cut, which may take longer than a step of the store may stand still.
_BEGIN = """
BEGIN; SET LOCAL lock_timeout = '2s'; SET LOCAL idle_in_transaction_session_timeout = '1min';
SELECT pg_advisory_xact_lock(hashtextextended('holdfast search ' || current_schema(), 0))
"""
# Questions differ in their words only: one plan serves all, and is not made anew for each.
_BEGIN_READING = """
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET LOCAL plan_cache_mode = force_generic_plan; SET LOCAL jit = off; SET LOCAL enable_seqscan = off
"""
_CLEAR = """;
DELETE FROM search_words; DELETE FROM search_blocks; DELETE FROM search_totals;
DELETE FROM search_progress; DELETE FROM search_meta
"""


class Store(Protocol):
    """What is asked of the driver whose connections are used."""

    def read(self, step: Callable[[Tx], T], begin: str) -> T: ...

    def write(self, operation: str, step: Callable[[Tx], T], begin: str) -> T: ...

    def rewrite(self, operation: str, tables: tuple[str, ...]) -> None: ...


class IndexTables:
    """The index of one store; it lives and is closed with the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def write(self, operation: str, step: Callable[[Tx], T]) -> T:
        return self._store.write(operation, step, _BEGIN)

    def read(self, step: Callable[[Tx], T]) -> T:
        return self._store.read(step, _BEGIN_READING)

    def begun(self) -> bool:
        return self.read(lambda tx: tx.one("index_begun")) is not None

    def clear(self) -> None:
        """Rows go, and nothing else: a role that may not make tables can do that, and others go on searching."""
        self._store.write("discard", lambda _: None, _BEGIN + _CLEAR)

    def scrub(self) -> None:
        self._store.rewrite("scrub", TABLES)

    def complaints(self) -> list[str]:
        return []

    def close(self) -> None:
        """Its connections are the store's."""
