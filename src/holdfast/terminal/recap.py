"""The last exchanges of a conversation, shortened, for a person who returns to it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast import content_parts, errors, events, safe_text, types
from holdfast.terminal import event_text, markdown

EXCHANGES = 3
MAX_MESSAGES = 60
"""The number of messages that callers read for a recap."""
MAX_LINES = 6
PROMPT = "> "
UNFINISHED = "Unfinished: no reply to this is stored. Use /retry to ask again."
NEW = "A new conversation: it is created with your first message."


def describe_unreadable(error: errors.HoldfastError) -> tuple[str, events.Level]:
    """Return the sentence for a conversation that cannot be read, usually because it does not exist yet."""
    new = isinstance(error, errors.NoSuchSession) and not isinstance(error, errors.ConversationDeleted)
    return (NEW, "info") if new else (str(error), "error")


def draw_recap(
    messages: Sequence[types.Message],
    renderer: event_text.EventRenderer,
    hides: Sequence[types.Hide] = (),
    *,
    running: bool = False,
    exchanges: int = EXCHANGES,
) -> list[event_text.StyledText]:
    """Draw the last exchanges: messages and replies, without tool calls and without hidden turns.

    A missing last reply is reported, unless a turn is `running`.
    """
    hidden = [(each.from_seq, each.to_seq) for each in hides if each.shown_epoch is None]
    visible = [each for each in messages if not any(low <= each.seq <= high for low, high in hidden)]
    parts = [(_speaker(each), text) for each in visible if (text := _text(each))]
    if not running and lacks_reply(visible):
        parts.append(("missing", UNFINISHED))
    asked = [place for place, (role, _) in enumerate(parts) if role == "user"]
    begin = asked[-exchanges] if len(asked) >= exchanges else 0
    pieces = [piece for role, text in parts[begin:] for piece in _draw_part(role, text, renderer)]
    return [*pieces, event_text.StyledText("\n")] if parts and parts[-1][0] in ("user", "program") else pieces


def draw_summary_note(
    compactions: Sequence[types.Compaction], epoch: int | None, renderer: event_text.EventRenderer
) -> list[event_text.StyledText]:
    """Say which messages the summary of this epoch replaces; nothing if there is none."""
    for each in compactions:
        if each.epoch == epoch:
            text = f"A summary replaces the messages up to {each.cut_seq}. Use /recall 1-{each.cut_seq} to read them."
            return renderer.prose(text, "dim")
    return []


def _draw_part(role: str, text: str, renderer: event_text.EventRenderer) -> list[event_text.StyledText]:
    match role:
        case "program":
            return renderer.notice(text)
        case "missing":
            return [*renderer.prose(text, "yellow"), event_text.StyledText("\n")]
        case "assistant":
            return [*_draw_reply(text, renderer), event_text.StyledText("\n")]
        case _:
            return renderer.lines(_shorten(text, PROMPT, renderer), "bold")


def lacks_reply(messages: Sequence[types.Message]) -> bool:
    """Return whether the last message is neither a reply without tool calls nor the notice of a program."""
    if not messages or _speaker(messages[-1]) == "program":
        return False
    try:
        return messages[-1].role != "assistant" or bool(messages[-1].tool_calls)
    except errors.StoreCorrupt:
        return False


def _speaker(message: types.Message) -> str:
    """Return the role; "program" for a notice, which is stored as a user message."""
    try:
        return "program" if message.role == "user" and content_parts.notice_kind(message.content) else message.role
    except errors.StoreCorrupt:
        return message.role


def _text(message: types.Message) -> str:
    """Return the text of a message or reply; empty for tool results, redacted and damaged messages."""
    if message.role not in ("user", "assistant") or message.redacted:
        return ""
    try:
        return content_parts.text(message.content).strip()
    except errors.StoreCorrupt:
        return ""


def _draw_reply(text: str, renderer: event_text.EventRenderer) -> list[event_text.StyledText]:
    """Draw the beginning of a reply as it looked when it came."""
    if not renderer.draws_markdown:
        return renderer.lines(_shorten(text, "", renderer))
    stream = markdown.MarkdownStream(renderer.width, renderer.marks)
    head = text[: 2 * MAX_LINES * max(renderer.width(), 1)]
    rows = (stream.add(head) + stream.end()).rstrip("\n").split("\n")
    if len(rows) > MAX_LINES or len(head) < len(text):
        rows = [*rows[: MAX_LINES - 1], renderer.marks.more]
    return [*renderer.end_line(), event_text.StyledText("\n".join(rows)), event_text.StyledText("\n")]


def _shorten(text: str, before: str, renderer: event_text.EventRenderer) -> str:
    """Return as many rows as a message may take in a recap."""
    room = max(renderer.width() - len(before), 1)
    rows = [row for line in safe_text.safe_lines(text) for row in safe_text.wrap(line, room)]
    if len(rows) > MAX_LINES:
        rows = [*rows[: MAX_LINES - 1], renderer.marks.more]
    return "\n".join((before if number == 0 else " " * len(before)) + row for number, row in enumerate(rows))
