"""`holdfast sessions title`, `delete`, `redact` and `prune`.

Destructive commands show what they will delete and ask for confirmation. Deleted text is scrubbed from the files of a
SQLite store at once. On a PostgreSQL server, `holdfast db scrub` does that.
"""

from __future__ import annotations

import glob
import graphlib
import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import click
import msgspec

from holdfast import config, content_parts, errors, reports, safe_text, types
from holdfast.app import open_store
from holdfast.cli import console, lazy_group, session_choice
from holdfast.store import db as store
from holdfast.store.driver import is_postgres

PREVIEW_WIDTH = 60
SERVER_NOTE = (
    "The deleted text stays in the files of the server until vacuum frees its space and it is overwritten. To remove "
    "it now, run `holdfast db scrub` as the owner of the tables; other clients wait meanwhile."
)


@click.command(name="title")
@click.argument("which", metavar="ID", shell_complete=lazy_group.conversations)
@click.argument("name", metavar="[TITLE]", required=False)
@lazy_group.database
@lazy_group.as_json
@click.option("--clear", is_flag=True, help="Remove the title.")
@click.pass_obj
def title(out: console.Console, which: str, name: str | None, path: str | None, as_json: bool, clear: bool) -> None:
    """Set the title of the conversation ID; without TITLE, print its current title."""
    if clear and name is not None:
        raise click.UsageError("Use either TITLE or --clear, not both.")
    with open_store.open_existing(path or out.settings.database) as db:
        head = session_choice.find(db, which, near=False)
        now = db.set_session_title(head.id, name) if clear or name is not None else head.title
    if as_json:
        out.json({"conversation": head.conversation_id, "title": now})
    elif clear or name is not None:
        out.prose(f"{head.conversation_id} now has " + (f"the title {now}." if now else "no title."))
    else:
        out.print(safe_text.safe(now or ""))


# --- delete --------------------------------------------------------------------------------------------


@click.command(name="delete")
@click.argument("which", metavar="ID...", nargs=-1, required=True, shell_complete=lazy_group.conversations)
@lazy_group.database
@lazy_group.as_json
@lazy_group.yes
@click.pass_obj
def delete(out: console.Console, which: Sequence[str], path: str | None, as_json: bool, yes: bool) -> int:
    """Delete conversations and their attachments permanently. Their ids are never used again."""
    with open_store.open_existing(path or out.settings.database) as db:
        heads = {head.conversation_id: head for head in (session_choice.find(db, name, near=False) for name in which)}
        order = _branches_first({name: set(db.branches(name, reading=True)) for name in heads})
        if show := out.preview(as_json, yes):
            for name, head in heads.items():
                count, at = safe_text.count(head.last_seq, "message"), safe_text.date(head.active_at)
                show(out.clipped(safe_text.safe(f"{name}  {count}  {at}  {head.title or ''}".rstrip()), out.width))
        removed = out.confirm(f"Delete {safe_text.count(len(heads), 'conversation')} permanently?", yes)
        scrubbed = NOT_SCRUBBED
        if removed:
            order = _delete(out, db, order)
            scrubbed = scrub(out, db)
        copies = _restore_copies(db) if removed else []
    names = [name for name in heads if name in order]
    if as_json:
        out.json({"deleted": removed, "scrubbed": scrubbed.files, "conversations": names, "copies": copies})
    elif removed:
        out.prose(f"Deleted {safe_text.count(len(names), 'conversation')}.{_copies_note(copies)}")
    return 0 if scrubbed.complete and len(names) == len(heads) else 1


def _branches_first(readers: dict[str, set[str]]) -> list[str]:
    """Return an order in which all conversations can be deleted; raises HasBranches if others branch from them."""
    for name, branches in readers.items():
        if others := branches - readers.keys():
            raise errors.HasBranches(sorted(others), name)
    try:
        return list(graphlib.TopologicalSorter(readers).static_order())
    except graphlib.CycleError:
        raise errors.StoreCorrupt from None


def _delete(out: console.Console, db: store.SessionDB, ids: list[str]) -> list[str]:
    """Delete conversations in this order, and return the deleted ones; stop at the first that fails."""
    for number, name in enumerate(ids):
        try:
            db.delete_conversation(name)
        except errors.HoldfastError as error:
            if not number:
                raise
            out.note(f"Not deleted: {', '.join(ids[number:])}. {error}")
            return ids[:number]
    return ids


