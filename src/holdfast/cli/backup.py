"""`holdfast backup`, `restore`, and `holdfast sessions title`, `delete`, `redact`.

What removes something shows it first, and asks. What was removed is scrubbed from the files at once; those of a
server are its own to clear, or its owner's.
"""

from __future__ import annotations

import contextlib
import glob
import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import click
import msgspec

from holdfast import content_parts, errors, reports, safe_text, types
from holdfast.app import open_store
from holdfast.cli import confirmation, console, lazy_group, sessions
from holdfast.store import db as store
from holdfast.store.backup import atomic_file
from holdfast.store.driver import hide_password, is_postgres

SHOWN = 60
ON_A_SERVER = (
    "Its bytes stay in the files of the server until vacuum has been there and the room is used again. `holdfast db "
    "scrub`, as the owner of the tables, takes them out now; everybody waits meanwhile."
)


def told(out: console.Console, what: str) -> Callable[[int, int], None]:
    """Progress as a person reads it."""
    return lambda done, total: out.progress(f"{what}: {done / max(total, 1):.0%}")


# --- backup and restore --------------------------------------------------------------------------------


@click.command(name="backup")
@click.argument("target", type=click.Path(), required=False)
@lazy_group.database
@lazy_group.as_json
@click.option("--overwrite", is_flag=True, help="Replace what is at TARGET even if Holdfast did not make it.")
@click.option(
    "--if-due", is_flag=True, help="Only if the last one made this way is old enough, or the folder has none."
)
@click.pass_obj
def backup(
    out: console.Console, target: str | None, path: str | None, as_json: bool, overwrite: bool, if_due: bool
) -> None:
    """Write a checked copy of the store to TARGET, while others go on writing.

    Without TARGET it goes to the folder that `[backup]` in the settings names, as one of those made on schedule.
    """
    if if_due and (target is not None or overwrite):
        raise click.UsageError("--if-due goes to the folder of the settings; it takes no TARGET and no --overwrite.")
    if target is None:
        report = _scheduled(out, path, 0.0 if not if_due else None)
    else:
        with open_store.open_existing(path or out.settings.database) as db:
            report = db.admin.backup(target, overwrite=overwrite, progress=told(out, "copying"))
    out.progress("")
    if report is None:
        if as_json:
            out.json({"due": False})
        else:
            out.note("No backup is due, or another process is making it.")
        return
    for digest in report.lost_blobs:
        out.note(f"The attachment {digest} is not in the backup: the store has lost it.")
    if as_json:
        out.json(msgspec.structs.asdict(report))
        return
    held = f"{_amount(report)}, {safe_text.size(report.bytes)}"
    out.prose(f"{report.path} has {held}, and passed every check.")


def _scheduled(out: console.Console, path: str | None, every: float | None) -> reports.BackupReport | None:
    """A backup in the folder of the settings; with `every`, as if they came that often, and at once with 0."""
    kept = out.settings.backup
    if kept.folder is None:
        raise click.UsageError("name a TARGET, or a folder for backups in the settings ([backup] folder = ...).")
    with open_store.open_existing(path or out.settings.database) as db:
        return db.admin.backup_if_due(kept.folder, kept.every_hours if every is None else every, kept.keep)


def _amount(report: reports.BackupReport | reports.RestoreReport | types.Report) -> str:
    return f"{safe_text.count(report.conversations, 'conversation')} with {safe_text.count(report.messages, 'message')}"


