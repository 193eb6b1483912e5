"""`holdfast backup` and `holdfast restore`."""

from __future__ import annotations

import contextlib
import itertools
import os
import time

import click
import msgspec

from holdfast import errors, reports, safe_text, types
from holdfast.app import open_store
from holdfast.cli import console, lazy_group
from holdfast.store import db as store
from holdfast.store.backup import atomic_file
from holdfast.store.driver import hide_password, is_postgres


@click.command(name="backup")
@click.argument("target", type=click.Path(), required=False)
@lazy_group.database
@lazy_group.as_json
@click.option("--overwrite", is_flag=True, help="Replace TARGET even if it is not a backup made by Holdfast.")
@click.option("--if-due", is_flag=True, help="Only if the latest scheduled backup is old enough, or there is none.")
@click.pass_obj
def backup(
    out: console.Console, target: str | None, path: str | None, as_json: bool, overwrite: bool, if_due: bool
) -> None:
    """Write a verified copy of the store to TARGET. Other processes can keep writing meanwhile.

    Without TARGET, the backup goes to the folder that `[backup]` of the settings names, like a scheduled one.
    """
    if if_due and (target is not None or overwrite):
        raise click.UsageError("--if-due uses the folder of the settings; remove TARGET and --overwrite.")
    kept = out.settings.backup
    if target is None and kept.folder is None:
        raise click.UsageError("Name a TARGET, or set a folder for backups in your settings ([backup] folder = ...).")
    with open_store.open_existing(path or out.settings.database) as db:
        if target is not None:
            report: reports.BackupReport | None = db.admin.backup(
                target, overwrite=overwrite, progress=out.percentage("copying")
            )
        else:
            report = db.admin.backup_if_due(str(kept.folder), kept.every_hours if if_due else 0.0, kept.keep)
    out.progress("")
    if report is None:
        if as_json:
            out.json({"due": False})
        else:
            out.note("No backup is due, or another process is making it.")
        return
    for digest in report.lost_blobs:
        out.note(f"The attachment {digest} is missing in the store, and is not in the backup.")
    if as_json:
        out.json(msgspec.structs.asdict(report))
        return
    out.prose(f"{report.path} has {_contents(report)}, {safe_text.size(report.bytes)}, and passed every check.")


def _contents(report: reports.BackupReport | reports.RestoreReport | types.Report) -> str:
    return f"{safe_text.count(report.conversations, 'conversation')} with {safe_text.count(report.messages, 'message')}"


@click.command(name="restore")
@click.argument("source", type=click.Path())
@lazy_group.database
@lazy_group.as_json
@lazy_group.yes
@click.option("--no-keep", is_flag=True, help="Don't back up the current contents of the store first.")
@click.pass_obj
def restore(out: console.Console, source: str, path: str | None, as_json: bool, yes: bool, no_keep: bool) -> int:
    """Replace the contents of the store with the backup at SOURCE.

    The current contents are backed up next to the store first. Leases and turns of other processes are void afterwards.
    """
    target = path or out.settings.database
    coming, made, now = _inspect(source, target)
    if show := out.preview(as_json, yes):
        origin = f"was made {safe_text.date(made)}" if made else f"is a store, not a backup, used {_changed(source)},"
        named = hide_password(target)
        current = f"{named} has {_contents(now)}, which will be replaced." if now else f"{named} will be created."
        for line in (f"{source} {origin} and has {_contents(coming)}.", current):
            for piece in safe_text.wrap(safe_text.safe(line), out.width):
                show(piece)
    if not out.confirm("Restore?", yes):
        if as_json:
            out.json({"restored": False, "backup": _counts(coming), "store": _counts(now) if now else None})
        return 1
    with _open(target) as db:
        kept = _back_up_current(out, db) if now and now.conversations and not no_keep else None
        report = db.admin.restore(source, progress=out.percentage("restoring"))
    out.progress("")
    for digest in report.lost_blobs:
        out.note(f"The attachment {digest} is not in the backup.")
    if as_json:
        out.json({"restored": True, "kept": kept, **msgspec.structs.asdict(report)})
        return 0
    out.prose(f"Restored: {_contents(report)}.")
    if report.brought_back:
        out.prose(f"Deleted since the backup, and restored: {', '.join(report.brought_back)}.")
    if kept:
        out.prose(f"The previous contents are in {kept}.")
    return 0


def _inspect(source: str, target: str) -> tuple[types.Report, float | None, types.Report | None]:
    """Return the contents of the backup, when it was made, and the contents of the store, which is not created."""
    exists = is_postgres(target) or os.path.exists(target)
    with _open(target if exists else ":memory:") as db:
        made, coming, now = db.admin.backup_made_at(source), db.admin.check_backup(source), db.admin.fsck()
        db.admin.check_restorable()
    if not coming.ok:
        raise errors.CopyDamaged(source, [f"{bad.promise} {bad.detail}" for bad in coming.violations])
    return coming, made, now if exists else None


def _changed(path: str) -> str:
    return safe_text.date(max(os.path.getmtime(each) for each in (path, f"{path}-wal") if os.path.exists(each)))


def _open(target: str) -> store.SessionDB:
    try:
        return store.SessionDB(target)
    except errors.StoreCorrupt as error:
        raise errors.StoreCorrupt(
            f"{hide_password(target)} is too damaged to be replaced in place ({error}). Stop every process "
            "that uses it, rename it and the files next to it, and restore again."
        ) from error


def _counts(report: types.Report) -> dict[str, int]:
    return {"conversations": report.conversations, "sessions": report.sessions, "messages": report.messages}


def _back_up_current(out: console.Console, db: store.SessionDB) -> str:
    path = _reserve(f"{db.admin.info()['path']}-before-restore-{time.strftime('%Y%m%d-%H%M%S')}")
    try:
        # Replaces the empty file that reserves the name.
        return db.admin.backup(path, overwrite=True, progress=out.percentage("backing up the current contents")).path
    except BaseException as error:
        os.unlink(path)
        if not isinstance(error, errors.CopyDamaged):
            raise
        raise errors.CopyDamaged(
            path, [f"{error.problems[0]} (the current contents are damaged; use --no-keep to restore anyway)"]
        ) from error


def _reserve(stem: str) -> str:
    """Create an empty file with a new name, so that a backup made by an earlier restore is never replaced."""
    for number in itertools.count(1):
        path = f"{stem}.db" if number == 1 else f"{stem}-{number}.db"
        with atomic_file.translate_errors(path), contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            break
    return path
