"""`holdfast salvage`: recover a damaged store into a new one."""

from __future__ import annotations

import click
import msgspec

from holdfast import safe_text
from holdfast.cli import console, lazy_group
from holdfast.salvage import salvage

MAX_LINES = 40


@click.command(name="salvage")
@click.argument("damaged", type=click.Path())
@click.argument("new", type=click.Path())
@lazy_group.as_json
@click.pass_obj
def command(out: console.Console, damaged: str, new: str, as_json: bool) -> int:
    """Recover the readable data of the store DAMAGED into a new store, NEW, and list what was lost.

    The damaged files are not changed. Stop every process that uses them first. Exits with 1 if something was lost.
    """
    report = salvage.salvage(damaged, new, out.percentage("reading"))
    out.progress("")
    if as_json:
        out.json(msgspec.to_builtins(report))
        return 1 if report.lost else 0
    recovered = safe_text.count(report.conversations, "conversation"), safe_text.count(report.messages, "message")
    out.prose(f"{new} has {recovered[0]} with {recovered[1]}, each verified by its digest.")
    for lost in report.lost[:MAX_LINES]:
        where = f" of {lost.conversation_id}" if lost.conversation_id else ""
        known = lost.first_seq is not None and lost.last_seq is not None
        which = f", {out.span(lost.first_seq or 0, lost.last_seq or 0)}" if known else ""
        out.prose(f"lost{where}: {lost.what}{which}", "red")
    if len(report.lost) > MAX_LINES:
        out.print(f"{out.glyphs.more} and {len(report.lost) - MAX_LINES:,} more; --json lists all.")
    if not report.lost:
        out.print(out.style("Nothing was lost.", "green"))
    return 1 if report.lost else 0