@click.command(name="restore")
@click.argument("source", type=click.Path())
@lazy_group.database
@lazy_group.as_json
@confirmation.yes
@click.option("--no-keep", is_flag=True, help="Do not back up what the store holds now.")
@click.pass_obj
def restore(out: console.Console, source: str, path: str | None, as_json: bool, yes: bool, no_keep: bool) -> int:
    """Put the backup at SOURCE in the place of everything the store holds.

    What the store holds now is backed up beside it first. Whatever other processes began before is void.
    """
    target = path or out.settings.database
    coming, made, now = _looked(source, target)
    if say := confirmation.preview(out, as_json, yes):
        come = f"was made {safe_text.when(made)}" if made else f"is no backup but a store, used {_changed(source)},"
        named = hide_password(target)
        there = f"{named} has {_amount(now)}, which will be replaced." if now else f"{named} will be made."
        for line in (f"{source} {come} and has {_amount(coming)}.", there):
            for piece in safe_text.wrapped(safe_text.safe(line), out.width):
                say(piece)
    if not confirmation.given(out, yes, "Restore?"):
        if as_json:
            out.json({"restored": False, "backup": _counts(coming), "store": _counts(now) if now else None})
        return 1
    with _opened(target) as db:
        kept = _keep(out, db) if now and now.conversations and not no_keep else None
        report = db.admin.restore(source, progress=told(out, "restoring"))
    out.progress("")
    _say_restored(out, report, kept, as_json)
    return 0


def _looked(source: str, target: str) -> tuple[types.Report, float | None, types.Report | None]:
    """What the backup holds, when it was made, and what the store holds; one that is not there is not made by this."""
    there = is_postgres(target) or os.path.exists(target)
    with _opened(target if there else ":memory:") as db:
        made, coming, now = db.admin.backup_made_at(source), db.admin.check_backup(source), db.admin.fsck()
        db.admin.check_restorable()
    if not coming.ok:
        raise errors.CopyDamaged(source, [f"{bad.promise} {bad.detail}" for bad in coming.violations])
    return coming, made, now if there else None


def _changed(path: str) -> str:
    return safe_text.when(max(os.path.getmtime(each) for each in (path, f"{path}-wal") if os.path.exists(each)))


def _opened(target: str) -> store.SessionDB:
    try:
        return store.SessionDB(target)
    except errors.StoreCorrupt as error:
        raise errors.StoreCorrupt(
            f"{hide_password(target)} is too damaged to be replaced in place ({error}). Stop every process "
            "that uses it, rename it and the files beside it, and restore again."
        ) from error


def _counts(report: types.Report) -> dict[str, int]:
    return {"conversations": report.conversations, "sessions": report.sessions, "messages": report.messages}


def _keep(out: console.Console, db: store.SessionDB) -> str:
    beside = _reserved(f"{db.admin.info()['path']}-before-restore-{time.strftime('%Y%m%d-%H%M%S')}")
    try:
        # What it replaces is the empty file just made, which has kept the name from everybody else.
        return db.admin.backup(beside, overwrite=True, progress=told(out, "keeping what is there")).path
    except BaseException as error:
        os.unlink(beside)
        if not isinstance(error, errors.CopyDamaged):
            raise
        raise errors.CopyDamaged(
            beside, [f"{error.problems[0]} (what the store holds now is damaged; --no-keep restores all the same)"]
        ) from error


def _reserved(stem: str) -> str:
    """A name that nothing has: what an earlier restore kept is never replaced."""
    number = 1
    while True:
        path = f"{stem}.db" if number == 1 else f"{stem}-{number}.db"
        with atomic_file.translate_errors(path), contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            return path
        number += 1


def _say_restored(out: console.Console, report: reports.RestoreReport, kept: str | None, as_json: bool) -> None:
    for digest in report.lost_blobs:
        out.note(f"The attachment {digest} is not in the backup.")
    if as_json:
        out.json({"restored": True, "kept": kept, **msgspec.structs.asdict(report)})
        return
    out.prose(f"Restored: {_amount(report)}.")
    if report.brought_back:
        out.prose(f"Deleted since the backup and back again: {', '.join(report.brought_back)}.")
    if kept:
        out.prose(f"What was there before is in {kept}.")


# --- titles --------------------------------------------------------------------------------------------


