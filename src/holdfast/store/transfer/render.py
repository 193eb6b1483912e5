"""Render a conversation as a page for people: Markdown, or one self-contained HTML file.

All text is escaped, so that no text of a message becomes a heading, a link, a script or an external image. Invisible
characters are written as escape sequences.
"""

from __future__ import annotations

import datetime
import html
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from holdfast import errors, safe_text, types

Form = Literal["markdown", "html"]
FORMS: tuple[Form, ...] = ("markdown", "html")


class ConversationPage(NamedTuple):
    """The content of a page. A branch includes the sessions, compactions and messages that it shares."""

    conversation: types.Conversation
    sessions: Sequence[types.Session]
    compactions: Mapping[str, types.Compaction]
    hidden: Sequence[tuple[int, int]]
    current: types.Compaction | None
    messages: Iterable[types.Message]
    blob: Callable[[str], types.Blob | None] = lambda _: None


def page_header(title: str, form: Form) -> str:
    return _WRITERS[form].header.replace("{title}", _inline_html(title))


def page_footer(form: Form) -> str:
    return _WRITERS[form].footer


def render(page: ConversationPage, form: Form) -> Iterator[str]:
    """Render one conversation piece by piece, so that a long one is never held in memory as a whole."""
    writer = _WRITERS[form]
    yield writer.heading(page.conversation, _facts(page.conversation))
    positions = {session.id: number for number, session in enumerate(page.sessions)}
    at = 0
    for message in page.messages:
        upto = positions.get(message.session_id, at)
        yield from _session_changes(page, writer, at, upto)
        at = max(at, upto)
        yield writer.message(_message_entry(page, message))
    yield from _session_changes(page, writer, at, len(page.sessions) - 1)


class MessageEntry(NamedTuple):
    """A message, and whether the context contains it."""

    heading: str
    role: str
    state: str
    texts: list[str]
    folds: list[tuple[str, str]]


def _session_changes(page: ConversationPage, writer: _Markdown | _Html, at: int, upto: int) -> Iterator[str]:
    for ended, begun in zip(page.sessions[at:upto], page.sessions[at + 1 : upto + 1], strict=True):
        if begun.conversation_id != ended.conversation_id:
            yield writer.note(f"The branch {begun.conversation_id} begins here.")
        else:
            yield writer.note(f"Session {ended.id} ended ({ended.end_reason}) and continues as {begun.id}.")
        made = page.compactions.get(begun.id)
        if made is not None:
            in_force = page.current is not None and page.current.session_id == made.session_id
            state = "" if in_force else " (not in force)"
            heading = f"Compaction{state}: in the context, this summary replaces the messages up to {made.cut_seq}."
            yield writer.compaction(heading, made.summary or "(empty)")


def _message_entry(page: ConversationPage, message: types.Message) -> MessageEntry:
    texts: list[str] = []
    folds: list[tuple[str, str]] = []
    try:
        content = message.content
        if isinstance(content, str):
            texts = [content] if content else []
        else:
            texts = [part_text(part, page.blob) for part in content if part.get("type") != "note"]
        if message.role == "tool":
            texts, folds = [], [(f"result of {message.tool_call_id or 'a call'}", "\n".join(texts))]
        for call in message.tool_calls:
            is_text = isinstance(call.arguments, str)
            arguments = call.arguments if is_text else msgspec.json.format(msgspec.json.encode(call.arguments)).decode()
            folds.append((f"calls {call.name or '?'} ({call.id})", str(arguments)))
    except (errors.StoreCorrupt, msgspec.MsgspecError):
        texts, folds = ["(This message cannot be decoded. Run `holdfast doctor`.)"], []
    heading = f"{message.seq} · {message.role} · {format_time(message.at)}"
    return MessageEntry(heading, message.role, _state(page, message), texts, folds)


def _state(page: ConversationPage, message: types.Message) -> str:
    if message.redacted:
        return "redacted"
    if any(low <= message.seq <= high for low, high in page.hidden):
        return "hidden"
    if page.current and message.seq <= page.current.cut_seq:
        return "pinned" if message.seq in page.current.pinned else "in the summary"
    return ""


def part_text(part: Mapping[str, Any], look: Callable[[str], types.Blob | None]) -> str:
    """Render a part of a message as text: an attachment by digest, type and size."""
    text, digest, kind = part.get("text"), part.get("blob"), part.get("type", "part")
    if isinstance(text, str):
        return text
    if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
        return f"({kind})"
    known = look(digest)
    about = f"{known.media_type}, {known.size:,} bytes" if known else "unknown"
    return f"({kind}: attachment {digest[:12]}, {about})"


def _facts(here: types.Conversation) -> list[str]:
    facts = [here.id, f"{here.last_seq:,} message{'' if here.last_seq == 1 else 's'}"]
    facts += ["live" if here.live else "ended", f"from {here.source}", f"begun {format_time(here.created_at)}"]
    if here.forked_from is not None:
        facts.append(f"branch of {here.forked_from} after message {here.forked_at}")
    return facts


def format_time(at: float) -> str:
    try:
        return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return f"@{at:.0f}"


