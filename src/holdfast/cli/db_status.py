"""`holdfast db status`: the database under the store, and which promises hold as it is set up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import msgspec

from holdfast import promises, safe_text
from holdfast.app import open_store
from holdfast.cli import console, lazy_group
from holdfast.store import db as store


@click.command(name="status")
@click.argument("target", required=False, callback=lazy_group.named)
@lazy_group.as_json
@click.pass_obj
def command(out: console.Console, target: str | None, as_json: bool) -> int:
    """What TARGET (default: the store of the settings) stands on: engine, size, connections, replication, leases.

    Shows for each promise what breaks it in this configuration, if anything does. Exits with 1 when something does.
    """
    with open_store.open_existing(target or out.settings.database, allow_unfinished=True) as db:
        status = _looked(db)
    kept, notes = promises.evaluate(status), [str(note) for note in promises.find_notes(status)]
    holds = all(promise.holds for promise in kept)
    if as_json:
        shown = [
            {**each._asdict(), "holds": each.holds, "breaches": [b._asdict() for b in each.breaches]} for each in kept
        ]
        out.json({"ok": holds, **status, "promises": shown, "notes": notes})
    else:
        _print(out, status, kept, notes)
    return 0 if holds else 1


def _looked(db: store.SessionDB) -> dict[str, Any]:
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


# --- for people ----------------------------------------------------------------------------------------


def _print(out: console.Console, status: dict[str, Any], kept: list[promises.Promise], notes: list[str]) -> None:
    for name, line in _lines(status):
        out.print(safe_text.safe(f"{name:<12} {line}"))
    out.print()
    for promise in kept:
        mark = out.style("holds", "green") if promise.holds else out.style("breaks", "red")
        out.print(f"{promise.name} {mark:<6} {out.clipped(promise.text, out.width and out.width - 12)}")
        for breach in promise.breaches:
            out.prose(f"   {breach.when}: {breach.why}. {breach.remedy}", "yellow")
    for note in notes:
        out.prose(f"note: {note}", "yellow")


def _lines(status: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "database", str(status["path"])
    yield "engine", f"{status['engine']} {status['version']}"
    yield from _of_server(status) if status["engine"] == "PostgreSQL" else _of_file(status)
    yield (
        "schema",
        f"format {status['format']}, revision {status['revision'] or '?'}, generation {status['generation'] or '?'}",
    )
    counts = safe_text.count(status["conversations"], "conversation"), safe_text.count(status["messages"], "message")
    yield "holds", " with ".join(counts)
    if status["unfinished"]:
        yield "", "an unfinished copy: run the same `holdfast db copy` again"
    held = [lease for lease in status["leases"] if lease["state"] == "held"]
    yield "leases", f"{len(held)} held" + (f", {len(status['leases']) - len(held)} stale" if status["leases"] else "")


def _of_file(status: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "durability", f"{status['durability']}, journal {status['journal']}"
    if "filesystem" in status:
        yield "file system", str(status["filesystem"] or "unknown")
    yield "size", safe_text.size(status["page_size"] * status["pages"])


def _of_server(status: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield (
        "connected",
        f"as {status['role']}, {status['tls'] or ('on this machine' if status['local'] else 'without TLS')}",
    )
    yield (
        "size",
        (
            f"{safe_text.size(status['bytes'])} in the schema {status['schema']} "
            f"of {safe_text.size(status['database_bytes'])}"
        ),
    )
    connections = status["connections"]
    yield (
        "connections",
        f"{connections['holdfast']} of Holdfast, {connections['database']} of {connections['most']} in all",
    )
    settings = status["settings"]
    names = ("fsync", "full_page_writes", "synchronous_commit")
    yield "durability", ", ".join(f"{name} {settings[name]}" for name in names)
    for standby in status["standbys"] or ():
        behind = "" if standby["behind_bytes"] is None else f", {safe_text.size(standby['behind_bytes'])} behind"
        who = standby["name"] or "a standby"
        yield "standby", f"{who} ({standby['address'] or 'this machine'}), {standby['sync_state'] or 'unknown'}{behind}"
    if not status["standbys"]:
        yield "standby", "none" if not status["in_recovery"] else "this server is one"