@click.command(name="title")
@click.argument("which", metavar="ID", shell_complete=lazy_group.conversations)
@click.argument("name", metavar="[TITLE]", required=False)
@lazy_group.database
@lazy_group.as_json
@click.option("--clear", is_flag=True, help="Take the title away.")
@click.pass_obj
def title(out: console.Console, which: str, name: str | None, path: str | None, as_json: bool, clear: bool) -> None:
    """Give the conversation ID a title; without one, print the title it has."""
    if clear and name is not None:
        raise click.UsageError("give a title or --clear, not both.")
    with open_store.open_existing(path or out.settings.database) as db:
        head = sessions.find(db, which, near=False)
        now = db.set_session_title(head.id, name) if clear or name is not None else head.title
    if as_json:
        out.json({"conversation": head.conversation_id, "title": now})
    elif clear or name is not None:
        out.prose(f"{head.conversation_id} is called {now}." if now else f"{head.conversation_id} has no title now.")
    else:
        out.print(safe_text.safe(now or ""))


# --- removing ------------------------------------------------------------------------------------------


@click.command(name="delete")
@click.argument("which", metavar="ID...", nargs=-1, required=True, shell_complete=lazy_group.conversations)
@lazy_group.database
@lazy_group.as_json
@confirmation.yes
@click.pass_obj
def delete(out: console.Console, which: Sequence[str], path: str | None, as_json: bool, yes: bool) -> int:
    """Remove conversations for good, with their attachments. Their ids are never used again."""
    with open_store.open_existing(path or out.settings.database) as db:
        heads = {head.conversation_id: head for head in (sessions.find(db, name, near=False) for name in which)}
        order = _branches_first(_readers(db, list(heads)))
        if say := confirmation.preview(out, as_json, yes):
            for head in heads.values():
                say(out.clipped(_line(head), out.width))
        removed = confirmation.given(out, yes, f"Delete {safe_text.count(len(heads), 'conversation')} for good?")
        scrubbed = NOT_SCRUBBED
        if removed:
            order = _delete(out, db, order)
            scrubbed = scrub(out, db)
        copies = _copies(str(db.admin.info()["path"])) if removed else []
    names = [name for name in heads if name in order]
    if as_json:
        out.json({"deleted": removed, "scrubbed": scrubbed.files, "conversations": names, "copies": copies})
    elif removed:
        out.prose(f"Deleted {safe_text.count(len(names), 'conversation')}.{_elsewhere(copies)}")
    return 0 if scrubbed.enough and len(names) == len(heads) else 1


def _line(head: types.Session) -> str:
    told = (
        head.conversation_id,
        safe_text.count(head.last_seq, "message"),
        safe_text.when(head.active_at),
        head.title or "",
    )
    return safe_text.safe("  ".join(told).rstrip())


def _readers(db: store.SessionDB, ids: list[str]) -> dict[str, set[str]]:
    """Of each of these conversations, the branches that read from it."""
    return {name: set(db.branches(name, reading=True)) for name in ids}


def _branches_first(readers: dict[str, set[str]]) -> list[str]:
    """An order in which all of them can go. HasBranches, before anything has gone, when there is none."""
    for name, branches in readers.items():
        if others := branches - readers.keys():
            raise errors.HasBranches(sorted(others), name)
    order: list[str] = []
    while waiting := readers.keys() - set(order):
        order += sorted(name for name in waiting if not readers[name] & waiting)
    return order


def _delete(out: console.Console, db: store.SessionDB, ids: list[str]) -> list[str]:
    """Those that went. One that cannot go any more keeps the rest; what went before it is gone all the same."""
    for number, name in enumerate(ids):
        try:
            db.delete_conversation(name)
        except errors.HoldfastError as error:
            if not number:
                raise
            out.note(f"{', '.join(ids[number:])} not deleted: {error}")
            return ids[:number]
    return ids


class Scrubbed(NamedTuple):
    """Whether what was removed is out of the files, and whether that is all there is to do about it here."""

    files: bool
    enough: bool


NOT_SCRUBBED = Scrubbed(files=False, enough=False)


def scrub(out: console.Console, db: store.SessionDB) -> Scrubbed:
    """The files too, where they are ours: whoever reads for long may be in the way."""
    out.progress("scrubbing the files and the search index")
    _forget_outputs(out, db)
    if is_postgres(db.path):
        return _scrub_server(out, db)
    try:
        db.admin.scrub()
    except errors.StoreBusy as error:
        out.progress("")
        out.note(f"It is removed, but may still be found in the files: {error} `holdfast doctor --fix` does it then.")
        return NOT_SCRUBBED
    out.progress("")
    return Scrubbed(files=True, enough=True)