class ScrubResult(NamedTuple):
    files: bool
    """Whether the deleted text is out of the files."""
    complete: bool
    """Whether nothing is left to do here."""


NOT_SCRUBBED = ScrubResult(files=False, complete=False)


def scrub(out: console.Console, db: store.SessionDB) -> ScrubResult:
    """Remove deleted text from the files of a SQLite store, and from the search index of any store."""
    out.progress("scrubbing the files and the search index")
    _remove_process_output(out, db)
    served = is_postgres(db.path)
    try:
        db.admin.scrub(files=not served)
    except errors.StoreError as error:
        out.progress("")
        if not served and not isinstance(error, errors.StoreBusy):
            raise
        if not served:
            out.note(f"Deleted, but the text may still be in the files: {error} Run `holdfast doctor --fix` later.")
            return NOT_SCRUBBED
        out.note(f"Deleted. Its attachments and its words in the search index are removed later: {error}")
    out.progress("")
    if served:
        out.note(SERVER_NOTE)
    return ScrubResult(files=not served, complete=True)


def _remove_process_output(out: console.Console, db: store.SessionDB) -> None:
    """Remove the output of background processes that were redacted or deleted with their conversation."""
    folders = lazy_group.load("holdfast.tools.shell.process_folders")
    try:
        own = folders.store_folder(out.settings.home, db.path)
        found = folders.list_all(own)
        folders.delete_expired(own, found, db.processes.all() if found else [])
    except OSError as error:
        out.note(f"The output of background processes could not be removed: {error.strerror or error}.")


def _restore_copies(db: store.SessionDB) -> list[str]:
    """Return the backups that earlier restores made next to the store."""
    return sorted(glob.glob(f"{glob.escape(str(db.admin.info()['path']))}-before-restore-*.db"))


def _copies_note(copies: list[str]) -> str:
    kept = f" So may {', '.join(copies)}, made by an earlier restore." if copies else ""
    return f" Earlier backups, archives and exports may still contain it.{kept}"


# --- redact --------------------------------------------------------------------------------------------


@click.command(name="redact")
@click.argument("which", metavar="ID", shell_complete=lazy_group.conversations)
@click.argument("seqs", metavar="SEQ...", nargs=-1, required=True, type=click.IntRange(1))
@lazy_group.database
@lazy_group.as_json
@lazy_group.yes
@click.pass_obj
def redact(out: console.Console, which: str, seqs: Sequence[int], path: str | None, as_json: bool, yes: bool) -> int:
    """Delete the text of messages permanently, with every summary and title that may contain it."""
    wanted = sorted(set(seqs))
    count = safe_text.count(len(wanted), "message")
    with open_store.open_existing(path or out.settings.database) as db:
        head = session_choice.find(db, which, near=False)
        if wanted[-1] > head.last_seq:
            raise errors.InvalidArgument(f"There is no message {wanted[-1]}: the last is {head.last_seq}.")
        messages = [each for seq in wanted for each in db.transcript(head.id, after=seq - 1, upto=seq)]
        if show := out.preview(as_json, yes):
            for message in messages:
                show(out.clipped(f"{message.seq}  {message.role}  {_beginning(message)}", out.width))
            for title in dict.fromkeys(each for seq in wanted for each in db.admin.titles_to_redact(head.id, seq)):
                line = f"The title is removed, too, because it contains words of the text: {safe_text.safe(title)}"
                show(out.clipped(line, out.width))
        removed = out.confirm(f"Delete the text of {count} permanently?", yes)
        scrubbed = NOT_SCRUBBED
        if removed:
            for seq in wanted:
                db.redact(head.id, seq)
            scrubbed = scrub(out, db)
        copies = _restore_copies(db) if removed else []
    if as_json:
        redacted = {"conversation": head.conversation_id, "seqs": wanted, "copies": copies}
        out.json({"redacted": removed, "scrubbed": scrubbed.files, **redacted})
    elif removed:
        out.prose(f"Deleted the text of {count}.{_copies_note(copies)}")
    return 0 if scrubbed.complete else 1


def _beginning(message: types.Message) -> str:
    if message.redacted:
        return "[already redacted]"
    content = content_parts.text(message.content)
    return safe_text.clip(safe_text.safe(content), PREVIEW_WIDTH) if content else "[no text]"


