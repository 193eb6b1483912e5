"""`holdfast sessions tree`: the sessions, compactions and branches of conversations as a tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import click

from holdfast import errors, safe_text, types
from holdfast.app import open_store
from holdfast.cli import console, json_output, lazy_group, session_choice
from holdfast.store import db as store
from holdfast.store.driver import hide_password


class LineageEntry(NamedTuple):
    """A conversation with its sessions, compactions and branches."""

    conversation: types.Conversation
    sessions: list[types.Session]
    compactions: list[types.Compaction]
    branches: list[str]


@click.command(name="tree")
@click.argument("conversation", metavar="[ID]", required=False, shell_complete=lazy_group.conversations)
@lazy_group.database
@lazy_group.as_json
@lazy_group.limit(20, largest=100_000)
@click.pass_obj
def command(out: console.Console, conversation: str | None, path: str | None, as_json: bool, limit: int) -> None:
    """Draw the lineage of a conversation (an id, the beginning of one, a title, or `last`), or of all."""
    target = path or out.settings.database
    with open_store.open_existing(target) as db:
        roots, more = (
            ([root(db, session_choice.find(db, conversation).id)], False) if conversation else _roots(db, limit)
        )
        found = gather(db, roots)
    if as_json:
        shapes = [_to_json(line) for line in found.values()]
        out.json({"database": hide_password(target), "roots": roots, "conversations": shapes})
        return
    for number, key in enumerate(roots):
        if number:
            out.print()
        for line in _draw(out, found, key):
            out.print(line)
    if not roots:
        out.note(f"There are no conversations in {hide_password(target)} yet.")
    if more:
        out.note(f"Showing the {limit} most recent. Use --limit to show more.")


# --- reading ---------------------------------------------------------------------------------------


def root(db: store.SessionDB, session_id: str) -> str:
    """Return the conversation that this one descends from; a deleted origin ends the search."""
    here, seen = db.conversation(session_id), set[str]()
    # A cycle exists only in a damaged store.
    while here.forked_from is not None and here.id not in seen:
        seen.add(here.id)
        try:
            here = db.conversation(here.forked_from)
        except errors.NoSuchSession:
            break
    return here.id


def _roots(db: store.SessionDB, limit: int) -> tuple[list[str], bool]:
    """Return the roots of the most recently active conversations, and whether there are more."""
    found: dict[str, None] = {}
    skip = 0
    while len(found) <= limit and (heads := db.list_sessions(limit=100, skip=skip)):
        found.update(dict.fromkeys(root(db, head.id) for head in heads))
        skip += len(heads)
    return list(found)[:limit], len(found) > limit


def gather(db: store.SessionDB, roots: Iterable[str]) -> dict[str, LineageEntry]:
    """Return all conversations of these trees by id."""
    found: dict[str, LineageEntry] = {}
    waiting = list(roots)
    while waiting:
        key = waiting.pop(0)
        if key not in found:
            found[key] = LineageEntry(db.conversation(key), db.sessions(key), db.compactions(key), db.branches(key))
            waiting += found[key].branches
    return found


def _to_json(line: LineageEntry) -> dict[str, Any]:
    opened = {compaction.session_id: json_output.compaction(compaction) for compaction in line.compactions}
    return {
        **json_output.conversation(line.conversation),
        "sessions": [
            {**json_output.session(session), "compaction": opened.get(session.id)} for session in line.sessions
        ],
        "branches": line.branches,
    }


# --- drawing -----------------------------------------------------------------------------------------


def _draw(out: console.Console, found: dict[str, LineageEntry], key: str) -> Iterator[str]:
    """Yield the lines of a tree. A chain of branches may be longer than the recursion limit, so a stack is used."""
    stack = [_draw_conversation(out, found, key)]
    while stack:
        item = next(stack[-1], None)
        if item is None:
            stack.pop()
        elif isinstance(item, str):
            yield item
        else:
            stack.append(item)


def _draw_conversation(
    out: console.Console, found: dict[str, LineageEntry], key: str, lead: str = "", indent: str = ""
) -> Iterator[Any]:
    """Yield the lines of a conversation: each session after the compaction that opened it, with branches below.

    A branch is yielded as an iterator like this one.
    """
    line = found.pop(key)  # A damaged store may have a cycle, so each conversation is drawn once.
    yield _fit(out, lead, _heading(out, line), "bold")
    opened = {compaction.session_id: compaction for compaction in line.compactions}
    rows: list[tuple[str, tuple[str, ...], str]] = []
    for session in line.sessions:
        if session.id in opened:
            rows.append((_compaction(out, line, opened[session.id]), ("yellow",), ""))
        is_head = session.id == line.conversation.head_id
        rows.append((_session(out, session, is_head), ("green",) if session.live else (), session.id))
    last, more = (out.glyphs.last, "   "), (out.glyphs.fork, out.glyphs.pipe)
    for number, (text, style, session_id) in enumerate(rows, 1):
        fork, pipe = last if number == len(rows) else more
        yield _fit(out, indent + fork, text, *style)
        below = [each for each in line.branches if each in found and found[each].conversation.forked_from == session_id]
        for place, branch in enumerate(below, 1):
            if branch in found:
                leads = last if place == len(below) else more
                yield _draw_conversation(out, found, branch, *(indent + pipe + each for each in leads))


def _fit(out: console.Console, lead: str, line: str, *style: str) -> str:
    """Return a line that fits the terminal."""
    shown = out.clipped(lead, out.width)
    text = out.clipped(line, out.width and max(0, out.width - safe_text.cells(shown)))
    return shown + (out.style(text, *style) if style else text)


def _heading(out: console.Console, line: LineageEntry) -> str:
    here = line.conversation
    parts = [safe_text.safe(here.id), safe_text.safe(here.title or ""), safe_text.count(here.last_seq, "message")]
    if here.forked_from is not None:
        parts.insert(0, "branch")
        parts.append(f"shares {out.span(1, here.forked_at or 0)} of {safe_text.safe(here.forked_from)}")
    if not here.live:
        parts.append("ended")
    return "  ".join(part for part in parts if part)


def _session(out: console.Console, session: types.Session, head: bool) -> str:
    mark = out.glyphs.live if session.live else out.glyphs.ended
    state = "live" if session.ended_at is None else f"ended {safe_text.date(session.ended_at)}: {session.end_reason}"
    line = f"{mark} {session.id}  {out.span(session.first_seq, session.last_seq)}  {state}"
    return safe_text.safe(line + "  <- head" if head else line)


def _compaction(out: console.Console, line: LineageEntry, compaction: types.Compaction) -> str:
    opened_at = next(each.first_seq for each in line.sessions if each.id == compaction.session_id)
    kept = out.span(compaction.cut_seq + 1, opened_at - 1)
    parts = [f"cut after {compaction.cut_seq}", f"{kept} stay", f"epoch {compaction.epoch}"]
    if compaction.pinned:
        parts.append(f"pinned {', '.join(map(str, compaction.pinned))}")
    parts.append(
        f"summary of {safe_text.count(len(compaction.summary), 'character')}" if compaction.summary else "no summary"
    )
    if compaction.epoch == line.conversation.compaction_epoch:
        parts.append("in force")
    elif compaction.epoch not in _chain(line):
        parts.append("undone")
    return f"{out.glyphs.cut} " + ", ".join(parts)


def _chain(line: LineageEntry) -> set[int]:
    """Return the epochs of the current compaction and those it builds on."""
    bases = {compaction.epoch: compaction.base_epoch for compaction in line.compactions}
    chain, epoch = set[int](), line.conversation.compaction_epoch
    while epoch is not None and epoch not in chain:
        chain.add(epoch)
        epoch = bases.get(epoch)
    return chain
