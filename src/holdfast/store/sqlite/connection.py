"""Connections to a SQLite file: how they are opened and configured, and which files they have open."""

from __future__ import annotations

import os
import urllib.parse

import apsw

from holdfast import errors
from holdfast.store.sqlite import migration, paths

# 3.7.0 to 3.51.2 can corrupt a WAL when several processes write and checkpoint it.
OLDEST_SQLITE = (3, 51, 3)
MAX_WAL_BYTES = 64 * 1024 * 1024


class SqliteConnection(apsw.Connection):
    """A connection that records the inodes of its files, readable while another thread uses it."""

    files: paths.Inodes | None = None


def check_version(version: str) -> None:
    if tuple(int(part) for part in version.split(".")) < OLDEST_SQLITE:
        raise errors.StoreUnusable(
            f"apsw contains SQLite {version}, which can corrupt a WAL that several processes write; "
            f"at least {'.'.join(map(str, OLDEST_SQLITE))} is needed. Upgrade with: pip install --upgrade apsw"
        )


def connect(path: str, timeout: float, read_only: str = "") -> SqliteConnection:
    """Open a connection; `read_only` is the reason why the store cannot be written, if it cannot."""
    if read_only:
        connection = _connect_read_only(path, read_only)
    else:
        create = apsw.SQLITE_OPEN_CREATE if path == ":memory:" else 0
        connection = SqliteConnection(path, apsw.SQLITE_OPEN_READWRITE | create)
    connection.set_busy_timeout(int(timeout * 1000))
    # A connection closed by the garbage collector or in a forked child must not remove a WAL in use.
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    # Query plans must not depend on bound values: otherwise SQLite plans joins again at every call.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    return connection


def configure(connection: apsw.Connection) -> None:
    # NORMAL keeps the file consistent; the driver syncs the WAL itself before it acknowledges a write.
    connection.pragma("synchronous", "NORMAL")
    connection.pragma("foreign_keys", True)
    # Without recursive triggers, INSERT OR REPLACE deletes rows without running the DELETE triggers.
    connection.pragma("recursive_triggers", True)
    if connection.pragma("foreign_keys") != 1 or connection.pragma("recursive_triggers") != 1:
        raise errors.StoreUnusable("This SQLite library enforces no foreign keys or triggers.")
    connection.pragma("journal_size_limit", MAX_WAL_BYTES)
    connection.pragma("secure_delete", True)  # overwrites deleted content; appends delete nothing


def connect_file(path: str, *, read_only: bool = False) -> apsw.Connection:
    """Open a database file that is not a store in use, such as a backup."""
    return apsw.Connection(path, apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE)


def _connect_read_only(path: str, reason: str) -> SqliteConnection:
    """Open a store that cannot be written, even in a directory where SQLite cannot create its -shm file."""
    connection = SqliteConnection(path, apsw.SQLITE_OPEN_READONLY)
    try:
        connection.pragma("schema_version")
    except (apsw.CantOpenError, apsw.ReadOnlyError):
        connection.close()
    else:
        return connection
    # Every process that opens the store creates a -shm file. Without one, no process has the store open, and the
    # database file is complete if the WAL is empty.
    wal = paths.size_and_mode(f"{path}-wal")
    if os.path.exists(f"{path}-shm") or (wal and wal["bytes"]):
        raise errors.StoreUnusable(
            f"{path} cannot be read: {reason}, and its newest messages are in {path}-wal. Make both writable, "
            "or copy them together to a writable directory and open the copy."
        )
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    return SqliteConnection(f"file:{urllib.parse.quote(path)}?immutable=1", flags)


def check_not_foreign(connection: apsw.Connection, path: str) -> None:
    """Raise StoreUnusable for another program's database, before anything is changed in it.

    Both values are read in one transaction, because another process may be creating the store.
    """
    connection.execute("BEGIN")
    found = connection.pragma("application_id")
    filled = bool(migration.read_schema(connection.execute))
    connection.execute("ROLLBACK")
    if found != migration.APPLICATION_ID and (found != 0 or filled):
        raise errors.StoreUnusable(f"{path} is a database of another program.")


def opened_files() -> list[paths.Inodes]:
    """Return the files of each connection in this process."""
    return [each.files for each in apsw.connections() if isinstance(each, SqliteConnection) and each.files]


def check_not_open_here(path: str) -> None:
    """Refuse to open a file of a store that this process has open: closing it would cancel SQLite's POSIX locks."""
    found = paths.inode(path)
    if any(found in (files.main, files.shm) for files in opened_files()):
        raise errors.StoreUnusable(f"{errors.quote(path, 250)} belongs to an open store; name another file.")
