"""`holdfast db init` and `holdfast db copy`: a new store, and everything of an old one in it."""

from __future__ import annotations

import os

import click
import msgspec

from holdfast import errors, reports, safe_text
from holdfast.app import open_store
from holdfast.cli import console, lazy_group
from holdfast.store import db as store


@click.command(name="init")
@click.argument("target", required=False, callback=lazy_group.named)
@click.option("--role", metavar="NAME", help="A role of the server that may use the store, and nothing more.")
@lazy_group.as_json
@click.pass_obj
def init(out: console.Console, target: str | None, role: str | None, as_json: bool) -> None:
    """Make an empty store at TARGET: a path, or postgresql://... (default: the store of the settings).

    A store that is there is left as it is, but for what its schema lacks. With --role, a role of the PostgreSQL server
    is allowed to use the tables: it can run Holdfast, and cannot change the schema.
    """
    with store.SessionDB(target or out.settings.database) as db:
        facts = db.admin.info()
        statements = db.admin.allow_role(role) if role is not None else []
    if as_json:
        out.json({"database": facts["path"], "engine": facts["engine"], "role": role, "grants": statements})
        return
    out.prose(f"{facts['path']} is a store in {facts['engine']} {facts['version']}.")
    for statement in statements:
        out.print(safe_text.safe(f"{statement};"))
    if role is not None:
        out.prose(f"The role {role} may use it, and may not change its schema.")


@click.command(name="copy")
@click.argument("source", metavar="FROM", callback=lazy_group.named)
@click.argument("target", metavar="TO", callback=lazy_group.named)
@lazy_group.as_json
@click.pass_obj
def copy(out: console.Console, source: str, target: str, as_json: bool) -> int:
    """Copy everything the store FROM holds into TO, which is empty or does not exist; each a path or postgresql://...

    Conversations, routes, memories, attachments and all other data are copied, and both stores are compared by digest
    before the copy is marked as finished. The copy is a snapshot: writes to FROM made after it began are not in it, so
    stop writers first. FROM is not changed. After an interruption, run the same command again: it starts over.

    Exits with 0 when TO holds the same data as FROM, and with 1 when they differ.
    """
    with open_store.open_existing(source) as old, store.SessionDB(target) as new:
        try:
            report = old.admin.copy_to(new.admin, lambda done, total: _told(out, done, total))
        except KeyboardInterrupt:
            out.progress("")
            out.note("The copy is not finished. Run the same command again to start over.")
            raise
        except errors.CopyUnfinished as error:
            out.progress("")
            if not as_json:
                raise
            out.json({"ok": False, "error": str(error), "finished": error.finished, "differing": error.differing})
            return 1
    out.progress("")
    for digest in report.lost_blobs:
        out.note(f"The attachment {digest} was not copied: it is missing or damaged in the source.")
    if as_json:
        out.json({"ok": True, **msgspec.to_builtins(report)})
    else:
        _say(out, report)
    return 0


def _told(out: console.Console, done: int, total: int) -> None:
    out.progress(f"copying: {done:,} of {total:,} messages" if done < total else "comparing")


def _say(out: console.Console, report: reports.CopyReport) -> None:
    held = f"{safe_text.count(report.conversations, 'conversation')} with {safe_text.count(report.messages, 'message')}"
    what = "already holds the same data" if report.already_there else "holds the same data and passed every check"
    out.prose(f"{report.target} {what}: {held}, digest {report.digest}.")
    if not report.already_there:
        named = f"export HOLDFAST_DB={_shell(report.target)}"
        out.prose(f"To use it from now on: {named}, or name it as `database` in the settings.")
        out.prose("Processes that still use the old store keep writing to it. Stop them first.")


def _shell(target: str) -> str:
    return f"'{target}'" if "://" in target else os.path.abspath(target)
