"""Translation of SQLite's errors into those of the store."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import apsw

from holdfast import errors
from holdfast.store.sqlite import paths

_TRANSLATIONS: dict[type[errors.StoreError], tuple[type[apsw.Error], ...]] = {
    errors.StoreBusy: (apsw.BusyError, apsw.LockedError),
    errors.StoreFull: (apsw.FullError,),
    errors.StoreCorrupt: (apsw.CorruptError, apsw.NotADBError),
    errors.StoreRefused: (apsw.ConstraintError,),
    errors.StoreClosed: (apsw.ConnectionClosedError,),
    errors.StoreUnusable: (apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError, apsw.AuthError),
    errors.StoreBroken: (apsw.SQLError, apsw.SchemaChangeError),
}

# SQLite reports these for a broken disk, a full disk and an exceeded quota alike.
_WRITE_ERRORS = {
    apsw.SQLITE_IOERR_WRITE,
    apsw.SQLITE_IOERR_FSYNC,
    apsw.SQLITE_IOERR_TRUNCATE,
    apsw.SQLITE_IOERR_SHMSIZE,
}

# apsw raises UnicodeDecodeError for stored text that a flipped bit made invalid.
FAILURES = (apsw.Error, UnicodeDecodeError)


def translate(error: apsw.Error | UnicodeDecodeError, path: str) -> errors.StoreError:
    """Return the store's error for one of SQLite's. SQLite's messages name tables, never their content."""
    if isinstance(error, UnicodeDecodeError):
        return errors.StoreCorrupt(f"{errors.StoreCorrupt.default_message} (stored text is not valid Unicode)")
    if getattr(error, "extendedresult", 0) in _WRITE_ERRORS and paths.is_full(os.path.dirname(path)):
        return errors.StoreFull(f"{errors.StoreFull.default_message} ({path}: {error})")
    if isinstance(error, apsw.CantOpenError | apsw.IOError) and paths.is_out_of_descriptors():
        return paths.too_many_files(path)
    for kind, causes in _TRANSLATIONS.items():
        if isinstance(error, causes):
            where = f"{path}: " if kind in (errors.StoreFull, errors.StoreUnusable) else ""
            return kind(f"{kind.default_message} ({where}{error})")
    return errors.StoreError(f"SQLite failed: {type(error).__name__} ({error})")


@contextlib.contextmanager
def translate_errors(path: str) -> Iterator[None]:
    try:
        yield
    except FAILURES as error:
        raise translate(error, path) from error
