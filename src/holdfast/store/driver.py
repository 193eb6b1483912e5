"""The interface of a database driver: transactions, operations on a whole database, and the address that names one.

A path names a SQLite file, `postgresql://…` a PostgreSQL database.

A step is a function of one transaction. The driver runs it again if the outcome of its commit is unknown (lost
connection, replaced file), so a step generates its ids and uids before the first attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib import parse

import msgspec

from holdfast import process_info
from holdfast.store import notifications

T = TypeVar("T")
Row = tuple[Any, ...]
QueryCall = tuple[str, dict[str, Any]]
"""The name of a query and its parameters."""
Progress = Callable[[int, int], None]
"""Called with the number of items that are done, and their total."""
Execute = Callable[..., Iterable[Sequence[Any]]]
"""Executes one SQL statement and returns its rows."""
POSTGRES_SCHEMES = ("postgresql://", "postgres://")
_SECRETS = {"password", "passfile", "sslpassword", "sslkey", "oauth_client_secret", "scram_client_key"}
DURABILITY = ("power-loss", "process-crash")
UNIX = "unix"
MACHINE_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


def is_postgres(target: str) -> bool:
    return target.startswith(POSTGRES_SCHEMES)


def hide_password(target: str) -> str:
    """Return a URL of any scheme without its secrets; a path is returned unchanged."""
    if "://" not in target:
        return target
    scheme, _, rest = target.partition("://")
    # Like libpq, look for the user before the first slash, even if a password contains a question mark.
    authority, slash, path = rest.partition("/")
    login, at, host = authority.rpartition("@")
    location, mark, query = f"{host}{slash}{path}".partition("?")
    location = location.rpartition("@")[2]  # a password with an unescaped slash, which libpq cannot parse either
    public = [(name, value) for name, value in parse.parse_qsl(query) if name not in _SECRETS]
    options = mark + parse.urlencode(public, quote_via=parse.quote) if public else ""
    return f"{scheme}://{login.partition(':')[0]}{at}{location}{options}"


class SchemaPlan(NamedTuple):
    """The format and revision this version writes, and the statements that convert data of an older format."""

    format: int = 1
    revision: int = 11
    steps: Mapping[int, Sequence[str]] = {}
    create: bool = True  # whether to create a store if there is none


SCHEMA_PLAN = SchemaPlan()
MISSING = "is missing"


class SchemaFault(NamedTuple):
    """A part of the schema that differs from its declaration. A repairable one is recreated without changing a row."""

    kind: str
    name: str
    what: str
    repairable: bool

    def __str__(self) -> str:
        return f"the {self.kind} {self.name} {self.what}"


class LeaseClock(msgspec.Struct, frozen=True):
    """The current time for leases, by the wall clock and by the time since the machine booted."""

    boot: str
    unix: float
    machine: float

    @property
    def now(self) -> float:
        return self.unix if self.boot == UNIX else self.machine

    def left(self, boot: str, expires: float) -> float:
        """Return the seconds until an expiry written by either clock; zero or less if it has passed."""
        if boot == UNIX:
            return expires - self.unix
        return expires - self.machine if boot == process_info.boot_id() else 0.0


def lease_clock(clock: Callable[[], float] | None) -> LeaseClock:
    unix = clock() if clock else time.time()
    machine = time.clock_gettime(MACHINE_CLOCK) if MACHINE_CLOCK is not None else 0.0
    by_unix = clock is not None or MACHINE_CLOCK is None or not process_info.boot_id()
    return LeaseClock(UNIX if by_unix else process_info.boot_id(), unix, machine)


class Tx(Protocol):
    """One transaction. Queries are called by name, with their parameters as keywords."""

    operation: str
    """The prefix of its fault points."""
    shared: bool
    """Whether more steps follow in this transaction; then `finish` does not commit."""
    retry_state: dict[Any, Any]
    """Kept between the attempts of a step, so that a retry recognises what an earlier attempt has committed."""

    def one(self, query: str, /, **values: Any) -> Row | None:
        """Return the first row, or None."""

    def all(self, query: str, /, **values: Any) -> list[Row]: ...

    def run(self, query: str, /, **values: Any) -> int:
        """Return the number of changed rows."""

    def defer(self, query: str, /, **values: Any) -> object:
        """Change rows with the next query or the commit, which then raises any error of this query."""

    def batch(self, *queries: QueryCall) -> list[list[Row]]:
        """Run queries in order and return the rows of each; a server gets all of them in one round trip."""

    def finish(self, *queries: QueryCall) -> list[list[Row]]:
        """Run the last queries of a step like `batch`; a server commits them in the same round trip.

        A query after it begins another transaction, unless the transaction is `shared`.
        """

    def savepoint(self) -> AbstractContextManager[None]:
        """Undo the changes of the block if it raises; the transaction continues."""

    @property
    def clock(self) -> LeaseClock:
        """The clock that measures the leases of this database."""


class DatabaseReader(Protocol):
    def read(self, step: Callable[[Tx], T]) -> T:
        """Run a step in one snapshot of the database."""

    def integrity_errors(self) -> list[str]:
        """Return the damage that the database finds itself: corrupt pages, violated constraints."""

    def schema_faults(self) -> list[SchemaFault]:
        """Return the differences from the declared schema."""

    def close(self) -> None:
        """Close all connections; further calls raise StoreClosed."""


class SearchIndex(Protocol):
    """The database of the search index, which can be dropped and rebuilt. Its methods are those of Driver."""

    def write(self, operation: str, step: Callable[[Tx], T]) -> T: ...
    def read(self, step: Callable[[Tx], T]) -> T: ...
    def scrub(self) -> None: ...
    def integrity_errors(self) -> list[str]: ...
    def close(self) -> None: ...


class Driver(DatabaseReader, Protocol):
    """A database. Calls are synchronous, short and safe from any thread; errors are holdfast errors."""

    name: str
    path: str  # without a password
    pid: int  # of the process that opened it; a forked child gets StoreForked
    has_file: bool  # whether `path` is a file on this machine
    concurrent_writes: bool  # whether transactions of several threads write at the same time
    stores_blobs: bool  # whether it has a table for the content of attachments
    has_tokenizer: bool  # whether its search index splits and stems texts itself
    write_timeout: float  # seconds that a write waits for other writers before StoreBusy

    def write(
        self, operation: str, step: Callable[[Tx], T], *, durable: bool = True, lock_timeout: float | None = None
    ) -> T:
        """Run a step in a write transaction; when this returns, its effect is durable.

        Without `durable`, a power loss may undo it, together with everything written later and nothing earlier.
        `lock_timeout` is the longest wait for a lock in seconds, by default `write_timeout`.

        Raises StoreBusy, StoreFull, StoreCorrupt, StoreRefused; after any of them nothing was written.
        """

    def append_to_each(self, requests: Sequence[Any]) -> list[Any]:
        """Append requests (log.AppendRequest) to different conversations in one round trip, where that is possible.

        Returns the receipts of each, or None for a request that is left to `write`. It waits for no lock.
        """

    def listen(self, handler: Callable[[notifications.Hint], None]) -> bool:
        """Call `handler` from another thread with hints about the writes of other drivers, until this one is closed.

        Hints may be late or missing; `lost` reports missing ones and is always the first. The handler must be quick
        and not raise. Returns False if this database sends no hints, so that the caller has to poll.
        """

    def info(self) -> dict[str, Any]:
        """Return engine, version, location, sizes and modes."""

    def status(self) -> dict[str, Any]:
        """Return `info` with configuration, connections and replication; slower, and without secrets."""

    def allow(self, role: str) -> list[str]:
        """Let a role use the store without changing its schema; return the statements that were run."""

    def scrub(self) -> None:
        """Remove every byte of deleted and redacted content from the files of the database.

        SQLite blocks writers while the file is rewritten, PostgreSQL all access to a table while it is rewritten.
        Raises StoreBusy if another process was reading all the time; then the caller tries again later.
        """

    def shrink(self) -> None:
        """Rewrite the database without its free space; writers wait."""

    def open_search_index(self) -> SearchIndex: ...

    def has_search_index(self) -> bool: ...

    def drop_search_index(self) -> None:
        """Drop the index; processes that have it open notice that it was replaced."""

    def repair_schema(self) -> None:
        """Create what is missing, and recreate triggers and indexes that differ. No row is changed."""


class Facet:
    """A group of related methods on one database. Each method is one short transaction."""

    def __init__(self, driver: Driver, clock: Callable[[], float]) -> None:
        self.driver = driver
        self._clock = clock


S = TypeVar("S", bound=msgspec.Struct)


def struct_from_row(kind: type[S], row: Iterable[Any]) -> S:
    """Build a struct from the values of its fields, in the order of their declaration."""
    return kind(**dict(zip(kind.__struct_fields__, row, strict=True)))


def read_structs(tx: Tx, kind: type[S], query: str, /, **values: Any) -> list[S]:
    """Run a query and build a struct from each row."""
    return [struct_from_row(kind, row) for row in tx.all(query, **values)]


def read_struct(tx: Tx, kind: type[S], query: str, /, **values: Any) -> S | None:
    """Run a query and build a struct from its first row; None if it has no row."""
    row = tx.one(query, **values)
    return None if row is None else struct_from_row(kind, row)
