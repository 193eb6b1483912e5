"""`holdfast audit`: list tool calls, who decided about them, and how they ended."""

from __future__ import annotations

import re
import time

import click

from holdfast import safe_text, types
from holdfast.app import open_store
from holdfast.cli import console, json_output, lazy_group, session_choice
from holdfast.store.driver import hide_password

_UNITS = {"m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def _since(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    """Parse a duration before now (30m, 12h, 7d, 2w) or a local date and time."""
    if text is None:
        return None
    ago = re.fullmatch(r"(\d{1,6})\s*([mhdw])", text.strip().lower(), re.ASCII)
    if ago:
        return max(0.0, time.time() - int(ago[1]) * _UNITS[ago[2]])
    try:
        return lazy_group.parse_local_time(text)
    except click.BadParameter:
        raise click.BadParameter("expected 30m, 12h, 7d, 2w, or a date such as 2026-05-28.") from None


@click.command(name="audit")
@lazy_group.database
@lazy_group.as_json
@click.option("--conversation", metavar="ID", help="Only this conversation: an id, the beginning of one, or a title.")
@click.option("--since", metavar="WHEN", callback=_since, help="Only calls since then: 30m, 12h, 7d, 2w, or a date.")
@click.option("--denied", is_flag=True, help="Only calls that were denied.")
@lazy_group.limit(50, "-n")
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
    """List tool calls, newest first: when, what, who decided, and how they ended."""
    target = path or out.settings.database
    with open_store.open_existing(target) as db:
        here = session_choice.find(db, conversation).conversation_id if conversation is not None else None
        found = db.permissions.audit_log(here, since=since, denied=denied, limit=limit + 1)
    shown, more = found[:limit], len(found) > limit
    if as_json:
        acts = [json_output.audited(each) for each in shown]
        out.json({"database": hide_password(target), "acts": acts, "more": more})
        return
    rows = [
        (
            safe_text.date(call.at),
            _outcome(call),
            safe_text.safe(call.tool),
            out.clipped(safe_text.safe(call.by), 40),
            safe_text.safe(call.summary),
        )
        for call in shown
    ]
    out.table(rows, ("when", "ended", "tool", "who decided", "what"))
    if not shown:
        out.note("No matching tool calls.")
    if more:
        out.note(f"Showing the {limit} newest. Use -n to show more.")


def _outcome(call: types.Audited) -> str:
    if not call.allowed:
        return "denied"
    if call.ended_at is None:
        return "no end"  # It is still running, or its process died.
    return "done" if call.ok else "failed"
