"""`holdfast sessions list`: one line a conversation."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import click

from holdfast import errors, safe_text, types
from holdfast.app import open_store
from holdfast.cli import console, json_output, lazy_group
from holdfast.store import db as store
from holdfast.store.driver import hide_password
from holdfast.store.search import query_parser

WORDS = 60
# At most this many columns of a folder: its end.
FOLDER = 30


@click.command(name="list")
@lazy_group.database
@lazy_group.as_json
@click.option("--all", "every", is_flag=True, help="Every session of every conversation, not only the heads.")
@click.option("--limit", type=click.IntRange(1, 1_000_000), default=50, show_default=True, help="At most this many.")
@click.pass_obj
def command(out: console.Console, path: str | None, as_json: bool, every: bool, limit: int) -> None:
    """List conversations, the most recently active first."""
    target = path or out.settings.database
    with open_store.open_existing(target) as db:
        found = db.list_sessions(every=every, limit=limit + 1)
        shown, more = found[:limit], len(found) > limit
        # A title says it better, and reading the first words of very many takes its time.
        begun = {} if every else {head.id: first_words(db, head) for head in shown if as_json or not head.title}
    if as_json:
        listed = [
            json_output.session(one) if every else {**conversation(one), "begins": begun[one.id]} for one in shown
        ]
        out.json({"database": hide_password(target), "sessions" if every else "conversations": listed, "more": more})
        return
    _table(out, shown, every, begun)
    if not shown:
        out.note(f"No conversations in {hide_password(target)} yet.")
    if more:
        out.note(f"These are the {limit} most recent; see more with --limit.")


def conversation(head: types.Session) -> dict[str, Any]:
    """A conversation, as its newest session tells it."""
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


def first_words(db: store.SessionDB, head: types.Session) -> str:
    """How a conversation begins: what its user said first, in one short line."""
    for message in db.transcript(head.conversation_id, 0, 3):
        with contextlib.suppress(errors.StoreCorrupt):
            line = " ".join(query_parser.content_text(message.content).split()) if message.role == "user" else ""
            if line:
                return safe_text.clipped(line, WORDS, "...")
    return ""


def _table(out: console.Console, sessions: Sequence[types.Session], every: bool, begun: Mapping[str, str]) -> None:
    rows = [_row(out, session, every, begun.get(session.id, "")) for session in sessions]
    # A heading is for people: lines in a pipe are counted and cut by programs.
    if out.tty and rows:
        rows.insert(0, ("session" if every else "conversation", "messages", "last active", "state", "folder", "title"))
    widths = [max((safe_text.cells(row[column]) for row in rows), default=0) for column in range(5)]
    for number, (name, messages, active, state, folder, title) in enumerate(rows):
        start = "  ".join(
            (
                safe_text.padded(name, widths[0]),
                safe_text.padded(messages, widths[1], right=True),
                safe_text.padded(active, widths[2]),
                safe_text.padded(state, widths[3]),
                safe_text.padded(folder, widths[4]),
            )
        )
        line = out.clipped(f"{start}  {title}".rstrip(), out.width)
        out.print(out.style(line, "dim") if out.tty and number == 0 else line)


def _row(out: console.Console, session: types.Session, every: bool, begins: str) -> tuple[str, ...]:
    state = "live" if session.live else f"ended: {session.end_reason}"
    return (
        safe_text.safe(session.id if every else session.conversation_id),
        f"{session.message_count if every else session.last_seq:,}",
        safe_text.when(session.active_at),
        out.clipped(safe_text.safe(state), 30),
        safe_text.clipped_path(session.folder or "-", FOLDER, out.glyphs.more),
        safe_text.safe(session.title or (f'"{begins}"' if begins else "")),
    )
