"""Puts the parts together: from settings to a store that is open."""

from __future__ import annotations

import os

from holdfast import errors
from holdfast.store import db


def open_to_look(target: str, *, whole: bool = True) -> db.SessionDB:
    """A store that must be there already: who only looks never makes one. `whole` refuses an unfinished copy."""
    if _is_file(target) and _missing(target):
        raise errors.StoreUnusable(
            f"There is no database at {os.path.abspath(target)}. "
            "Name another with --db or HOLDFAST_DB; a new one is made when its first message is stored."
        )
    found = db.SessionDB(target, create=False)
    try:
        if whole:
            refuse_unfinished(found)
    except BaseException:
        found.close()
        raise
    return found


def refuse_unfinished(store: db.SessionDB) -> None:
    """Refuse a store that an interrupted copy left empty or unverified."""
    if store.admin.is_unfinished_copy():
        raise errors.StoreUnusable(f"{store.path} is an unfinished copy. Run the same `holdfast db copy` again.")


def _is_file(target: str) -> bool:
    return target != ":memory:" and "://" not in target


def _missing(path: str) -> bool:
    """Nothing there, or an empty file, which is what a store is before anything is in it."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return False  # Something is in the way; the store says what.
    return found.st_size == 0
