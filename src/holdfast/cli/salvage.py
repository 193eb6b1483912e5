"""`holdfast salvage`: what can be read of a damaged store, in a new one, and a list of what cannot."""

from __future__ import annotations

import click
import msgspec

from holdfast import reports, safe_text
from holdfast.cli import console, lazy_group
from holdfast.salvage import salvage

SHOWN = 40


@click.command(name="salvage")
@click.argument("damaged", type=click.Path())
@click.argument("new", type=click.Path())
@lazy_group.as_json
@click.pass_obj
def command(out: console.Console, damaged: str, new: str, as_json: bool) -> int:
    """Read what can be read of the store DAMAGED into a new one, NEW, and list what was lost.

    The damaged files are not changed. Stop every process that uses them first. Exits with 1 when
    something was lost.
    """
    report = salvage.salvage(damaged, new, lambda done, total: out.progress(f"reading: {done / max(total, 1):.0%}"))
    out.progress("")
    if as_json:
        out.json(msgspec.to_builtins(report))
    else:
        _print(out, new, report)
    return 1 if report.lost else 0


def _print(out: console.Console, new: str, report: reports.SalvageReport) -> None:
    saved = (
        f"{safe_text.count(report.conversations, 'conversation')} with {safe_text.count(report.messages, 'message')}"
    )
    out.prose(f"{new} has {saved}, each checked against its digest.")
    for lost in report.lost[:SHOWN]:
        where = f" of {lost.conversation_id}" if lost.conversation_id else ""
        which = (
            "" if lost.first_seq is None or lost.last_seq is None else f", {out.span(lost.first_seq, lost.last_seq)}"
        )
        out.prose(f"lost{where}: {lost.what}{which}", "red")
    if len(report.lost) > SHOWN:
        out.print(f"{out.glyphs.more} and {len(report.lost) - SHOWN:,} more; --json has them all.")
    if not report.lost:
        out.print(out.style("Nothing was lost.", "green"))
