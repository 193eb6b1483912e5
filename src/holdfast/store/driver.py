"""What the store asks of a database driver. A backend is one driver file and its SQL.

Every step below runs inside one transaction. A step may be run again when the outcome of its commit is
unknown (a lost connection, a replaced file), so it must not depend on how often it ran: whatever it
mints (ids, uids) is minted before the first attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import msgspec

from holdfast import alive
from holdfast.store import notifications, schema_plan

T = TypeVar("T")
Row = tuple[Any, ...]
Query = tuple[str, dict[str, Any]]
"""The name of a query, and its values."""
Progress = Callable[[int, int], None]
UNIX = "unix"
MACHINE_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


class LeaseClock(msgspec.Struct, frozen=True):
    """What time it is for leases, and how to read an expiry written by either clock."""

    boot: str
    unix: float
    machine: float

    @property
    def now(self) -> float:
        return self.unix if self.boot == UNIX else self.machine

    def left(self, boot: str, expires: float) -> float:
        """Seconds until this expiry; zero or less means it has run out."""
        if boot == UNIX:
            return expires - self.unix
        return expires - self.machine if boot == alive.boot_id() else 0.0


def lease_clock(clock: Callable[[], float] | None) -> LeaseClock:
    unix = clock() if clock else time.time()
    machine = time.clock_gettime(MACHINE_CLOCK) if MACHINE_CLOCK is not None else 0.0
    by_unix = clock is not None or MACHINE_CLOCK is None or not alive.boot_id()
    return LeaseClock(UNIX if by_unix else alive.boot_id(), unix, machine)


class Tx(Protocol):
    """One transaction. Queries go by name; parameters are keywords."""

    operation: str
    """What it is for: the points it passes are named after it."""
    shared: bool
    """Whether other steps follow in the same transaction: then `finish` commits nothing."""
    meant: dict[Any, Any]
    """Kept from one attempt of a step to the next: what the first meant to do. Where that is done when the step is
    run again, it was done by the attempt nobody heard the end of (or by another who meant the same)."""

    def one(self, query: str, /, **values: Any) -> Row | None:
        """The first row, or None."""

    def all(self, query: str, /, **values: Any) -> list[Row]:
        """Every row."""

    def run(self, query: str, /, **values: Any) -> int:
        """Change something; how many rows were changed."""

    def later(self, query: str, /, **values: Any) -> object:
        """Change something where nobody asks how much. It is done before anything else that this transaction is asked
        for, and before its commit; so is what it is refused for."""

    def batch(self, *queries: Query) -> list[list[Row]]:
        """Run queries in order and return the rows of each; a server gets all of them in one round trip."""

    def finish(self, *queries: Query) -> list[list[Row]]:
        """Run the last queries of a step like `batch`; a server commits them in the same round trip.

        A query after it begins another transaction, unless the transaction is `shared`.
        """

    def savepoint(self) -> AbstractContextManager[None]:
        """What happens inside is undone if it raises; the transaction goes on."""

    @property
    def clock(self) -> LeaseClock:
        """The clock that leases of this database are measured by."""


class Readable(Protocol):
    """A database that may be looked at."""

    def read(self, step: Callable[[Tx], T]) -> T:
        """Run a step in one snapshot of the database."""

    def complaints(self) -> list[str]:
        """What the database itself finds wrong: damaged pages, broken references."""

    def faults(self) -> list[schema_plan.Fault]:
        """Where its schema is not the declared one."""

    def close(self) -> None:
        """Let go of everything."""


class Copy(Readable, Protocol):
    """A database in a file nobody writes to, such as a backup."""

    def used(self) -> bool:
        """Whether it was opened as a store since the copy was made."""

    def copy_to(self, path: str, progress: Progress | None = None) -> None:
        """All of it into an empty file."""


class Side(Protocol):
    """What lies beside a database and may be thrown away; see Driver for what its methods promise."""

    def write(self, operation: str, step: Callable[[Tx], T]) -> T: ...

    def read(self, step: Callable[[Tx], T]) -> T: ...

    def scrub(self) -> None: ...

    def complaints(self) -> list[str]: ...

    def close(self) -> None: ...


class Driver(Protocol):
    """A database. Calls are synchronous, short and safe from any thread; errors are holdfast errors."""

    name: str
    path: str  # for people; without a password
    pid: int  # the process that opened it: any other is a forked child and gets StoreForked
    memory: bool  # no file of it is on this machine
    concurrent_writes: bool  # whether transactions of several threads write at the same time
    keeps_blobs: bool  # has a table for the content of attachments
    stems: bool  # its index of words cuts and stems texts itself
    write_timeout: float  # seconds a write waits for others before it is StoreBusy

    def write(self, operation: str, step: Callable[[Tx], T], *, lasting: bool = True) -> T:
        """Run a step in a write transaction; when this returns, its effect is as durable as was asked.

        One that is not `lasting` may be undone by a power loss, with all that came after it and nothing before.

        Raises StoreBusy, StoreFull, StoreCorrupt, StoreRefused; after any of them nothing was written.
        """

    def append_to_each(self, requests: Sequence[Any]) -> list[Any]:
        """Append requests (log.AppendRequest) to different conversations in one round trip, where that is possible.

        Returns the receipts of each, or None for a request that is left to `write`. It waits for no lock.
        """

    def read(self, step: Callable[[Tx], T]) -> T:
        """Run a step in one snapshot of the database."""

    def listen(self, heard: Callable[[notifications.Hint], None]) -> bool:
        """Have `heard` called with what other drivers wrote, from another thread, until this one is closed.

        Hints may be late or missing; one of the kind `lost` says that some are, and is always the first. What is
        called must be quick and not raise. False: this database sends none, and whoever waits looks now and then.
        """

    def facts(self) -> dict[str, Any]:
        """Engine, version, place, sizes and modes, for people."""

    def standing(self) -> dict[str, Any]:
        """Those, and how the database is set up and what stands behind it: slower, and still no secrets."""

    def allow(self, role: str) -> list[str]:
        """Let a role use the store that may not change its schema; the statements that did."""

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

        Of a file, others go on reading, and wait to write for as long as it takes to be read once; of a server, they
        wait while each table is written anew. Raises StoreBusy when a process that reads was in the way all the time;
        then it is to be called again.
        """

    def shrink(self) -> None:
        """Write the database anew without the room of what was removed; nobody else writes meanwhile."""

    def side(self, name: str) -> Side:
        """A database beside this one, for what can be thrown away and made again: one writes there at a time."""

    def has_side(self, name: str) -> bool:
        """Whether that exists already."""

    def discard_side(self, name: str) -> None:
        """Throw it away; whoever has it open finds it replaced."""

    def complaints(self) -> list[str]:
        """What the database itself finds wrong: damaged pages, broken references."""

    def faults(self) -> list[schema_plan.Fault]:
        """Where its schema is not the declared one."""

    def repair_schema(self) -> None:
        """Make what is missing, and triggers and indexes that are not as declared, again. No row is touched."""

    def close(self) -> None:
        """Let go of everything; further calls raise StoreClosed."""
