"""Where a conversation stands, for somebody who comes back to it: its last exchanges, shortened. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from holdfast import content_parts, errors, events, safe_text, types
from holdfast.compaction import speaker
from holdfast.terminal import event_text, reply_stream

EXCHANGES = 3
STRETCH = 60
LINES = 6
PROMPT = "> "
UNFINISHED = "Not finished: no answer to this is stored."
AGAIN = "/retry asks again."
NEW = "A new conversation: it begins with your first message."


def unread(error: errors.HoldfastError) -> tuple[str, events.Level]:
    """What to say of a conversation that cannot be read, and how much it matters: most have not begun yet."""
    new = isinstance(error, errors.NoSuchSession) and not isinstance(error, errors.ConversationDeleted)
    return (NEW, "info") if new else (str(error), "error")


def drawn(
    messages: Sequence[types.Message],
    page: event_text.Page,
    hides: Sequence[types.Hide] = (),
    *,
    under_way: bool = False,
) -> list[event_text.Piece]:
    """The last exchanges among these messages: what was asked and what was answered, without the work between.

    What was taken back is left out: nobody goes on from there. Where an answer is missing, that is said; the last one
    may be `under_way`.
    """
    hidden = [(each.from_seq, each.to_seq) for each in hides if each.shown_epoch is None]
    there = [each for each in messages if not any(low <= each.seq <= high for low, high in hidden)]
    missing = _missing(there, under_way)
    said: list[tuple[str, str]] = []
    for each in there:
        said += [(_voice(each), words)] if (words := _words(each)) else []
        said += [("nobody", missing[each.seq])] if each.seq in missing else []
    asked = [place for place, (role, _) in enumerate(said) if role == "user"]
    begin = asked[-EXCHANGES] if len(asked) >= EXCHANGES else 0
    pieces = [piece for role, words in said[begin:] for piece in _one(role, words, page)]
    return [*pieces, event_text.Piece("\n")] if said and said[-1][0] in ("user", "program") else pieces


def covered(
    compactions: Sequence[types.Compaction], epoch: int | None, page: event_text.Page
) -> list[event_text.Piece]:
    """The mark of the compaction a conversation stands on, and how to open it; nothing where there is none."""
    for each in compactions:
        if each.epoch == epoch:
            told = f"A summary stands for the messages up to {each.cut_seq}. /recall 1-{each.cut_seq} opens them."
            return page.prose(told, "dim")
    return []


def _one(role: str, words: str, page: event_text.Page) -> list[event_text.Piece]:
    match role:
        case "program":
            return page.notice(words)
        case "nobody":
            return [*page.prose(words, "yellow"), event_text.Piece("\n")]
        case "assistant":
            return [*_answer(words, page), event_text.Piece("\n")]
        case _:
            return page.lines(_shortened(words, PROMPT, page), "bold")


def _missing(there: Sequence[types.Message], under_way: bool) -> dict[int, str]:
    """Behind which messages an answer is missing, and what is said of that."""
    begun = [place for place, each in enumerate(there) if _begins(each)]
    found: dict[int, str] = {}
    for start, stop in pairwise([*begun, len(there)]):
        came = [each for each in there[start + 1 : stop] if _voice(each) != "program"]
        if stop < len(there):
            # A person may have gone on from work that was broken off, and has then seen it.
            if not any(each.role == "assistant" for each in came):
                found[there[stop - 1].seq] = UNFINISHED
        elif not under_way and not (came and _ends(came[-1])):
            found[there[-1].seq] = f"{UNFINISHED} {AGAIN}"
    return found


def _begins(message: types.Message) -> bool:
    try:
        return message.role == "user" and speaker.begins(message)
    except errors.StoreCorrupt:
        return False


def _ends(message: types.Message) -> bool:
    """Whether a turn ends with it: not where a tool was still to be called, or its result to be answered."""
    try:
        return message.role == "assistant" and not message.tool_calls
    except errors.StoreCorrupt:
        return True


def _voice(message: types.Message) -> str:
    """Who says it: a notice stands in a person's place and is not theirs."""
    try:
        return "program" if message.role == "user" and content_parts.notice_kind(message.content) else message.role
    except errors.StoreCorrupt:
        return message.role


def _words(message: types.Message) -> str:
    """What people said to each other in a message; calls, results and damaged messages are not that."""
    if message.role not in ("user", "assistant") or message.redacted:
        return ""
    try:
        return content_parts.text(message.content).strip()
    except errors.StoreCorrupt:
        return ""


def _answer(words: str, page: event_text.Page) -> list[event_text.Piece]:
    """The beginning of an answer, as it looked when it came."""
    if not page.draws:
        return page.lines(_shortened(words, "", page))
    drawing, head = reply_stream.Reply(page.width, page.marks), words[: 2 * LINES * max(page.width(), 1)]
    rows = (drawing.add(head) + drawing.end()).rstrip("\n").split("\n")
    if len(rows) > LINES or len(head) < len(words):
        rows = [*rows[: LINES - 1], page.marks.more]
    return [*page.break_off(), event_text.Piece("\n".join(rows)), event_text.Piece("\n")]


def _shortened(words: str, before: str, page: event_text.Page) -> str:
    """As many rows of the terminal as a message may take here."""
    room = max(page.width() - len(before), 1)
    rows = [row for line in safe_text.safe_lines(words) for row in safe_text.wrapped(line, room)]
    if len(rows) > LINES:
        rows = [*rows[: LINES - 1], page.marks.more]
    return "\n".join((before if number == 0 else " " * len(before)) + row for number, row in enumerate(rows))
