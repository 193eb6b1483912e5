"""What the store asks of a database driver. A backend is one driver file and its SQL.

Every step below runs inside one transaction. A step may be run again when the outcome of its commit is
unknown (a lost connection, a replaced file), so it must not depend on how often it ran: whatever it
mints (ids, uids) is minted before the first attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from holdfast.store import holders

T = TypeVar("T")
Row = tuple[Any, ...]


class Tx(Protocol):
    """One transaction. Queries go by name; parameters are keywords."""

    def one(self, query: str, /, **values: Any) -> Row | None:
        """The first row, or None."""

    def all(self, query: str, /, **values: Any) -> list[Row]:
        """Every row."""

    def run(self, query: str, /, **values: Any) -> int:
        """Change something; how many rows were changed."""

    def savepoint(self) -> AbstractContextManager[None]:
        """What happens inside is undone if it raises; the transaction goes on."""

    @property
    def clock(self) -> holders.Timeline:
        """The clock that leases of this database are measured by."""


class Driver(Protocol):
    """A database. Calls are synchronous, short and safe from any thread; errors are holdfast errors."""

    name: str

    def write(self, operation: str, step: Callable[[Tx], T]) -> T:
        """Run a step in a write transaction; when this returns, its effect is as durable as was asked.

        Raises StoreBusy, StoreFull, StoreCorrupt, StoreRefused; after any of them nothing was written.
        """

    def read(self, step: Callable[[Tx], T]) -> T:
        """Run a step in one snapshot of the database."""

    def facts(self) -> dict[str, Any]:
        """Engine, version, place, sizes and modes, for people."""

    def complaints(self) -> list[str]:
        """What the database itself finds wrong: damaged pages, broken references, missing parts of the schema."""

    def close(self) -> None:
        """Let go of everything; further calls raise StoreClosed."""
