"""`holdfast sessions show`: the transcript of a conversation, or the context that the model sees.

The transcript is the whole log, with the state of each message: summarized, pinned, hidden or redacted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import click
import msgspec

from holdfast import errors, safe_text, types
from holdfast.app import open_store
from holdfast.cli import console, json_output, lazy_group, session_choice
from holdfast.store import db as store
from holdfast.store.transfer import render

PAGE = 500


class ConversationHistory(NamedTuple):
    """The sessions and compactions of a conversation, with those that a branch shares."""

    conversation: types.Conversation
    sessions: list[types.Session]
    compactions: dict[str, types.Compaction]
    hides: list[types.Hide]
    current: types.Compaction | None


@click.command(name="show")
@click.argument("conversation", metavar="ID", shell_complete=lazy_group.conversations)
@lazy_group.database
@lazy_group.as_json
@click.option(
    "--context", "as_context", is_flag=True, help="Show the context that the model sees instead of the whole log."
)
@click.option("--tail", type=click.IntRange(1), help="Show only this many of the last messages.")
@click.pass_obj
def command(
    out: console.Console, conversation: str, path: str | None, as_json: bool, as_context: bool, tail: int | None
) -> None:
    """Show a conversation. ID is an id, the beginning of one, a title, or `last`."""
    with open_store.open_existing(path or out.settings.database) as db:
        head = session_choice.find(db, conversation)
        if as_context:
            _show_context(out, db, db.context(head.id), tail, as_json)
        else:
            _show_transcript(out, db, head.id, tail, as_json)


# --- the transcript ----------------------------------------------------------------------------------


def _show_transcript(
    out: console.Console, db: store.SessionDB, session_id: str, tail: int | None, as_json: bool
) -> None:
    history = _read_history(db, session_id)
    last = history.conversation.last_seq
    after = max(0, last - tail) if tail else 0
    messages = _read_pages(db, session_id, after, last)
    if as_json:
        out.json(_transcript_to_json(history, messages))
        return
    _heading(out, history.conversation)
    at: str | None = None
    for message in messages:
        _boundary(out, history, at, message.session_id)
        at = message.session_id
        _message(out, db, message, _state(history, message))
    _boundary(out, history, at, history.conversation.head_id)


def _read_history(db: store.SessionDB, session_id: str) -> ConversationHistory:
    here = db.conversation(session_id)
    parts, compactions = db.sessions(here.id), db.compactions(here.id)
    line, seen = here, {here.id}
    while line.forked_from is not None and line.forked_at:
        shared, line = line.forked_at, db.conversation(line.forked_from)
        if line.id in seen:
            break  # only in a damaged store
        seen.add(line.id)
        parts[:0] = [session for session in db.sessions(line.id) if session.first_seq <= shared]
        compactions += db.compactions(line.id)
    return ConversationHistory(
        here,
        parts,
        {compaction.session_id: compaction for compaction in compactions},
        [hide for hide in db.hides(here.id) if hide.shown_epoch is None],
        # An empty context, too, has the current compaction, including one that a branch inherited.
        db.context(here.id, upto=0).compaction,
    )


def _read_pages(db: store.SessionDB, session_id: str, after: int, last: int) -> Iterator[types.Message]:
    """Yield the log page by page, so that output starts at once and memory stays small."""
    for start in range(after, last, PAGE):
        yield from db.transcript(session_id, start, min(start + PAGE, last))


def _state(history: ConversationHistory, message: types.Message) -> str:
    """Return the state of a message; empty if it is in the context verbatim."""
    if message.redacted:
        return "redacted"
    if any(hide.from_seq <= message.seq <= hide.to_seq for hide in history.hides):
        return "hidden"
    if history.current and message.seq <= history.current.cut_seq:
        return "pinned" if message.seq in history.current.pinned else "in the summary"
    return ""


def _transcript_to_json(history: ConversationHistory, messages: Iterator[types.Message]) -> dict[str, Any]:
    return {
        "conversation": json_output.conversation(history.conversation),
        "sessions": [json_output.session(session) for session in history.sessions],
        "compactions": [json_output.compaction(compaction) for compaction in history.compactions.values()],
        "hides": [json_output.hide(hide) for hide in history.hides],
        "messages": [{**json_output.message(message), "state": _state(history, message)} for message in messages],
    }


def _heading(out: console.Console, here: types.Conversation) -> None:
    title = f"  {here.title}" if here.title else ""
    out.print(out.style(safe_text.safe(here.id + title), "bold"))
    parts = [safe_text.count(here.last_seq, "message"), "live" if here.live else "ended", f"head {here.head_id}"]
    if here.forked_from is not None:
        parts.append(f"branch of {here.forked_from} after {here.forked_at}")
    if here.folder is not None:
        parts.append(f"in {here.folder}")
    out.print(safe_text.safe(", ".join(parts)))


def _boundary(out: console.Console, history: ConversationHistory, before: str | None, after: str) -> None:
    """Print the ends and beginnings of sessions between two messages, and their compactions."""
    if before in (None, after):
        return
    names = [session.id for session in history.sessions]
    out.print()
    # Sessions without messages are included.
    for place in range(names.index(before or after), names.index(after)):
        ended, begun = history.sessions[place : place + 2]
        if begun.conversation_id != ended.conversation_id:
            _rule(out, f"the branch {begun.conversation_id} begins")
        else:
            _rule(out, f"{ended.id} ended: {ended.end_reason}; continued in {begun.id}")
        if begun.id in history.compactions:
            _cut(out, history, history.compactions[begun.id])


def _cut(out: console.Console, history: ConversationHistory, compaction: types.Compaction) -> None:
    note = "" if history.current and history.current.session_id == compaction.session_id else " (not in effect)"
    _rule(out, f"compaction{note}: this summary replaces messages up to {compaction.cut_seq} in the context")
    _paragraph(out, compaction.summary or "(empty)")


def _rule(out: console.Console, line: str) -> None:
    out.print(out.style(out.clipped(f"{out.glyphs.rule * 2} {safe_text.safe(line)}", out.width), "yellow"))


# --- the context -------------------------------------------------------------------------------------


def _show_context(
    out: console.Console, db: store.SessionDB, context: types.Context, tail: int | None, as_json: bool
) -> None:
    messages = context.messages[-tail:] if tail else context.messages
    if as_json:
        out.json(
            {
                "conversation_id": context.conversation_id,
                "session_id": context.session_id,
                "epoch": context.epoch,
                "last_seq": context.last_seq,
                "cut_seq": context.cut_seq,
                "running": sorted(context.running),
                "compaction": json_output.compaction(context.compaction) if context.compaction else None,
                "messages": [json_output.message(message) for message in messages],
            }
        )
        return
    out.print(out.style(safe_text.safe(context.conversation_id), "bold"))
    counted = safe_text.count(len(context), "message")
    out.print(f"{counted} in the context, of {context.last_seq:,} in the log; epoch {context.epoch}")
    for message in messages:
        _message(out, db, message, _context_state(context, message), notes=True)


def _context_state(context: types.Context, message: types.Message) -> str:
    if context.compaction and message.uid == f"summary:{context.compaction.epoch}":
        return f"summary of everything up to {message.seq}"
    return "pinned" if message.seq <= context.cut_seq else ""


# --- one message -------------------------------------------------------------------------------------


def _message(
    out: console.Console, db: store.SessionDB, message: types.Message, state: str, *, notes: bool = False
) -> None:
    """Print a message; with `notes`, as the model sees it."""
    heading = f"{message.seq}  {message.role}  {safe_text.date(message.at)}" + (f"  [{state}]" if state else "")
    out.print()
    out.print(out.style(heading, "dim" if state in ("hidden", "in the summary") else "bold"))
    try:
        lines = list(_message_lines(db, message, notes))
    except errors.StoreCorrupt:
        lines = ["(This message is damaged. Run `holdfast doctor`.)"]
    for line in lines:
        _paragraph(out, line)


def _message_lines(db: store.SessionDB, message: types.Message, notes: bool) -> Iterator[str]:
    if message.tool_call_id is not None:
        yield f"result of {message.tool_call_id}:"
    if isinstance(message.content, str):
        if message.content:
            yield message.content
    else:
        yield from (
            render.part_text(part, db.blobs.get) for part in message.content if notes or part.get("type") != "note"
        )
    for call in message.tool_calls:
        arguments = call.arguments if isinstance(call.arguments, str) else msgspec.json.encode(call.arguments).decode()
        yield f"calls {call.name} ({call.id}): {arguments}"


def _paragraph(out: console.Console, paragraph: str) -> None:
    room = None if out.width is None else max(10, out.width - 4)
    for line in safe_text.safe_lines(paragraph):
        for piece in safe_text.wrap(line, room):
            out.print(f"    {piece}".rstrip())
