"""A conversation as a page for people: Markdown, or one HTML file that needs nothing else. Pure.

What was said is data: it is escaped wherever it stands, so that no text of a message becomes a heading,
a link, a script or a picture from elsewhere. Characters that cannot be seen are spelled out.
"""

from __future__ import annotations

import datetime
import html
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from holdfast import errors, types

Form = Literal["markdown", "html"]
FORMS: tuple[Form, ...] = ("markdown", "html")


class Story(NamedTuple):
    """All there is to tell: a branch with the sessions, compactions and messages it shares."""

    conversation: types.Conversation
    sessions: Sequence[types.Session]
    compactions: Mapping[str, types.Compaction]
    hidden: Sequence[tuple[int, int]]
    current: types.Compaction | None
    messages: Iterable[types.Message]
    blob: Callable[[str], types.Blob | None] = lambda _: None


def opening(title: str, form: Form) -> str:
    """What stands before the first conversation of a page."""
    return _Html.opening(title) if form == "html" else ""


def closing(form: Form) -> str:
    return _Html.closing if form == "html" else ""


def render(story: Story, form: Form) -> Iterator[str]:
    """One conversation in pieces, so that a long one is never held whole."""
    page = _Html() if form == "html" else _Markdown()
    yield page.heading(story.conversation, _facts(story.conversation))
    for beat in _beats(story):
        match beat:
            case Said():
                yield page.said(beat)
            case Cut():
                yield page.cut(beat)
            case Turn():
                yield page.turn(beat.text)


# --- what there is to tell, in order -----------------------------------------------------------------


class Said(NamedTuple):
    """A message, and what the context has of it."""

    heading: str
    role: str
    state: str
    texts: list[str]
    folds: list[tuple[str, str]]


class Cut(NamedTuple):
    """A compaction."""

    heading: str
    summary: str


class Turn(NamedTuple):
    """A session ended and another went on, or a branch began."""

    text: str


def _beats(story: Story) -> Iterator[Said | Cut | Turn]:
    place = {session.id: number for number, session in enumerate(story.sessions)}
    at = 0
    for message in story.messages:
        upto = place.get(message.session_id, at)
        yield from _turns(story, at, upto)
        at = max(at, upto)
        yield _said(story, message)
    yield from _turns(story, at, len(story.sessions) - 1)


def _turns(story: Story, at: int, upto: int) -> Iterator[Cut | Turn]:
    for ended, begun in zip(story.sessions[at:upto], story.sessions[at + 1 : upto + 1], strict=True):
        if begun.conversation_id != ended.conversation_id:
            yield Turn(f"Here the branch {begun.conversation_id} begins.")
        else:
            yield Turn(f"Session {ended.id} ended ({ended.end_reason}); {begun.id} goes on.")
        made = story.compactions.get(begun.id)
        if made is not None:
            in_force = story.current is not None and story.current.session_id == made.session_id
            heading = f"Compaction{'' if in_force else ' (not in force)'}: in the context, this summary stands for the "
            yield Cut(f"{heading}messages up to {made.cut_seq}.", made.summary or "(empty)")


def _said(story: Story, message: types.Message) -> Said:
    try:
        texts, folds = _content(story, message), [*_results(story, message), *_calls(message)]
    except (errors.StoreCorrupt, msgspec.MsgspecError):
        texts, folds = ["(This message cannot be read back. Run `holdfast doctor`.)"], []
    return Said(
        f"{message.seq} · {message.role} · {when(message.at)}", message.role, _state(story, message), texts, folds
    )


def _state(story: Story, message: types.Message) -> str:
    if message.redacted:
        return "redacted"
    if any(low <= message.seq <= high for low, high in story.hidden):
        return "hidden"
    if story.current and message.seq <= story.current.cut_seq:
        return "pinned" if message.seq in story.current.pinned else "in the summary"
    return ""


def _content(story: Story, message: types.Message) -> list[str]:
    if message.role == "tool":
        return []
    return _parts(story, message.content)


def _parts(story: Story, content: types.Content) -> list[str]:
    if isinstance(content, str):
        return [content] if content else []
    return [part_text(part, story.blob) for part in content if part.get("type") != "note"]


def part_text(part: Mapping[str, Any], look: Callable[[str], types.Blob | None]) -> str:
    """A part of a message as text: an attachment by its name, size and kind, so that it can be found."""
    text, digest, kind = part.get("text"), part.get("blob"), part.get("type", "part")
    if isinstance(text, str):
        return text
    if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
        return f"({kind})"
    known = look(digest)
    about = f"{known.media_type}, {known.size:,} bytes" if known else "not known here"
    return f"({kind}: attachment {digest[:12]}, {about})"


def _results(story: Story, message: types.Message) -> list[tuple[str, str]]:
    if message.role != "tool":
        return []
    return [(f"result of {message.tool_call_id or 'a call'}", "\n".join(_parts(story, message.content)))]


def _calls(message: types.Message) -> list[tuple[str, str]]:
    return [(f"calls {call.name or '?'} ({call.id})", _arguments(call.arguments)) for call in message.tool_calls]


