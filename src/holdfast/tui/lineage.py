"""How the sessions, compactions and branches of one conversation hang together, as rows. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.text import Text

from holdfast import safe_text, types
from holdfast.terminal import event_text
from holdfast.tui import entry_rows


class Lineage(msgspec.Struct, frozen=True):
    """One conversation with all that hangs on it."""

    conversation: types.Conversation
    sessions: Sequence[types.Session]
    compactions: Sequence[types.Compaction]
    branches: Sequence[str]
    """What the branches are called."""


def drawn(line: Lineage, pen: entry_rows.Pen) -> list[Text]:
    here, opened = line.conversation, {each.session_id: each for each in line.compactions}
    plain = pen.marks == event_text.PLAIN
    rows = [Text(safe_text.safe(here.title or "(no title)"), "bold"), Text(safe_text.safe(here.id), "dim")]
    if here.forked_from is not None:
        rows.append(Text(f"a branch of {safe_text.safe(here.forked_from)} from message {here.forked_at:,}", "dim"))
    below = len(line.sessions) + len(line.branches)
    for number, session in enumerate(line.sessions, 1):
        if session.id in opened:
            rows.append(Text(f"{_stems(False, plain)[0]}{_compaction(opened[session.id], here)}", pen.ink.mark))
        live = session.id == here.head_id
        mark = ("* " if live else "o ") if plain else ("● " if live else "○ ")
        span = f"{session.first_seq:,}{'-' if plain else '–'}{session.last_seq:,}" if session.message_count else "empty"
        state = ("head" if session.live else f"ended: {session.end_reason}") if live else (session.end_reason or "")
        rows.append(
            Text(
                f"{_stems(number == below, plain)[1]}{mark}{span}  {safe_text.safe(state)}",
                pen.ink.good if live else "",
            )
        )
    for number, branch in enumerate(line.branches, len(line.sessions) + 1):
        rows.append(Text(f"{_stems(number == below, plain)[1]}branch: {safe_text.safe(branch)}", pen.ink.person))
    for row in rows:
        row.truncate(max(pen.width, 1), overflow="ellipsis")
    return rows


def _stems(last: bool, plain: bool) -> tuple[str, str]:
    """What a row beside the others begins with, and one that hangs on them."""
    if plain:
        return "|  ", "`- " if last else "|- "
    return "│  ", "└─ " if last else "├─ "


def _compaction(compaction: types.Compaction, here: types.Conversation) -> str:
    state = " (in force)" if compaction.epoch == here.compaction_epoch else ""
    return f"compacted up to {compaction.cut_seq:,}{state}"
