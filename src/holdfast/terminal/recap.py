"""Where a conversation stands, for somebody who comes back to it: its last exchanges, shortened. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast import errors, parts, types
from holdfast.terminal import show, text

EXCHANGES = 3
STRETCH = 60
LINES = 6
PROMPT = "> "


def drawn(messages: Sequence[types.Message], page: show.Page, hides: Sequence[types.Hide] = ()) -> list[show.Piece]:
    """The last exchanges among these messages: what was asked and what was answered, without the work between.

    What was taken back is left out: nobody goes on from there.
    """
    hidden = [(each.from_seq, each.to_seq) for each in hides if each.shown_epoch is None]
    there = [each for each in messages if not any(low <= each.seq <= high for low, high in hidden)]
    said = [(_voice(each), words) for each in there if (words := _words(each))]
    asked = [place for place, (role, _) in enumerate(said) if role == "user"]
    begin = asked[-EXCHANGES] if len(asked) >= EXCHANGES else 0
    pieces: list[show.Piece] = []
    for role, words in said[begin:]:
        if role == "program":
            pieces += page.notice(words)
            continue
        pieces += page.lines(_shortened(words, role, page), "bold" if role == "user" else "")
        pieces += [show.Piece("\n")] if role == "assistant" else []
    return [*pieces, show.Piece("\n")] if said and said[-1][0] in ("user", "program") else pieces


def covered(compactions: Sequence[types.Compaction], epoch: int | None, page: show.Page) -> list[show.Piece]:
    """The mark of the compaction a conversation stands on, and how to open it; nothing where there is none."""
    for each in compactions:
        if each.epoch == epoch:
            told = f"A summary stands for the messages up to {each.cut_seq}. /recall 1-{each.cut_seq} opens them."
            return page.prose(told, "dim")
    return []


def _voice(message: types.Message) -> str:
    """Who says it: a notice stands in a person's place and is not theirs."""
    return "program" if message.role == "user" and parts.noticed(message.content) else message.role


def _words(message: types.Message) -> str:
    """What people said to each other in a message; calls, results and damaged messages are not that."""
    if message.role not in ("user", "assistant") or message.redacted:
        return ""
    try:
        return parts.text(message.content).strip()
    except errors.StoreCorrupt:
        return ""


def _shortened(words: str, role: str, page: show.Page) -> str:
    """As many rows of the terminal as a message may take here."""
    before = PROMPT if role == "user" else ""
    room = max(page.width() - len(before), 1)
    rows = [row for line in text.safe_lines(words) for row in text.wrapped(line, room)]
    if len(rows) > LINES:
        rows = [*rows[: LINES - 1], page.marks.more]
    return "\n".join((before if number == 0 else " " * len(before)) + row for number, row in enumerate(rows))
