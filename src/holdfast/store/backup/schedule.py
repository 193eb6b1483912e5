"""Scheduled backups: when one is due, which process makes it, and which files of a folder belong to this store.

The store records when the last backup was made, which attempt is running and whether the last one failed. File names
contain the id of the store, because many stores have the same file name and may share one backup folder.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from typing import NamedTuple

from holdfast.store import store_meta
from holdfast.store.backup import atomic_file
from holdfast.store.driver import Driver, Tx

CLAIM_TTL_SECONDS = 3600.0
# Backups are overdue after this many intervals.
OVERDUE_INTERVALS = 2
_STAMP = "%Y%m%d-%H%M%S"
_ID = re.compile(r"[0-9a-f]{8}")
_NEVER = float("-inf")


class StoreName(NamedTuple):
    """The beginning of the file names of a store's backups: the stem of its own name and its id."""

    stem: str
    id: str


def identify_store(driver: Driver) -> StoreName:
    """Return the name of the store, with a new id if it has none."""
    row = driver.read(lambda tx: tx.one("meta_get", key=store_meta.STORE_ID))
    if row is None or not _ID.fullmatch(str(row[0])):
        fresh = secrets.token_hex(4)

        def assign(tx: Tx) -> str:
            tx.one("lock_meta")
            row = tx.one("meta_get", key=store_meta.STORE_ID)
            if row is not None and _ID.fullmatch(str(row[0])):
                return str(row[0])
            tx.run("meta_set", key=store_meta.STORE_ID, value=fresh)
            return fresh

        row = (driver.write("claim", assign),)
    stem = os.path.splitext(os.path.basename(driver.path))[0] if driver.has_file else "store"
    return StoreName(stem, row[0])


class BackupClaim(NamedTuple):
    """One attempt at a backup, recorded in the store, so that other processes do not begin another.

    `missing` is the time of the last backup if the folder does not have it: then one is due.
    """

    now: float
    every: float
    missing: float | None

    def acquire(self, tx: Tx) -> bool:
        """Claim the backup if it is due and not claimed. The claim of a dead process expires after an hour."""
        tx.one("lock_meta")
        done, claimed_at = read_time(tx, store_meta.BACKUP_DONE), read_time(tx, store_meta.BACKUP_CLAIMED)
        if claimed_at == tx.retry_state.get("claimed_at"):
            return True  # an earlier attempt whose commit outcome is unknown
        recent = 0 <= self.now - done < self.every and done != self.missing
        claimed = self.every > 0 and 0 <= self.now - claimed_at < CLAIM_TTL_SECONDS
        if recent or claimed:
            return False
        tx.run("meta_set", key=store_meta.BACKUP_CLAIMED, value=repr(self.now))
        tx.retry_state["claimed_at"] = self.now
        return True

    def record_success(self, tx: Tx) -> None:
        tx.run("meta_set", key=store_meta.BACKUP_DONE, value=repr(self.now))
        delete_attempts(tx)

    def release(self, tx: Tx, failed: bool) -> None:
        """Give the claim up, unless another process has it now."""
        if read_time(tx, store_meta.BACKUP_CLAIMED) == self.now:
            tx.run("meta_delete", key=store_meta.BACKUP_CLAIMED)
        if failed:
            tx.run("meta_set", key=store_meta.BACKUP_FAILED, value=repr(self.now))


def delete_attempts(tx: Tx) -> None:
    """Delete the record of a running or failed attempt, also from a copy of the store."""
    for key in (store_meta.BACKUP_CLAIMED, store_meta.BACKUP_FAILED):
        tx.run("meta_delete", key=key)


def overdue_warning(done: str | None, failed: str | None, every_hours: float, now: float) -> str | None:
    """Return a warning if backups fail or are overdue, else None. Times are given as the store records them."""
    made = _parse_time(done)
    if failed is not None:
        return "The last attempt at a scheduled backup failed."
    if made == _NEVER:
        return "No scheduled backup has been made yet."
    return None if 0 <= now - made <= OVERDUE_INTERVALS * every_hours * 3600 else "Scheduled backups are overdue."


def read_time(tx: Tx, key: str) -> float:
    row = tx.one("meta_get", key=key)
    return _parse_time(row[0] if row else None)


def _parse_time(text: str | None) -> float:
    try:
        return _NEVER if text is None else float(text)
    except ValueError:
        return _NEVER


def next_path(folder: str, store: StoreName, now: float) -> str:
    """Return a file name with this time, or with the first later second whose name is free."""
    names = _list_names(folder)
    while True:
        name = f"{store.stem}-{store.id}-{time.strftime(_STAMP, time.gmtime(now))}.db"
        if name not in names and not any(each.startswith(f".{name}.") for each in names):
            return os.path.join(folder, name)
        now += 1


def find_backups(folder: str, store: StoreName) -> list[str]:
    """Return the scheduled backups of this store, oldest first."""
    form = re.compile(re.escape(f"{store.stem}-{store.id}") + r"-\d{8}-\d{6}\.db")
    return [os.path.join(folder, name) for name in sorted(_list_names(folder)) if form.fullmatch(name)]


def _list_names(folder: str) -> list[str]:
    with atomic_file.translate_errors(folder):
        return os.listdir(folder) if os.path.isdir(folder) else []