# --- safe text ---------------------------------------------------------------------------------------


def escape_invisible(text: str) -> str:
    """Expand tabs, and write invisible characters as escape sequences."""
    return "\n".join(safe_text.safe_lines(text))


_SPECIAL = re.compile(r"[\\`*_\[\]<>&|~$@{}^#]|:(?=[^\s\d])|(?<=www)\.", re.IGNORECASE)
_AT_START = re.compile(r"^(\d*)([+=.)-])")


def escape_markdown(text: str) -> str:
    """Escape text for Markdown: lines are kept, and no character has a special meaning."""
    paragraphs = re.split(r"\n(?:[^\S\n]*\n)+", escape_invisible(text).strip("\n"))
    return "\n\n".join("  \n".join(map(_escape_line, paragraph.split("\n"))) for paragraph in paragraphs)


def _escape_line(line: str) -> str:
    words = line.strip()
    safe = _SPECIAL.sub(lambda found: "\\" + found[0], words)
    return "&nbsp;" * (len(line) - len(line.lstrip())) + _AT_START.sub(r"\1\\\2", safe)


def fence(text: str) -> str:
    """Format text as a code block with a fence that is longer than any inside."""
    plain = escape_invisible(text)
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", plain)), default=0))
    return f"{fence}\n{plain}\n{fence}"


# --- Markdown ----------------------------------------------------------------------------------------


class _Markdown:
    header = footer = ""

    def heading(self, here: types.Conversation, facts: Sequence[str]) -> str:
        return f"\n# {_inline_markdown(here.title or here.id)}\n\n{_inline_markdown(' · '.join(facts))}\n"

    def message(self, entry: MessageEntry) -> str:
        heading = f"\n### {_inline_markdown(entry.heading)}{f' · *{entry.state}*' if entry.state else ''}\n"
        folds = (
            f"\n<details><summary>{_inline_html(name)}</summary>\n\n{fence(text)}\n\n</details>\n"
            for name, text in entry.folds
        )
        return heading + "".join(f"\n{escape_markdown(text)}\n" for text in entry.texts) + "".join(folds)

    def compaction(self, heading: str, summary: str) -> str:
        quoted = f"**{_inline_markdown(heading)}**\n\n{escape_markdown(summary)}"
        return "\n" + "".join(f"> {line}\n" for line in quoted.split("\n"))

    def note(self, text: str) -> str:
        return f"\n---\n\n*{_inline_markdown(text)}*\n"


def _inline_markdown(text: str) -> str:
    return escape_markdown(" ".join(text.split()))


def _inline_html(text: str) -> str:
    return html.escape(" ".join(escape_invisible(text).split()))


# --- HTML --------------------------------------------------------------------------------------------

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; }
h2 { font-size: .85rem; font-weight: 600; margin: 0 0 .3rem; opacity: .75; }
.facts, .turn { opacity: .75; font-size: .85rem; }
.message, .cut { border-left: 3px solid #8888; padding: .1rem 0 .1rem .8rem; margin: 1.2rem 0; }
.user { border-color: #3b82f6; } .assistant { border-color: #10b981; } .tool { border-color: #a855f7; }
.cut { border-color: #f59e0b; background: #f59e0b18; }
.hidden, .redacted { opacity: .55; }
.said, pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .3rem 0; }
pre { font: 13px/1.4 ui-monospace, monospace; }
summary { cursor: pointer; font-size: .85rem; }
"""


class _Html:
    header = (
        '<!DOCTYPE html>\n<html>\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{{title}}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
    )
    footer = "</body>\n</html>\n"

    def heading(self, here: types.Conversation, facts: Sequence[str]) -> str:
        title = _inline_html(here.title or here.id)
        return f'<h1 dir="auto">{title}</h1>\n<p class="facts">{_inline_html(" · ".join(facts))}</p>\n'

    def message(self, entry: MessageEntry) -> str:
        marked = f" <em>{_inline_html(entry.state)}</em>" if entry.state else ""
        kinds = f"message {entry.role} {entry.state if entry.state in ('hidden', 'redacted') else ''}".rstrip()
        folds = "".join(
            f'<details><summary>{_inline_html(name)}</summary><pre dir="auto">{_escape_html(text)}</pre></details>\n'
            for name, text in entry.folds
        )
        texts = "".join(f'<div class="said" dir="auto">{_escape_html(text)}</div>\n' for text in entry.texts)
        return f'<section class="{kinds}">\n<h2>{_inline_html(entry.heading)}{marked}</h2>\n{texts}{folds}</section>\n'

    def compaction(self, heading: str, summary: str) -> str:
        text = f'<div class="said" dir="auto">{_escape_html(summary)}</div>'
        return f'<section class="cut">\n<h2>{_inline_html(heading)}</h2>\n{text}\n</section>\n'

    def note(self, text: str) -> str:
        return f'<p class="turn">{_inline_html(text)}</p>\n'


def _escape_html(text: str) -> str:
    return html.escape(escape_invisible(text))


_WRITERS: dict[Form, _Markdown | _Html] = {"markdown": _Markdown(), "html": _Html()}
