"""`holdfast sessions list`: one line per conversation."""

from __future__ import annotations

from typing import Any

import click

from holdfast import safe_text, types
from holdfast.app import open_store
from holdfast.cli import console, json_output, lazy_group, session_choice
from holdfast.store.driver import hide_password

FOLDER_WIDTH = 30


@click.command(name="list")
@lazy_group.database
@lazy_group.as_json
@click.option("--all", "every", is_flag=True, help="List every session of every conversation, not only the heads.")
@lazy_group.limit(50)
@click.pass_obj
def command(out: console.Console, path: str | None, as_json: bool, every: bool, limit: int) -> None:
    """List conversations, most recently active first."""
    target = path or out.settings.database
    with open_store.open_existing(target) as db:
        found = db.list_sessions(every=every, limit=limit + 1)
        shown, more = found[:limit], len(found) > limit
        # Reading first messages is slow for many conversations, so those with a title are skipped.
        wanted = [] if every else [head for head in shown if as_json or not head.title]
        beginnings = {head.id: session_choice.first_words(db, head) for head in wanted}
    if as_json:
        listed = [
            json_output.session(each) if every else {**_to_json(each), "begins": beginnings[each.id]} for each in shown
        ]
        out.json({"database": hide_password(target), "sessions" if every else "conversations": listed, "more": more})
        return
    heading = ("session" if every else "conversation", "messages", "last active", "state", "folder", "title")
    out.table([_row(out, each, every, beginnings.get(each.id, "")) for each in shown], heading, right=(1,))
    if not shown:
        out.note(f"There are no conversations in {hide_password(target)} yet.")
    if more:
        out.note(f"Showing the {limit} most recent. Use --limit to show more.")


def _to_json(head: types.Session) -> dict[str, Any]:
    return {
        "id": head.conversation_id,
        "title": head.title,
        "owner": head.owner,
        "source": head.source,
        "messages": head.last_seq,
        "last_active": head.active_at,
        "live": head.live,
        "end_reason": head.end_reason,
        "folder": head.folder,
        "head": head.id,
    }


def _row(out: console.Console, session: types.Session, every: bool, beginning: str) -> tuple[str, ...]:
    state = "live" if session.live else f"ended: {session.end_reason}"
    return (
        safe_text.safe(session.id if every else session.conversation_id),
        f"{session.message_count if every else session.last_seq:,}",
        safe_text.date(session.active_at),
        out.clipped(safe_text.safe(state), 30),
        safe_text.clip_path(session.folder or "-", FOLDER_WIDTH, out.glyphs.more),
        safe_text.safe(session.title or (f'"{beginning}"' if beginning else "")),
    )
