"""What the store asks of a database driver. A backend is one driver file and its SQL.

Every step below runs inside one transaction. A step may be run again when the outcome of its commit is
unknown (a lost connection, a replaced file), so it must not depend on how often it ran: whatever it
mints (ids, uids) is minted before the first attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from holdfast.store import holders, reconcile

T = TypeVar("T")
Row = tuple[Any, ...]
Progress = Callable[[int, int], None]


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


class Readable(Protocol):
    """A database that may be looked at."""

    def read(self, step: Callable[[Tx], T]) -> T:
        """Run a step in one snapshot of the database."""

    def complaints(self) -> list[str]:
        """What the database itself finds wrong: damaged pages, broken references."""

    def faults(self) -> list[reconcile.Fault]:
        """Where its schema is not the declared one."""

    def close(self) -> None:
        """Let go of everything."""


class Copy(Readable, Protocol):
    """A database in a file nobody writes to, such as a backup."""

    def used(self) -> bool:
        """Whether it was opened as a store since the copy was made."""

    def copy_to(self, path: str, progress: Progress | None = None) -> None:
        """All of it into an empty file."""


class Driver(Protocol):
    """A database. Calls are synchronous, short and safe from any thread; errors are holdfast errors."""

    name: str
    path: str
    memory: bool

    def write(self, operation: str, step: Callable[[Tx], T]) -> T:
        """Run a step in a write transaction; when this returns, its effect is as durable as was asked.

        Raises StoreBusy, StoreFull, StoreCorrupt, StoreRefused; after any of them nothing was written.
        """

    def read(self, step: Callable[[Tx], T]) -> T:
        """Run a step in one snapshot of the database."""

    def facts(self) -> dict[str, Any]:
        """Engine, version, place, sizes and modes, for people."""

    def copy_to(self, path: str, finish: Callable[[Tx], object], progress: Progress | None = None) -> None:
        """All of one snapshot into an empty file; `finish` then runs in a transaction of the copy."""

    def replace_with(self, path: str, finish: Callable[[Tx, Tx], object], progress: Progress | None = None) -> None:
        """Put the content of that file in the place of all there is, in one transaction.

        Nothing else is written from before `finish` runs until it is done; `finish` reads what is there
        (first) and may change what is to come (second).
        """

    def look_at(self, path: str) -> Copy:
        """A copy in some other file, to be read and never written."""

    def adopt(self, path: str) -> Driver:
        """A store in some other file, brought to the schema of this version."""

    def scrub(self) -> None:
        """Nothing of what was deleted or redacted is left in any file of the database when this returns.

        Others go on reading, and wait to write for as long as the file takes to be read once. Raises StoreBusy
        when a process that reads was in the way all the time; then it is to be called again.
        """

    def shrink(self) -> None:
        """Write the database anew without the room of what was removed; nobody else writes meanwhile."""

    def side(self, name: str) -> Driver:
        """A database of its own beside this one, for what can be thrown away and made again."""

    def has_side(self, name: str) -> bool:
        """Whether that exists already."""

    def discard_side(self, name: str) -> None:
        """Throw it away; whoever has it open finds it replaced."""

    def complaints(self) -> list[str]:
        """What the database itself finds wrong: damaged pages, broken references."""

    def faults(self) -> list[reconcile.Fault]:
        """Where its schema is not the declared one."""

    def mend_schema(self) -> None:
        """Make what is missing, and triggers and indexes that are not as declared, again. No row is touched."""

    def close(self) -> None:
        """Let go of everything; further calls raise StoreClosed."""
