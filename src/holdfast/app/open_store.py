"""Open a store that must already exist."""

from __future__ import annotations

import os

from holdfast import errors
from holdfast.store import db


def open_existing(target: str, *, allow_unfinished: bool = False) -> db.SessionDB:
    """Open an existing store, and never create one. An unfinished copy is refused unless `allow_unfinished` is set."""
    if target != ":memory:" and "://" not in target and _is_missing(target):
        raise errors.StoreUnusable(
            f"There is no database at {os.path.abspath(target)}. "
            "Name another one with --db or HOLDFAST_DB, or send a message to create it."
        )
    store = db.SessionDB(target, create=False)
    try:
        if not allow_unfinished:
            refuse_unfinished_copy(store)
    except BaseException:
        store.close()
        raise
    return store


def refuse_unfinished_copy(store: db.SessionDB) -> None:
    """Raise StoreUnusable for a store that an interrupted copy left empty or unverified."""
    if store.admin.is_unfinished_copy():
        raise errors.StoreUnusable(f"{store.path} is an unfinished copy. Run the same `holdfast db copy` again.")


def _is_missing(path: str) -> bool:
    """Return whether there is no file, or an empty one, which holds no store yet."""
    try:
        return os.stat(path).st_size == 0
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return False  # Opening the store reports the reason.