def _scrub_server(out: console.Console, db: store.SessionDB) -> Scrubbed:
    """What can be done while others work; to clear its files would make all of them wait."""
    try:
        db.admin.scrub(files=False)
    except errors.StoreError as error:
        out.progress("")
        out.note(f"It is removed; attachments of it, and its words in the search index, go later: {error}")
    out.progress("")
    out.note(ON_A_SERVER)
    return Scrubbed(files=False, enough=True)


def _forget_outputs(out: console.Console, db: store.SessionDB) -> None:
    """What processes wrote whose commands were redacted, or that are gone with their conversation."""
    # Whoever only keeps conversations has no use for the rest of what runs commands.
    folders = lazy_group.load("holdfast.tools.shell.process_folders")
    try:
        found = folders.seen(folders.within(out.settings.home))
        folders.tidied(found, folders.signature(db.path), db.processes.all() if found else [])
    except OSError as error:
        out.note(f"What processes wrote could not be removed: {error.strerror or error}.")


def _copies(path: str) -> list[str]:
    """What earlier restores kept beside the store."""
    return sorted(glob.glob(f"{glob.escape(path)}-before-restore-*.db"))


def _elsewhere(copies: list[str]) -> str:
    kept = f" So may {', '.join(copies)}, which an earlier restore left." if copies else ""
    return f" Backups, archives and exports made earlier may still have it.{kept}"


@click.command(name="redact")
@click.argument("which", metavar="ID", shell_complete=lazy_group.conversations)
@click.argument("seqs", metavar="SEQ...", nargs=-1, required=True, type=click.IntRange(1))
@lazy_group.database
@lazy_group.as_json
@confirmation.yes
@click.pass_obj
def redact(out: console.Console, which: str, seqs: Sequence[int], path: str | None, as_json: bool, yes: bool) -> int:
    """Remove the text of messages for good, and every summary and title that may have been made from it."""
    with open_store.open_existing(path or out.settings.database) as db:
        head = sessions.find(db, which, near=False)
        going = [_message(db, head, seq) for seq in seqs]
        if say := confirmation.preview(out, as_json, yes):
            for message in going:
                say(out.clipped(f"{message.seq}  {message.role}  {_beginning(message)}", out.width))
            for title in dict.fromkeys(title for seq in seqs for title in _titles(db, head, seq)):
                say(out.clipped(f"The title goes too, since it has words of that: {safe_text.safe(title)}", out.width))
        removed = confirmation.given(
            out, yes, f"Remove the text of {safe_text.count(len(set(seqs)), 'message')} for good?"
        )
        scrubbed = NOT_SCRUBBED
        if removed:
            for seq in sorted(set(seqs)):
                db.redact(head.id, seq)
            scrubbed = scrub(out, db)
        copies = _copies(str(db.admin.info()["path"])) if removed else []
    if as_json:
        told = {"conversation": head.conversation_id, "seqs": sorted(set(seqs)), "copies": copies}
        out.json({"redacted": removed, "scrubbed": scrubbed.files, **told})
    elif removed:
        out.prose(f"Removed the text of {safe_text.count(len(set(seqs)), 'message')}.{_elsewhere(copies)}")
    return 0 if scrubbed.enough else 1


def _message(db: store.SessionDB, head: types.Session, seq: int) -> types.Message:
    found = db.transcript(head.id, after=seq - 1, upto=seq)
    if not found:
        raise errors.InvalidArgument(f"There is no message {seq}: the last is {head.last_seq}.")
    return found[0]


def _titles(db: store.SessionDB, head: types.Session, seq: int) -> list[str]:
    return db.admin.titles_to_redact(head.id, seq)


def _beginning(message: types.Message) -> str:
    if message.redacted:
        return "[redacted already]"
    content = content_parts.text(message.content)
    return safe_text.clipped(safe_text.safe(content), SHOWN) if content else "[no text]"
