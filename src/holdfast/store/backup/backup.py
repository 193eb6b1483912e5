"""Back a store up into one file, and restore it.

A backup is one snapshot, taken while other processes write. It is checked by fsck before it gets its name. A restore
replaces the content of the store in one transaction, in the files that other processes have open. It voids every lease
and advances every counter past all values used before, so that work begun before the restore cannot commit.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from functools import partial

from holdfast import errors, reports, types
from holdfast.store import fsck, store_meta, validation
from holdfast.store.backup import atomic_file
from holdfast.store.backup import schedule as backup_schedule
from holdfast.store.blobs import blobs
from holdfast.store.blobs import files as blob_files
from holdfast.store.driver import Driver, Progress, Row, Tx
from holdfast.store.sqlite import driver as sqlite_driver
from holdfast.store.sqlite import maintenance as sqlite_maintenance
from holdfast.store.sqlite import paths as sqlite_paths
from holdfast.store.transfer import copy as store_copy

NOT_SENT = "Not sent: the store was restored from a backup."


class BackupAdmin(blobs.AdminFacet):
    """The backup methods of `db.admin`. A backup is a SQLite file, whichever database the store is in."""

    def backup(
        self, path: str | os.PathLike[str], *, overwrite: bool = False, progress: Progress | None = None
    ) -> reports.BackupReport:
        """Write a backup of the whole store to this path, and its attachments to `<path>.blobs`.

        The file gets its name only after it passed every check of fsck. An earlier backup is replaced; anything else
        raises CopyRefused, unless `overwrite` is set.
        """
        target = _check_target(self.driver, path, overwrite)
        with _open_as_file(self.driver, target, progress) as driver:
            return _write_backup(driver, self.blobs.files, target, self._clock(), progress)

    def check_backup(self, path: str | os.PathLike[str]) -> types.Report:
        """Count what a backup holds, and check it as `restore` does first."""
        source = _check_source(self.driver, path)
        with _copy_backup(self.driver, source) as temp, _open_current(temp, source) as copy:
            return fsck.check(copy)

    def backup_made_at(self, path: str | os.PathLike[str]) -> float | None:
        """Return when the backup at this path was made, or None if that is not recorded."""
        source = _check_source(self.driver, path)
        with _translate_damage(source), contextlib.closing(sqlite_maintenance.SqliteCopy(source)) as copy:
            at = copy.read(lambda tx: backup_schedule.read_time(tx, store_meta.BACKUP))
        return at if at > 0 else None

    def check_restorable(self) -> None:
        """Raise CopyRefused if `restore` would: a PostgreSQL store that holds data, to which other hosts may write."""
        if not isinstance(self.driver, sqlite_driver.SqliteDriver) and not self.driver.read(
            lambda tx: not store_copy.has_data(tx) or store_copy.is_unfinished(tx)
        ):
            raise errors.CopyRefused(
                f"{self.driver.path} holds data already. A backup can be restored into an empty PostgreSQL store only: "
                "name another schema or database, restore there, and use that one."
            )

    def restore(self, path: str | os.PathLike[str], *, progress: Progress | None = None) -> reports.RestoreReport:
        """Replace everything the store holds by a backup that passed every check of fsck.

        Other processes keep the store open; work they began before gets LeaseLost or Superseded. A PostgreSQL store
        must be empty: CopyRefused when it holds data.
        """
        source = _check_source(self.driver, path)
        began = time.monotonic()
        if not isinstance(self.driver, sqlite_driver.SqliteDriver):
            return _restore_by_copy(self, source, progress)
        with _copy_backup(self.driver, source) as temp:
            with _open_current(temp, source) as copy:
                report = fsck.raise_if_damaged(fsck.check(copy), source)
                wanted = copy.read(blobs.read_digests)
            lost = blobs.copy_contents(self.blobs.files, blobs.files_next_to(source), wanted)
            generation, brought_back = self.driver.replace_with(temp, _prepare_restored, progress)
        self.searcher.discard()
        counts = (report.conversations, report.sessions, report.messages)
        seconds = time.monotonic() - began
        return reports.RestoreReport(source, generation, *counts, lost, brought_back, seconds)

    def backup_if_due(
        self, folder: str | os.PathLike[str], every_hours: float = 24, keep: int = 7
    ) -> reports.BackupReport | None:
        """Write a backup to this folder if the last scheduled one is old enough, or if the folder has none.

        Returns None when no backup is due. With `every_hours` 0 one is always due. The newest `keep` scheduled backups
        of this store are kept. Of several processes that call this at the same time, one makes the backup.
        """
        validation.check(validation.Duration, every_hours=every_hours)
        validation.check(validation.whole_number(1, 10_000), keep=keep)
        home, now = os.path.realpath(validation.check_path(folder, "folder")), self._clock()
        store = backup_schedule.identify_store(self.driver)
        done = self.driver.read(lambda tx: backup_schedule.read_time(tx, store_meta.BACKUP_DONE))
        earlier = backup_schedule.find_backups(home, store)
        claim = backup_schedule.BackupClaim(now, every_hours * 3600, None if earlier else done)
        if not self.driver.write("claim", claim.acquire):
            return None
        try:
            if os.path.isdir(home):
                atomic_file.remove_abandoned(home)  # Names contain the time, so no later backup has the same name.
            link_from = blobs.files_next_to(earlier[-1]) if earlier else None
            target = _check_target(self.driver, backup_schedule.next_path(home, store, now), False)
            with _open_as_file(self.driver, target) as driver:
                report = _write_backup(driver, self.blobs.files, target, now, None, link_from)
        except BaseException as error:
            # An error while releasing the claim must not replace the backup's error.
            with contextlib.suppress(errors.StoreError):
                self.driver.write("claim", partial(claim.release, failed=isinstance(error, Exception)))
            raise
        self.driver.write("claim", claim.record_success)
        others = [path for path in backup_schedule.find_backups(home, store) if path != report.path]
        for old in others[: max(0, len(others) + 1 - keep)]:
            with atomic_file.translate_errors(old), contextlib.suppress(FileNotFoundError):
                os.unlink(old)
            shutil.rmtree(f"{old}.blobs", ignore_errors=True)
        return report


# --- backup --------------------------------------------------------------------------------------------


def _write_backup(
    driver: sqlite_driver.SqliteDriver,
    attachments: blob_files.BlobFiles,
    target: str,
    now: float,
    progress: Progress | None,
    link_from: blob_files.BlobFiles | None = None,
) -> reports.BackupReport:
    began = time.monotonic()
    copies = blobs.files_next_to(target)
    with atomic_file.replace(target, "backup") as temp:
        driver.copy_to(temp, partial(_mark_as_backup, now=now), progress)
        with contextlib.closing(sqlite_maintenance.SqliteCopy(temp)) as copy:
            report = fsck.raise_if_damaged(fsck.check(copy), target)
            wanted = copy.read(blobs.read_digests)
        lost = blobs.copy_contents(copies, attachments, wanted, link_from)
        size = os.path.getsize(temp)
    # After the rename: until then, the earlier backup needs its attachments.
    copies.keep_only(wanted)
    counts = (report.conversations, report.sessions, report.messages)
    return reports.BackupReport(target, *counts, size, len(wanted) - len(lost), lost, time.monotonic() - began)


@contextlib.contextmanager
def _open_as_file(
    driver: Driver, target: str, progress: Progress | None = None
) -> Iterator[sqlite_driver.SqliteDriver]:
    """Yield the driver of a store that is a file, or a temporary file with a snapshot of one that is not."""
    if isinstance(driver, sqlite_driver.SqliteDriver):
        yield driver
        return
    with atomic_file.translate_errors(target):
        atomic_file.prepare_folder(os.path.dirname(target))
    with atomic_file.temporary_file(target) as temp, contextlib.closing(sqlite_driver.open_file(temp)) as snapshot:
        store_copy.copy_to_file(driver, snapshot, progress)
        yield snapshot


def _mark_as_backup(tx: Tx, now: float) -> None:
    tx.run("meta_set", key=store_meta.BACKUP, value=repr(now))
    backup_schedule.delete_attempts(tx)


def _check_target(driver: Driver, path: object, overwrite: bool) -> str:
    target = os.path.realpath(validation.check_path(path, "path"))
    if driver.has_file:
        sqlite_paths.check_not_own_file(driver.path, target)
    if os.path.isdir(target):
        raise errors.CopyRefused(f"{errors.quote(target, 250)} is a folder. Name a file in it.")
    if os.path.exists(f"{target}-wal"):
        raise errors.CopyRefused(f"{errors.quote(target, 250)} is a database in use. Name another file.")
    if os.path.lexists(target) and not overwrite and not is_backup(target):
        raise errors.CopyRefused(
            f"{errors.quote(target, 250)} is not a backup made by Holdfast. Name another file, or set `overwrite`."
        )
    return target


def is_backup(path: str) -> bool:
    """Return whether `backup` made this file and it was not opened as a store since."""
    try:
        with contextlib.closing(sqlite_maintenance.SqliteCopy(path)) as copy:
            return not copy.was_opened() and copy.read(lambda tx: tx.one("meta_get", key=store_meta.BACKUP)) is not None
    except errors.StoreError:
        return False


# --- restore -------------------------------------------------------------------------------------------


def _check_source(driver: Driver, path: object) -> str:
    source = os.path.realpath(validation.check_path(path, "path"))
    if not os.path.isfile(source):
        raise errors.CopyRefused(f"There is no backup at {errors.quote(source, 250)}.")
    if driver.has_file and source == driver.path:
        raise errors.CopyRefused(f"{source} is the store itself.")
    return source


@contextlib.contextmanager
def _translate_damage(source: str) -> Iterator[None]:
    """Raise CopyDamaged for damage to the backup, instead of an error that names the store."""
    try:
        yield
    except (errors.StoreCorrupt, errors.StoreBroken) as error:
        raise errors.CopyDamaged(source, [str(error.__cause__ or error)]) from error


@contextlib.contextmanager
def _copy_backup(driver: Driver, source: str) -> Iterator[str]:
    """Yield a temporary copy of a backup.

    It is in the store's directory, which is private and on the file system that will hold the restored data.
    """
    with contextlib.ExitStack() as stack:
        folder = os.path.dirname(driver.path) if driver.has_file else stack.enter_context(tempfile.TemporaryDirectory())
        temp = stack.enter_context(atomic_file.temporary_file(os.path.join(folder, "restore")))
        with _translate_damage(source), contextlib.closing(sqlite_maintenance.SqliteCopy(source)) as copy:
            copy.copy_to(temp)
        yield temp


@contextlib.contextmanager
def _open_current(temp: str, source: str) -> Iterator[Driver]:
    """Open the copy of a backup and migrate it to the schema of this version."""
    with _translate_damage(source):
        try:
            copy = sqlite_driver.open_file(temp)
        except errors.StoreUnusable as error:
            raise errors.CopyRefused(f"{errors.quote(source, 250)} is not a database of Holdfast.") from error
        with contextlib.closing(copy):
            yield copy


def _restore_by_copy(store: BackupAdmin, source: str, progress: Progress | None) -> reports.RestoreReport:
    store.check_restorable()
    with _copy_backup(store.driver, source) as temp, _open_current(temp, source) as copy:
        fsck.raise_if_damaged(fsck.check(copy), source)
        copy.write("restore", settle_open_mail)
        done = store_copy.copy(copy, blobs.files_next_to(source), store, progress)
    counts = (done.conversations, done.sessions, done.messages)
    return reports.RestoreReport(source, done.generation, *counts, done.lost_blobs, (), done.seconds)


def settle_open_mail(tx: Tx) -> None:
    """Settle the mail that was open when the backup was made.

    It has most likely been answered since, and must not be answered again weeks later. `settled_at`
    is its arrival time, so that a retried step is idempotent.
    """
    tx.run("restore_arrivals")
    tx.run("restore_inbox")
    tx.run("restore_outgoing", error=NOT_SENT)


def _prepare_restored(old: Tx, new: Tx) -> tuple[int, tuple[str, ...]]:
    """Make the content of a backup the next state of the store, with advanced counters.

    Returns the generation, and the conversations that come back although they were deleted.
    """
    deleted: list[Row] = []
    store_id: Row | None = None
    generation = store_meta.get_generation(new) + 1
    # The store to be replaced may be damaged.
    with contextlib.suppress(errors.StoreCorrupt, errors.StoreBroken):
        generation = max(generation, store_meta.get_generation(old) + 1)
        store_id = old.one("meta_get", key=store_meta.STORE_ID)
        deleted = old.all("tombstones_all")
    store_meta.begin_generation(new, generation)
    settle_open_mail(new)
    new.run("meta_delete", key=store_meta.BACKUP)
    backup_schedule.delete_attempts(new)
    # With the id of another store it would manage the scheduled backups of that store.
    new.run("meta_delete", key=store_meta.STORE_ID)
    if store_id is not None:
        new.run("meta_set", key=store_meta.STORE_ID, value=store_id[0])
    kept = [id_ for id_, at in deleted if not new.run("tombstone_keep", id=id_, at=at)]
    return generation, tuple(id_ for id_ in kept if new.one("conversation_key", id=id_))
