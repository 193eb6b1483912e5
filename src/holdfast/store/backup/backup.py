"""Backups: a checked copy of the store in one file, and the way back.

A backup is read from one snapshot while others write, checked as a whole, and only then given its name.
A restore replaces what the store holds in one transaction, in the files other processes have open; with it
every lease is void, and every counter that work in flight is compared by leaps past all values used before.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from functools import partial

from holdfast import errors, reports, types
from holdfast.store import fsck, store_meta
from holdfast.store.backup import atomic_file
from holdfast.store.backup import schedule as backup_schedule
from holdfast.store.blobs import blobs
from holdfast.store.blobs import files as blob_files
from holdfast.store.driver import Driver, Progress, Row, Tx
from holdfast.store.search import indexer, search
from holdfast.store.sqlite import paths as sqlite_paths
from holdfast.store.transfer import copy as store_copy

MARK = store_meta.BACKUP
# The database whose stores are files.
FILE = "sqlite"
NOT_SENT = "The store was restored from a backup: not sent."


class Backups(blobs.Blobs):
    """The part of SessionDB that makes copies and goes back to them. A copy is a SQLite file, of any database."""

    searcher: search.Searcher

    def backup(
        self, path: str | os.PathLike[str], *, overwrite: bool = False, progress: Progress | None = None
    ) -> reports.BackupReport:
        """A copy of the whole store at this path, with its attachments beside it in `<path>.blobs`.

        It is given its name only after it passed every check of fsck. An earlier backup there is replaced;
        anything else raises CopyRefused, unless `overwrite` is set.
        """
        target = _target(self.driver, path, overwrite)
        with _in_file(self.driver, target, progress) as driver:
            return _backup(driver, self._blob_files, target, self._clock(), progress)

    def check_backup(self, path: str | os.PathLike[str]) -> types.Report:
        """What a backup holds, and every promise broken in it: what `restore` would look at first."""
        source = _source(self.driver, path)
        with _scratch(self.driver) as temp:
            _copied(self.driver, source, temp)
            with _adopted(self.driver, temp, source) as copy:
                return fsck.check(copy)

    def restore(self, path: str | os.PathLike[str], *, progress: Progress | None = None) -> reports.RestoreReport:
        """Put a backup in the place of everything the store holds, after it passed every check of fsck.

        Other processes go on in the same files. Whatever they began before gets LeaseLost or Superseded.
        A server takes a backup into an empty store only: CopyRefused when it holds something.
        """
        source = _source(self.driver, path)
        began = time.monotonic()
        if self.driver.name != FILE:
            return _taken_in(self, source, progress)
        with _scratch(self.driver) as temp:
            _copied(self.driver, source, temp)
            report, wanted = _examined(self.driver, temp, source)
            lost = blobs.copy_contents(self._blob_files, blobs.files_next_to(source), wanted)
            change = _Change()
            self.driver.replace_with(temp, change, progress)
        forget_index(self.driver, self.searcher)
        counts = (report.conversations, report.sessions, report.messages)
        seconds = time.monotonic() - began
        return reports.RestoreReport(source, change.generation, *counts, lost, tuple(change.brought_back), seconds)

    def backup_if_due(
        self, folder: str | os.PathLike[str], every_hours: float = 24, keep: int = 7
    ) -> reports.BackupReport | None:
        """A backup in this folder if the last one made this way is old enough, or the folder has none.

        None when it is not due. With every_hours 0 it always is, whoever else is at one. Of the backups of
        this store that were made this way, the newest `keep` stay. Of several processes that ask, one makes it.
        """
        backup_schedule.check(every_hours, keep)
        home, now = os.path.realpath(_text(folder)), self._clock()
        store, done = backup_schedule.known(self.driver)
        earlier = backup_schedule.scheduled(home, store)
        claim = backup_schedule.Claim(now, every_hours * 3600, None if earlier else done)
        if not self.driver.write("claim", claim.take):
            return None
        try:
            if os.path.isdir(home):
                atomic_file.remove_abandoned(home)  # their names bear a time, so nobody else would
            near = blob_files.BlobFiles(f"{earlier[-1]}.blobs") if earlier else None
            target = _target(self.driver, backup_schedule.free(home, store, now), False)
            with _in_file(self.driver, target) as driver:
                report = _backup(driver, self._blob_files, target, now, None, near)
        except BaseException as error:
            # What hinders this note hindered the backup: that is what the caller should hear of.
            with contextlib.suppress(errors.StoreError):
                self.driver.write("claim", partial(claim.fail, tell=isinstance(error, Exception)))
            raise
        self.driver.write("claim", claim.fulfil)
        others = [path for path in backup_schedule.scheduled(home, store) if path != report.path]
        for old in others[: max(0, len(others) + 1 - keep)]:
            _discard(old)
        return report


def forget_index(driver: Driver, searcher: search.Searcher) -> None:
    """The search index may hold words of what is not there any more; the next search makes it anew."""
    searcher.close()
    driver.discard_side(indexer.NAME)


# --- making one ----------------------------------------------------------------------------------------


def _backup(
    driver: Driver,
    kept: blob_files.BlobFiles,
    target: str,
    now: float,
    progress: Progress | None,
    near: blob_files.BlobFiles | None = None,
) -> reports.BackupReport:
    began = time.monotonic()
    beside = blobs.files_next_to(target)
    with atomic_file.replace(target, "backup") as temp:
        driver.copy_to(temp, partial(_mark, now=now), progress)
        with contextlib.closing(driver.look_at(temp)) as copy:
            report = _sound(fsck.check(copy), target)
            wanted = [row[0] for row in copy.read(lambda tx: tx.all("blobs_all"))]
        lost = blobs.copy_contents(beside, kept, wanted, near)
        size = os.path.getsize(temp)
    # Only now: until the rename, the backup that was there needs its own.
    beside.keep_only(wanted)
    counts = (report.conversations, report.sessions, report.messages)
    return reports.BackupReport(target, *counts, size, len(wanted) - len(lost), lost, time.monotonic() - began)


@contextlib.contextmanager
def _in_file(driver: Driver, target: str, progress: Progress | None = None) -> Iterator[Driver]:
    """The store, if it is a file; of one on a server, a snapshot in a file that is gone when the block ends."""
    if driver.name == FILE:
        yield driver
        return
    with atomic_file.translate_errors(target):
        atomic_file.prepare_folder(os.path.dirname(target))
    with atomic_file.temporary_file(target) as temp, contextlib.closing(driver.adopt(temp)) as poured:
        store_copy.copy_to_file(driver, poured, progress)
        yield poured


def _mark(tx: Tx, now: float) -> None:
    tx.run("meta_set", key=MARK, value=repr(now))
    backup_schedule.forget_attempts(tx)


def _sound(report: types.Report, path: str) -> types.Report:
    if not report.ok:
        raise errors.CopyDamaged(path, [f"{bad.promise} {bad.detail}" for bad in report.violations])
    return report


def _text(path: object) -> str:
    given = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(given, str) or not given or "\0" in given:
        raise errors.InvalidArgument("A backup needs the path of a file, as text.")
    return given


def _target(driver: Driver, path: object, overwrite: bool) -> str:
    target = os.path.realpath(_text(path))
    if not driver.memory:
        sqlite_paths.refuse_own(driver.path, target)
    if os.path.isdir(target):
        raise errors.CopyRefused(f"{errors.shown(target, 250)} is a folder; name a file in it.")
    if os.path.exists(f"{target}-wal"):
        raise errors.CopyRefused(f"{errors.shown(target, 250)} is a database in use; name another file.")
    if os.path.lexists(target) and not overwrite and not is_backup(driver, target):
        raise errors.CopyRefused(f"{errors.shown(target, 250)} is not a backup that Holdfast made; it is left alone.")
    return target


def is_backup(driver: Driver, path: str) -> bool:
    """Made by `backup`, and not used as a store since."""
    try:
        with contextlib.closing(driver.look_at(path)) as copy:
            return not copy.used() and copy.read(lambda tx: tx.one("meta_get", key=MARK)) is not None
    except errors.StoreError:
        return False


def made_at(driver: Driver, path: str | os.PathLike[str]) -> float | None:
    """When a backup was made; None: it does not say."""
    source = _source(driver, path)
    with _telling_of(source), contextlib.closing(driver.look_at(source)) as copy:
        at = copy.read(lambda tx: backup_schedule.noted(tx, MARK))
    return at if at > 0 else None


# --- going back to one ---------------------------------------------------------------------------------


def _source(driver: Driver, path: object) -> str:
    source = os.path.realpath(_text(path))
    if not os.path.isfile(source):
        raise errors.CopyRefused(f"There is no backup at {errors.shown(source, 250)}.")
    if not driver.memory and source == driver.path:
        raise errors.CopyRefused(f"{source} is the store itself.")
    return source


@contextlib.contextmanager
def _scratch(driver: Driver) -> Iterator[str]:
    """Beside the store, where there is room for it and nobody else may look."""
    if not driver.memory:
        with atomic_file.temporary_file(driver.path) as temp:
            yield temp
        return
    with tempfile.TemporaryDirectory() as folder, atomic_file.temporary_file(os.path.join(folder, "store")) as temp:
        yield temp


@contextlib.contextmanager
def _telling_of(source: str) -> Iterator[None]:
    """What is wrong with a backup is said of the backup, not of the store it was to replace."""
    try:
        yield
    except (errors.StoreCorrupt, errors.StoreBroken) as error:
        raise errors.CopyDamaged(source, [str(error.__cause__ or error)]) from error


def _copied(driver: Driver, source: str, temp: str) -> None:
    with _telling_of(source), contextlib.closing(driver.look_at(source)) as copy:
        copy.copy_to(temp)


@contextlib.contextmanager
def _adopted(driver: Driver, temp: str, source: str) -> Iterator[Driver]:
    """The copy of a backup, brought to the schema of this version."""
    with _telling_of(source):
        try:
            copy = driver.adopt(temp)
        except errors.StoreUnusable as error:
            raise errors.CopyRefused(f"{errors.shown(source, 250)} is a database of another program.") from error
        with contextlib.closing(copy):
            yield copy


def _examined(driver: Driver, temp: str, source: str) -> tuple[types.Report, list[str]]:
    with _adopted(driver, temp, source) as copy:
        report = _sound(fsck.check(copy), source)
        return report, [row[0] for row in copy.read(lambda tx: tx.all("blobs_all"))]


def refuse_filled(driver: Driver) -> None:
    """What a server holds is never replaced as a whole: others write to it, from wherever they are."""
    if driver.name != FILE and not driver.read(store_copy.can_begin):
        raise errors.CopyRefused(
            f"{driver.path} holds something already, and a server takes a backup into an empty store only. "
            "Name another schema or database, restore there, and use that from then on."
        )


def _taken_in(house: Backups, source: str, progress: Progress | None) -> reports.RestoreReport:
    refuse_filled(house.driver)
    with _scratch(house.driver) as temp:
        _copied(house.driver, source, temp)
        _examined(house.driver, temp, source)
        with _adopted(house.driver, temp, source) as copy:
            copy.write("restore", quiet)
            done = store_copy.copy_from(copy, blobs.files_next_to(source), house, progress)
    counts = (done.conversations, done.sessions, done.messages)
    return reports.RestoreReport(source, done.generation, *counts, done.lost_blobs, (), done.seconds)


def quiet(tx: Tx) -> None:
    """Nothing that was under way when a backup was made is answered or sent because of it: it was since, most likely,
    and people who are told the same thing twice, weeks later, trust nothing of it. It says the time it came, so that a
    step that runs again writes the same."""
    tx.run("restore_arrivals")
    tx.run("restore_inbox")
    tx.run("restore_outgoing", error=NOT_SENT)


class _Change:
    """What makes the content of a backup the next state of this store rather than an old one."""

    def __init__(self) -> None:
        self.generation = 0
        self.brought_back: list[str] = []

    def __call__(self, old: Tx, new: Tx) -> None:
        deleted: list[Row] = []
        identity: Row | None = None
        self.generation = store_meta.generation(new) + 1
        # What is to be replaced may be damaged: that is no reason to refuse.
        with contextlib.suppress(errors.StoreCorrupt, errors.StoreBroken):
            self.generation = max(self.generation, store_meta.generation(old) + 1)
            identity = old.one("meta_get", key=store_meta.STORE_ID)
            deleted = old.all("tombstones_all")
        store_meta.begin_generation(new, self.generation)
        quiet(new)
        new.run("meta_delete", key=MARK)
        backup_schedule.forget_attempts(new)
        backup_schedule.keep_identity(new, identity)
        for id_, at in deleted:
            if not new.run("tombstone_keep", id=id_, at=at) and new.one("conversation_key", id=id_):
                self.brought_back.append(id_)


def _discard(path: str) -> None:
    with atomic_file.translate_errors(path), contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    blob_files.BlobFiles(f"{path}.blobs").remove_all()