# --- prune ---------------------------------------------------------------------------------------------


def _size(_context: click.Context, _option: click.Parameter, text: str | None) -> int | None:
    try:
        return None if text is None else config.parse_size(text)
    except errors.SettingInvalid as error:
        raise click.BadParameter(str(error)) from None


@click.command(name="prune")
@lazy_group.database
@lazy_group.as_json
@lazy_group.yes
@click.option(
    "--older-than", "days", type=click.FloatRange(0), metavar="DAYS", help="Conversations unused for so long."
)
@click.option("--max-size", "size", callback=_size, metavar="SIZE", help="Least recently used, until the rest fits.")
@click.option("--owner", help="Only conversations of this owner.")
@click.option("--source", help="Only conversations from this source.")
@click.option("--archive", type=click.Path(), help="Archive file (default: a new file in `archive` next to the store).")
@click.pass_obj
def prune(
    out: console.Console,
    path: str | None,
    as_json: bool,
    yes: bool,
    days: float | None,
    size: int | None,
    owner: str | None,
    source: str | None,
    archive: str | None,
) -> int:
    """Move conversations that are old, or exceed a size, into an archive file, and delete them from the store.

    The archive is an export: `holdfast sessions import --revive` restores it under new ids (ID~2). Conversations that
    a lease, a route or a branch needs are kept. Without options, `[retention]` of the settings applies. Without --yes,
    the command shows what it would delete, and asks.
    """
    retention = out.settings.retention
    if days is None and size is None:
        days, size = retention.older_than_days, config.parse_size(retention.max_size) if retention.max_size else None
    if days is None and size is None:
        raise click.UsageError("Use --older-than DAYS or --max-size SIZE, or set [retention] in your settings.")
    with open_store.open_existing(path or out.settings.database) as db:
        plan = db.admin.plan_prune(older_than_days=days, max_bytes=size, owner=owner, source=source)
        target = archive or _archive_path(str(db.admin.info()["path"]), retention.archive, out.settings.home)
        if show := out.preview(as_json, yes):
            _show_plan(out, plan, target, show)
        done = bool(plan.going) and out.confirm("Archive and delete them?", yes)
        report = reports.PruneReport(None, (), (), 0)
        scrubbed = NOT_SCRUBBED
        if done:
            report = db.admin.prune(plan, target, progress=out.percentage("archiving"))
            scrubbed = scrub(out, db)
    out.progress("")
    if as_json:
        details = {"plan": msgspec.to_builtins(plan), "report": msgspec.to_builtins(report)}
        out.json({"pruned": done, "scrubbed": scrubbed.files, **details})
    elif done:
        out.prose(f"Deleted {safe_text.count(len(report.removed), 'conversation')}. Archive: {report.archive}")
        for name in report.kept:
            out.note(f"{name} was kept: it changed or is needed now, or one of its attachments is damaged.")
        for digest in report.lost_blobs:
            out.note(f"The attachment {digest} is missing or damaged, and is not in the archive.")
    return 0 if scrubbed.complete or not plan.going else 1


def _archive_path(database: str, folder: str | None, home: str) -> str:
    """Return a new path next to a SQLite store, or in the data directory for a PostgreSQL server."""
    served = is_postgres(database)
    stem = "store" if served else os.path.splitext(os.path.basename(database))[0]
    name = f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
    return os.path.join(folder or os.path.join(home if served else os.path.dirname(database), "archive"), name)


def _show_plan(out: console.Console, plan: reports.PrunePlan, target: str, show: Callable[[str], None]) -> None:
    for each in (*plan.going, *plan.needed):
        parts = (
            each.conversation_id,
            safe_text.count(each.messages, "message"),
            safe_text.size(each.bytes),
            safe_text.date(each.active_at),
            f"kept: {each.needed}" if each.needed else "delete",
            each.title or "",
        )
        show(out.clipped(safe_text.safe("  ".join(parts).rstrip()), out.width))
    if not plan.going:
        out.note("Nothing to delete.")
        return
    size = safe_text.size(sum(each.bytes for each in plan.going))
    out.note(f"{safe_text.count(len(plan.going), 'conversation')} ({size}) would be moved to {target}.")
