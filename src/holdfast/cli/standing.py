"""`holdfast db status`: the database under the store, and which promises hold as it is set up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import msgspec

from holdfast import app
from holdfast.cli import console, lazy
from holdfast.store import db as store
from holdfast.store import promises
from holdfast.terminal import text


@click.command(name="status")
@click.argument("target", required=False, callback=lazy.named)
@lazy.as_json
@click.pass_obj
def command(out: console.Console, target: str | None, as_json: bool) -> int:
    """What TARGET (default: the store of the settings) stands on: engine, size, connections, replication, leases.

    Each promise is told with what breaks it in this configuration, if anything does. Exits with 1 when something does.
    """
    with app.open_to_look(target or out.settings.database, whole=False) as db:
        told = _looked(db)
    kept, notes = promises.promised(told), [str(note) for note in promises.notes(told)]
    holds = all(promise.holds for promise in kept)
    if as_json:
        shown = [
            {**each._asdict(), "holds": each.holds, "breaches": [b._asdict() for b in each.breaches]} for each in kept
        ]
        out.json({"ok": holds, **told, "promises": shown, "notes": notes})
    else:
        _print(out, told, kept, notes)
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


def _print(out: console.Console, told: dict[str, Any], kept: list[promises.Promise], notes: list[str]) -> None:
    for name, line in _lines(told):
        out.print(text.safe(f"{name:<12} {line}"))
    out.print()
    for promise in kept:
        mark = out.style("holds", "green") if promise.holds else out.style("breaks", "red")
        out.print(f"{promise.name} {mark:<6} {out.clipped(promise.text, out.width and out.width - 12)}")
        for breach in promise.breaches:
            out.prose(f"   {breach.when}: {breach.why}. {breach.remedy}", "yellow")
    for note in notes:
        out.prose(f"note: {note}", "yellow")


def _lines(told: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "database", str(told["path"])
    yield "engine", f"{told['engine']} {told['version']}"
    yield from _of_server(told) if told["engine"] == "PostgreSQL" else _of_file(told)
    yield (
        "schema",
        f"format {told['format']}, revision {told['revision'] or '?'}, generation {told['generation'] or '?'}",
    )
    counts = text.count(told["conversations"], "conversation"), text.count(told["messages"], "message")
    yield "holds", " with ".join(counts)
    if told["unfinished"]:
        yield "", "an unfinished copy: run the same `holdfast db copy` again"
    held = [lease for lease in told["leases"] if lease["state"] == "held"]
    yield "leases", f"{len(held)} held" + (f", {len(told['leases']) - len(held)} stale" if told["leases"] else "")


def _of_file(told: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "durability", f"{told['durability']}, journal {told['journal']}"
    if "filesystem" in told:
        yield "file system", str(told["filesystem"] or "unknown")
    yield "size", text.size(told["page_size"] * told["pages"])


def _of_server(told: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "connected", f"as {told['role']}, {told['tls'] or ('on this machine' if told['local'] else 'without TLS')}"
    yield "size", f"{text.size(told['bytes'])} in the schema {told['schema']} of {text.size(told['database_bytes'])}"
    connections = told["connections"]
    yield (
        "connections",
        f"{connections['holdfast']} of Holdfast, {connections['database']} of {connections['most']} in all",
    )
    settings = told["settings"]
    names = ("fsync", "full_page_writes", "synchronous_commit")
    yield "durability", ", ".join(f"{name} {settings[name]}" for name in names)
    for standby in told["standbys"] or ():
        behind = "" if standby["behind_bytes"] is None else f", {text.size(standby['behind_bytes'])} behind"
        who = standby["name"] or "a standby"
        yield "standby", f"{who} ({standby['address'] or 'this machine'}), {standby['sync_state'] or 'unknown'}{behind}"
    if not told["standbys"]:
        yield "standby", "none" if not told["in_recovery"] else "this server is one"