def _arguments(arguments: str | dict[str, Any]) -> str:
    if isinstance(arguments, str):
        return arguments
    return msgspec.json.format(msgspec.json.encode(arguments), indent=2).decode()


def _facts(here: types.Conversation) -> list[str]:
    facts = [here.id, f"{here.last_seq:,} message{'' if here.last_seq == 1 else 's'}"]
    facts += ["live" if here.live else "ended", f"from {here.source}", f"begun {when(here.created_at)}"]
    if here.forked_from is not None:
        facts.append(f"branch of {here.forked_from} after message {here.forked_at}")
    return facts


def when(at: float) -> str:
    try:
        return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return f"@{at:.0f}"


# --- text that is safe to show -----------------------------------------------------------------------

# Joiners are part of the spelling of several scripts and of composed emoji, and can do no harm.
_KEPT = "\n\u200c\u200d"


def visible(text: str) -> str:
    """The text with tabs as spaces, and with everything spelled out that cannot be seen."""
    text = text.replace("\r\n", "\n").expandtabs(4)
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character.isprintable() or character in _KEPT:
        return character
    if character.isspace() and ord(character) > 0x9F and character not in "\u2028\u2029":
        return " "
    return character.encode("unicode_escape").decode("ascii")


_MEANT = re.compile(r"[\\`*_\[\]<>&|~$@{}^#]|:(?=[^\s\d])|(?<=www)\.", re.IGNORECASE)
_AT_START = re.compile(r"^(\d*)([+=.)-])")


def escaped(text: str) -> str:
    """Text as Markdown that says just this text: lines stay lines, nothing in it means anything."""
    paragraphs = re.split(r"\n(?:[^\S\n]*\n)+", visible(text).strip("\n"))
    return "\n\n".join("  \n".join(map(_escaped_line, paragraph.split("\n"))) for paragraph in paragraphs)


def _escaped_line(line: str) -> str:
    words = line.strip()
    safe = _MEANT.sub(lambda found: "\\" + found[0], words)
    return "&nbsp;" * (len(line) - len(line.lstrip())) + _AT_START.sub(r"\1\\\2", safe)


def fenced(text: str) -> str:
    """Text as a block of code, whatever fences it has inside."""
    shown = visible(text)
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", shown)), default=0))
    return f"{fence}\n{shown}\n{fence}"


# --- Markdown ----------------------------------------------------------------------------------------


class _Markdown:
    def heading(self, here: types.Conversation, facts: Sequence[str]) -> str:
        return f"\n# {_line(here.title or here.id)}\n\n{_line(' · '.join(facts))}\n"

    def said(self, said: Said) -> str:
        heading = f"\n### {_line(said.heading)}{f' · *{said.state}*' if said.state else ''}\n"
        folds = (
            f"\n<details><summary>{_tag(name)}</summary>\n\n{fenced(text)}\n\n</details>\n" for name, text in said.folds
        )
        return heading + "".join(f"\n{escaped(text)}\n" for text in said.texts) + "".join(folds)

    def cut(self, cut: Cut) -> str:
        quoted = f"**{_line(cut.heading)}**\n\n{escaped(cut.summary)}"
        return "\n" + "".join(f"> {line}\n" for line in quoted.split("\n"))

    def turn(self, text: str) -> str:
        return f"\n---\n\n*{_line(text)}*\n"


def _line(text: str) -> str:
    return escaped(" ".join(text.split()))


def _tag(text: str) -> str:
    return html.escape(" ".join(visible(text).split()))


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
    closing = "</body>\n</html>\n"

    @staticmethod
    def opening(title: str) -> str:
        return (
            '<!DOCTYPE html>\n<html>\n<head>\n<meta charset="utf-8">\n'
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{_tag(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        )

    def heading(self, here: types.Conversation, facts: Sequence[str]) -> str:
        title = _tag(here.title or here.id)
        return f'<h1 dir="auto">{title}</h1>\n<p class="facts">{_tag(" · ".join(facts))}</p>\n'

    def said(self, said: Said) -> str:
        marked = f" <em>{_tag(said.state)}</em>" if said.state else ""
        kinds = f"message {said.role} {said.state if said.state in ('hidden', 'redacted') else ''}".rstrip()
        folds = "".join(
            f'<details><summary>{_tag(name)}</summary><pre dir="auto">{_block(text)}</pre></details>\n'
            for name, text in said.folds
        )
        texts = "".join(f'<div class="said" dir="auto">{_block(text)}</div>\n' for text in said.texts)
        return f'<section class="{kinds}">\n<h2>{_tag(said.heading)}{marked}</h2>\n{texts}{folds}</section>\n'

    def cut(self, cut: Cut) -> str:
        summary = f'<div class="said" dir="auto">{_block(cut.summary)}</div>'
        return f'<section class="cut">\n<h2>{_tag(cut.heading)}</h2>\n{summary}\n</section>\n'

    def turn(self, text: str) -> str:
        return f'<p class="turn">{_tag(text)}</p>\n'


def _block(text: str) -> str:
    return html.escape(visible(text))
