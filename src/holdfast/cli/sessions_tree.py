"""`holdfast sessions tree`: how sessions, compactions and branches hang together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import click

from holdfast import errors, safe_text, types
from holdfast.app import open_store
from holdfast.cli import console, json_output, layout, lazy_group, sessions
from holdfast.store import db as store
from holdfast.store.driver import hide_password


class Lineage(NamedTuple):
    """One conversation with all that hangs on it."""

    conversation: types.Conversation
    sessions: list[types.Session]
    compactions: list[types.Compaction]
    branches: list[str]


@click.command(name="tree")
@click.argument("conversation", metavar="[ID]", required=False, shell_complete=lazy_group.conversations)
@lazy_group.database
@lazy_group.as_json
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=20, show_default=True, help="At most this many trees."
)
@click.pass_obj
def command(out: console.Console, conversation: str | None, path: str | None, as_json: bool, limit: int) -> None:
    """Draw the lineage of a conversation (id, beginning of one, title or `last`), or of all of them."""
    target = path or out.settings.database
    with open_store.open_existing(target) as db:
        roots, more = ([root(db, sessions.find(db, conversation).id)], False) if conversation else _roots(db, limit)
        found = gather(db, roots)
    if as_json:
        shapes = [_shape(line) for line in found.values()]
        out.json({"database": hide_password(target), "roots": roots, "conversations": shapes})
        return
    for number, key in enumerate(roots):
        if number:
            out.print()
        for line in layout.tree(_conversation(out, found, key), out.glyphs):
            out.print(layout.drawn(out, line, out.width))
    if not roots:
        out.note(f"No conversations in {hide_password(target)} yet.")
    if more:
        out.note(f"These are the {limit} most recent; see more with --limit.")


# --- gathering ---------------------------------------------------------------------------------------


def root(db: store.SessionDB, session_id: str) -> str:
    """The conversation at the bottom of this one's origins; a deleted origin ends the way down."""
    here, seen = db.conversation(session_id), set[str]()
    # Seen before: only in a damaged store.
    while here.forked_from is not None and here.id not in seen:
        seen.add(here.id)
        try:
            here = db.conversation(here.forked_from)
        except errors.NoSuchSession:
            break
    return here.id


def _roots(db: store.SessionDB, limit: int) -> tuple[list[str], bool]:
    """The most recently active conversations, each by the root of its tree, and whether there are more."""
    found: dict[str, None] = {}
    skip = 0
    while len(found) <= limit and (heads := db.list_sessions(limit=100, skip=skip)):
        found.update(dict.fromkeys(root(db, head.id) for head in heads))
        skip += len(heads)
    return list(found)[:limit], len(found) > limit


def gather(db: store.SessionDB, roots: Iterable[str]) -> dict[str, Lineage]:
    """Every conversation of these trees, by id."""
    found: dict[str, Lineage] = {}
    waiting = list(roots)
    while waiting:
        key = waiting.pop(0)
        if key not in found:
            found[key] = Lineage(db.conversation(key), db.sessions(key), db.compactions(key), db.branches(key))
            waiting += found[key].branches
    return found


def _shape(line: Lineage) -> dict[str, Any]:
    opened = {compaction.session_id: json_output.compaction(compaction) for compaction in line.compactions}
    return {
        **json_output.conversation(line.conversation),
        "sessions": [
            {**json_output.session(session), "compaction": opened.get(session.id)} for session in line.sessions
        ],
        "branches": line.branches,
    }


# --- drawing -----------------------------------------------------------------------------------------


def _conversation(out: console.Console, found: dict[str, Lineage], key: str) -> layout.Node:
    """The tree of one conversation. Branches are drawn before what they hang on, so nothing recurses."""
    order = [key]
    for name in order:
        order += [branch for branch in found[name].branches if branch in found and branch not in order]
    drawn: dict[str, layout.Node] = {}
    for name in reversed(order):
        line = found[name]
        drawn[name] = layout.Node(_heading(out, line), _sessions(out, line, found, drawn), ("bold",))
    return drawn[key]


def _sessions(
    out: console.Console, line: Lineage, found: dict[str, Lineage], drawn: dict[str, layout.Node]
) -> list[layout.Node]:
    """The sessions of a conversation, each compaction before the session it opened, branches below."""
    opened = {compaction.session_id: compaction for compaction in line.compactions}
    nodes = []
    for session in line.sessions:
        if session.id in opened:
            nodes.append(layout.Node(_compaction(out, line, opened[session.id]), style=("yellow",)))
        below = [drawn[key] for key in line.branches if key in drawn and _came_from(found[key]) == session.id]
        head = session.id == line.conversation.head_id
        nodes.append(layout.Node(_session(out, session, head), below, ("green",) if session.live else ()))
    return nodes


def _came_from(line: Lineage) -> str | None:
    return line.conversation.forked_from


def _heading(out: console.Console, line: Lineage) -> str:
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
    state = "live" if session.ended_at is None else f"ended {safe_text.when(session.ended_at)}: {session.end_reason}"
    line = f"{mark} {session.id}  {out.span(session.first_seq, session.last_seq)}  {state}"
    return safe_text.safe(line + "  <- head" if head else line)


def _compaction(out: console.Console, line: Lineage, compaction: types.Compaction) -> str:
    kept = out.span(compaction.cut_seq + 1, _opened_at(line, compaction) - 1)
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


def _opened_at(line: Lineage, compaction: types.Compaction) -> int:
    return next(session.first_seq for session in line.sessions if session.id == compaction.session_id)


def _chain(line: Lineage) -> set[int]:
    """The compactions the one in force stands on, and itself."""
    bases = {compaction.epoch: compaction.base_epoch for compaction in line.compactions}
    chain, epoch = set[int](), line.conversation.compaction_epoch
    while epoch is not None and epoch not in chain:
        chain.add(epoch)
        epoch = bases.get(epoch)
    return chain
