"""`holdfast audit`: what tools did or were denied, who decided, and how it ended."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Sequence

import click

from holdfast import safe_text, types
from holdfast.app import open_store
from holdfast.cli import console, json_output, lazy_group, sessions
from holdfast.store.driver import hide_password

_UNITS = {"m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def _since(_context: click.Context, _option: click.Parameter, said: str | None) -> float | None:
    """30m, 12h, 7d or 2w ago, or a date on this machine's clock."""
    if said is None:
        return None
    ago = re.fullmatch(r"(\d{1,6})\s*([mhdw])", said.strip().lower(), re.ASCII)
    if ago:
        return max(0.0, time.time() - int(ago[1]) * _UNITS[ago[2]])
    try:
        return datetime.datetime.fromisoformat(said.strip()).astimezone().timestamp()
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter("give 30m, 12h, 7d, 2w, or a date such as 2026-05-01.") from None


@click.command(name="audit")
@lazy_group.database
@lazy_group.as_json
@click.option("--conversation", metavar="ID", help="Only this conversation: an id, the beginning of one, or a title.")
@click.option("--since", metavar="WHEN", callback=_since, help="Only from then on: 30m, 12h, 7d, 2w ago, or a date.")
@click.option("--denied", is_flag=True, help="Only what was not allowed.")
@click.option(
    "-n", "--limit", type=click.IntRange(1, 1_000_000), default=50, show_default=True, help="At most this many."
)
@click.pass_obj
def command(
    out: console.Console,
    path: str | None,
    as_json: bool,
    conversation: str | None,
    since: float | None,
    denied: bool,
    limit: int,
) -> None:
    """Show what tools did, the newest first: when, what, who allowed it, and how it ended."""
    target = path or out.settings.database
    with open_store.open_existing(target) as db:
        here = sessions.find(db, conversation).conversation_id if conversation is not None else None
        found = db.permissions.audit_log(here, since=since, denied=denied, limit=limit + 1)
    shown, more = found[:limit], len(found) > limit
    if as_json:
        out.json({"database": hide_password(target), "acts": [json_output.audited(one) for one in shown], "more": more})
        return
    _table(out, shown)
    if not shown:
        out.note("Nothing of that kind is in the audit.")
    if more:
        out.note(f"These are the {limit} newest; see more with -n.")


def ended(act: types.Audited) -> str:
    """How it ended, in a word."""
    if not act.allowed:
        return "denied"
    if act.ended_at is None:
        # Still running, or its process died in the middle of it.
        return "no end"
    return "done" if act.ok else "failed"


def _table(out: console.Console, acts: Sequence[types.Audited]) -> None:
    rows = [
        (
            safe_text.when(act.at),
            ended(act),
            safe_text.safe(act.tool),
            out.clipped(safe_text.safe(act.by), 40),
            safe_text.safe(act.summary),
        )
        for act in acts
    ]
    if out.tty and rows:
        rows.insert(0, ("when", "ended", "tool", "who decided", "what"))
    widths = [max((safe_text.cells(row[column]) for row in rows), default=0) for column in range(4)]
    for number, row in enumerate(rows):
        start = "  ".join(safe_text.padded(row[column], widths[column]) for column in range(4))
        line = out.clipped(f"{start}  {row[4]}".rstrip(), out.width)
        out.print(out.style(line, "dim") if out.tty and number == 0 else line)
