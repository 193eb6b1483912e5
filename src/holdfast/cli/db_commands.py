"""`holdfast db status`, `init`, `scrub` and `copy`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from holdfast import errors, promises, reports, safe_text
from holdfast.app import open_store
from holdfast.cli import console, lazy_group
from holdfast.store import db as store
from holdfast.store.driver import is_postgres


@click.command(name="init")
@click.argument("target", required=False, callback=lazy_group.named)
@click.option("--role", metavar="NAME", help="PostgreSQL role that may use the store, but not change its schema.")
@lazy_group.as_json
@click.pass_obj
def init(out: console.Console, target: str | None, role: str | None, as_json: bool) -> None:
    """Create an empty store at TARGET: a path or postgresql://... (default: the store of the settings).

    An existing store is kept, and missing parts of its schema are added. With --role, a role of the PostgreSQL server
    is granted access to the tables: it can run Holdfast, and cannot change the schema.
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
        out.prose(f"The role {role} can use it, but cannot change its schema.")


@click.command(name="scrub")
@click.argument("target", required=False, callback=lazy_group.named)
@lazy_group.as_json
@lazy_group.yes
@click.pass_obj
def scrub(out: console.Console, target: str | None, as_json: bool, yes: bool) -> int:
    """Remove deleted and redacted text from the files of TARGET (default: the store of the settings).

    On a PostgreSQL server this rewrites every table that holds text, which needs as much disk space again and locks
    each table while it is rewritten: run it at a quiet time. Only the owner of the tables can do it. The server's log,
    archives and backups are not changed.
    """
    with open_store.open_existing(target or out.settings.database) as db:
        question = "Rewrite the tables? Other clients wait meanwhile."
        agreed = not is_postgres(db.path) or out.confirm(question, yes)
        if agreed:
            out.progress("scrubbing the files and the search index")
            db.admin.scrub()
            out.progress("")
    if as_json:
        out.json({"scrubbed": agreed})
    elif agreed:
        out.prose("The files contain no deleted or redacted text any more.")
    return 0 if agreed else 1


# --- copy ----------------------------------------------------------------------------------------------


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

    def progress(done: int, total: int) -> None:
        out.progress(f"copying: {done:,} of {total:,} messages" if done < total else "comparing")

    with open_store.open_existing(source) as old, store.SessionDB(target) as new:
        try:
            report = old.admin.copy_to(new.admin, progress)
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
        _print_copy(out, report)
    return 0


def _print_copy(out: console.Console, report: reports.CopyReport) -> None:
    held = f"{safe_text.count(report.conversations, 'conversation')} with {safe_text.count(report.messages, 'message')}"
    what = "already holds the same data" if report.already_there else "holds the same data and passed every check"
    out.prose(f"{report.target} {what}: {held}, digest {report.digest}.")
    if not report.already_there:
        quoted = f"'{report.target}'" if "://" in report.target else os.path.abspath(report.target)
        out.prose(f"To use it from now on: export HOLDFAST_DB={quoted}, or set `database` in your settings.")
        out.prose("Processes that still use the old store keep writing to it. Stop them first.")


# --- status --------------------------------------------------------------------------------------------


@click.command(name="status")
@click.argument("target", required=False, callback=lazy_group.named)
@lazy_group.as_json
@click.pass_obj
def status(out: console.Console, target: str | None, as_json: bool) -> int:
    """Show engine, size, connections, replication and leases of TARGET (default: the store of the settings).

    Lists each promise and what breaks it in this configuration. Exits with 1 if a promise is broken.
    """
    with open_store.open_existing(target or out.settings.database, allow_unfinished=True) as db:
        found = _read_status(db)
    kept, notes = promises.evaluate(found), [str(note) for note in promises.find_notes(found)]
    holds = all(promise.holds for promise in kept)
    if as_json:
        shown = [
            {**each._asdict(), "holds": each.holds, "breaches": [b._asdict() for b in each.breaches]} for each in kept
        ]
        out.json({"ok": holds, **found, "promises": shown, "notes": notes})
        return 0 if holds else 1
    for name, line in _status_lines(found):
        out.print(safe_text.safe(f"{name:<12} {line}"))
    out.print()
    for promise in kept:
        mark = out.style("holds", "green") if promise.holds else out.style("breaks", "red")
        out.print(f"{promise.name} {mark:<6} {out.clipped(promise.text, out.width and out.width - 12)}")
        for breach in promise.breaches:
            out.prose(f"   {breach.when}: {breach.why}. {breach.remedy}", "yellow")
    for note in notes:
        out.prose(f"note: {note}", "yellow")
    return 0 if holds else 1


def _read_status(db: store.SessionDB) -> dict[str, Any]:
    conversations, messages = db.admin.count_messages()
    return {
        **db.admin.status(),
        "revision": db.admin.get_meta("schema_revision"),
        "generation": db.admin.get_meta("generation"),
        "conversations": conversations,
        "messages": messages,
        "unfinished": db.admin.is_unfinished_copy(),
        "leases": msgspec.to_builtins(db.leases()),
    }


def _status_lines(status: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "database", str(status["path"])
    yield "engine", f"{status['engine']} {status['version']}"
    yield from _server_lines(status) if status["engine"] == "PostgreSQL" else _file_lines(status)
    revision, generation = status["revision"] or "?", status["generation"] or "?"
    yield "schema", f"format {status['format']}, revision {revision}, generation {generation}"
    counts = safe_text.count(status["conversations"], "conversation"), safe_text.count(status["messages"], "message")
    yield "contents", " with ".join(counts)
    if status["unfinished"]:
        yield "", "an unfinished copy: run the same `holdfast db copy` again"
    held = [lease for lease in status["leases"] if lease["state"] == "held"]
    yield "leases", f"{len(held)} held" + (f", {len(status['leases']) - len(held)} stale" if status["leases"] else "")


def _file_lines(status: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "durability", f"{status['durability']}, journal {status['journal']}"
    if "filesystem" in status:
        yield "file system", str(status["filesystem"] or "unknown")
    yield "size", safe_text.size(status["page_size"] * status["pages"])


def _server_lines(status: dict[str, Any]) -> Iterator[tuple[str, str]]:
    encryption = status["tls"] or ("on this machine" if status["local"] else "without TLS")
    yield "connected", f"as {status['role']}, {encryption}"
    sizes = safe_text.size(status["bytes"]), safe_text.size(status["database_bytes"])
    yield "size", f"{sizes[0]} in the schema {status['schema']} of {sizes[1]}"
    used = status["connections"]
    yield "connections", f"{used['holdfast']} of Holdfast, {used['database']} of {used['most']} in all"
    names = ("fsync", "full_page_writes", "synchronous_commit")
    yield "durability", ", ".join(f"{name} {status['settings'][name]}" for name in names)
    for standby in status["standbys"] or ():
        behind = "" if standby["behind_bytes"] is None else f", {safe_text.size(standby['behind_bytes'])} behind"
        name, address = standby["name"] or "unnamed", standby["address"] or "this machine"
        yield "standby", f"{name} ({address}), {standby['sync_state'] or 'unknown'}{behind}"
    if not status["standbys"]:
        yield "standby", "this server is one" if status["in_recovery"] else "none"
