"""Entries as rows of a given width. Pure: an entry, a width and an ink in, rows out.

Markdown is drawn as in the chat. What is long, and what tools did, is folded: a row tells what is there, and it opens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
from rich import ansi
from rich.console import Console
from rich.style import Style
from rich.text import Span, Text

from holdfast import safe_text, time_format
from holdfast.terminal import event_text, markdown, text_wrap
from holdfast.tui import entries

WIDEST = 110
"""Lines longer than this are hard to read, however wide the terminal is."""
FOLDED = {"said": 40, "waiting": 40, "answered": 400}
"""More rows than this are folded. What people paste they know; an answer they want to read."""
SHOWN = 20
"""So many rows of what is folded are shown."""
MOST = 5_000
"""So many rows are shown of anything."""
LONGEST, SKIMMED, STYLED = 200_000, 20_000, 20_000
"""So many characters are looked at of anything; of what was said before it is opened; and of Markdown as such, which
takes far longer than plain text."""
REST = "(There is more than can be shown here: `holdfast sessions show` has all.)"
MARGIN = 3
LINE = 1_000
"""Longer than any row."""
TALK = ("said", "waiting", "answered", "thought", "told")

_console = Console(width=WIDEST, color_system=None, _environ={})


class Ink(NamedTuple):
    """How things look, as the theme says."""

    person: Style = Style(bold=True)
    person_paper: Style = Style()
    model: Style = Style(bold=True)
    aside: Style = Style(dim=True)
    good: Style = Style(color="green")
    warning: Style = Style(color="yellow")
    error: Style = Style(color="red")
    mark: Style = Style(bold=True)


class Row(NamedTuple):
    """One row of the screen."""

    text: Text
    key: entries.Key | None = None
    """The entry that a click on it opens."""
    paper: Style | None = None


class Pen(msgspec.Struct, frozen=True):
    """What rows are drawn with."""

    width: int
    ink: Ink = Ink()
    marks: event_text.Marks = event_text.Marks()

    @property
    def room(self) -> int:
        """The columns that text has between its margins."""
        return max(min(self.width, WIDEST) - 2 * MARGIN, 8)


def drawn(entry: entries.Entry, pen: Pen, opened: bool = False) -> list[Row]:
    """The rows of an entry, with an empty one behind it."""
    if len(entry.text) > LONGEST and (opened or entry.kind not in FOLDED):
        entry = msgspec.structs.replace(entry, text=f"{entry.text[:LONGEST]}\n\n{REST}")
    if entry.kind == "tool":
        return _tool(entry, pen, opened)
    rows = _talk(entry, pen, opened) if entry.kind in TALK else _beside(entry, pen)
    if entry.taken_back:
        rows = [row._replace(text=_faded(row.text, pen)) for row in rows]
    return [*rows, Row(Text())]


def _talk(entry: entries.Entry, pen: Pen, opened: bool) -> list[Row]:
    match entry.kind:
        case "answered":
            return _answered(entry, pen, opened)
        case "thought":
            return _thought(entry, pen, opened)
        case "told":
            return _told(entry, pen, opened)
        case _:
            return _said(entry, pen, opened)


def _beside(entry: entries.Entry, pen: Pen) -> list[Row]:
    """What is no message."""
    match entry.kind:
        case "mark":
            return _mark(entry, pen)
        case "summary":
            return [_row(line) for line in _cut(draw_markdown(entry.text, pen))]
        case "answer":
            lines = text_wrap.laid_out(safe_text.safe_lines(entry.text), pen.room)
            return [_row(line) for line in _cut(_wrapped(lines, pen.room))]
        case _:
            style = {"info": pen.ink.aside, "warning": pen.ink.warning, "error": pen.ink.error}[entry.level]
            return [_row(_inked(line, style)) for line in _cut(_wrapped(safe_text.safe_lines(entry.text), pen.room))]


def _said(entry: entries.Entry, pen: Pen, opened: bool) -> list[Row]:
    when = "waits for its turn" if entry.kind == "waiting" else time_format.when(entry.at) if entry.at else ""
    if entry.taken_back:
        when = f"{when} {pen.marks.dot} taken back"
    bar = (" ▌ " if pen.marks != event_text.PLAIN else " > ", pen.ink.person)
    when = safe_text.clipped(when, max(pen.room - len("You  "), 0), pen.marks.more)
    head = Text.assemble(("You", pen.ink.person), (f"  {when}", pen.ink.aside))
    body = [Text(line) for line in plain(_looked_at(entry, opened), pen)]
    shown, more = _folded(entry, body, pen, opened)
    key = entry.key if more else None
    return [Row(Text.assemble(bar, line), key, pen.ink.person_paper) for line in [head, *shown, *more]]


def _answered(entry: entries.Entry, pen: Pen, opened: bool) -> list[Row]:
    body = draw_markdown(_looked_at(entry, opened), pen)
    shown, more = _folded(entry, body, pen, opened)
    taken = f" {pen.marks.dot} taken back" if entry.taken_back else ""
    rows = answered(f"{entry.name}{taken}", [*shown, *more], pen)[:-1]
    return [row._replace(key=entry.key) for row in rows] if more else rows


def answered(model: str, lines: Sequence[Text], pen: Pen) -> list[Row]:
    """What the model said, under its name."""
    by = safe_text.clipped(safe_text.safe(model), max(pen.room - len("Holdfast  "), 0), pen.marks.more)
    head = Text.assemble(("Holdfast", pen.ink.model), (f"  {by}", pen.ink.aside))
    return [_row(head), *map(_row, lines), Row(Text())]


def spaced(above: Sequence[Row], entry: entries.Entry, pen: Pen, opened: bool) -> list[Row]:
    """The rows of an entry below others: calls stand close together, and apart from the rest."""
    return [*apart(above, entry), *drawn(entry, pen, opened)]


def apart(above: Sequence[Row], entry: entries.Entry) -> list[Row]:
    """What stands between an entry and the rows above it."""
    return [Row(Text())] if entry.kind != "tool" and above and above[-1].text.plain.strip() else []


def plain(words: str, pen: Pen) -> list[str]:
    """Words as they stand, as wide as there is room."""
    return _wrapped(safe_text.safe_lines(words), pen.room)


def _thought(entry: entries.Entry, pen: Pen, opened: bool) -> list[Row]:
    if not opened:
        first = safe_text.safe(entry.text.lstrip()[:LINE].partition("\n")[0])
        line = safe_text.clipped(f"{_arrow(pen, False)} thought: {first}", pen.room, pen.marks.more)
        return [_row(Text(line, pen.ink.aside), entry.key)]
    lines = [Text(line, pen.ink.aside) for line in _wrapped(safe_text.safe_lines(entry.text.strip()), pen.room)]
    head = Text(f"{_arrow(pen, True)} thought", pen.ink.aside)
    return [_row(line, entry.key) for line in [head, *_cut(lines)]]


def _tool(entry: entries.Entry, pen: Pen, opened: bool) -> list[Row]:
    """A row; opened, with all it was called with and all that came of it."""
    name, _, given = safe_text.safe(entry.name).partition(" ")
    sign, style = {
        True: (pen.marks.done, pen.ink.good),
        False: (pen.marks.failed, pen.ink.error),
        None: (pen.marks.more, pen.ink.warning),
    }[entry.ok]
    first = safe_text.safe(entry.text.lstrip()[:LINE].partition("\n")[0])
    name = safe_text.clipped(name, max(pen.room - 10, 1), pen.marks.more)
    room = max(pen.room - safe_text.cells(f"{_arrow(pen, opened)} {sign} {name}") - 1, 0)
    call = safe_text.clipped(given, max(room * 3 // 5, 0), pen.marks.more) if first else safe_text.clipped(given, room)
    came = "" if opened else safe_text.clipped(first, max(room - safe_text.cells(call) - 2, 0), pen.marks.more)
    head = Text.assemble(
        (f"{_arrow(pen, opened)} ", pen.ink.aside), (f"{sign} ", style), (name, "bold"), (f" {call}", pen.ink.aside)
    )
    head.append(f"  {came}", pen.ink.error if entry.ok is False else pen.ink.aside)
    if not opened:
        return [_row(head, entry.key)]
    called = [Text(line, pen.ink.aside) for line in _wrapped([given], pen.room - 4)] if given else []
    output = [Text(line) for line in _wrapped(safe_text.safe_lines(entry.text.rstrip()), pen.room - 4)]
    bar = ("  │ " if pen.marks != event_text.PLAIN else "  | ", pen.ink.aside)
    body = _cut([*called, *output])
    return [_row(head, entry.key), *(_row(Text.assemble(bar, line), entry.key) for line in body)]


def _told(entry: entries.Entry, pen: Pen, opened: bool) -> list[Row]:
    """What a program told the agent: its first line, which says what it is."""
    lines = safe_text.safe_lines(entry.text.strip())
    if not opened:
        first = safe_text.clipped(f"{pen.marks.dot} {lines[0]}", pen.room, pen.marks.more)
        return [_row(Text(first, pen.ink.aside), entry.key if len(lines) > 1 else None)]
    return [_row(_inked(line, pen.ink.aside), entry.key) for line in _cut(_wrapped(lines, pen.room))]


def _mark(entry: entries.Entry, pen: Pen) -> list[Row]:
    """A line through the transcript, with what it means in its middle."""
    line = "-" if pen.marks == event_text.PLAIN else "─"
    words = f" {entry.text} {pen.marks.dot} Enter opens both "
    if safe_text.cells(words) > pen.room - 4:
        told = entry.text.replace("a summary stands for ", "")
        words = f" {safe_text.clipped(told, max(pen.room - 6, 1), pen.marks.more)} "
    left = max((pen.room - safe_text.cells(words)) // 2, 1)
    right = max(pen.room - safe_text.cells(words) - left, 1)
    style = pen.ink.aside if entry.taken_back else pen.ink.mark
    return [_row(Text.assemble((line * left, pen.ink.aside), (words, style), (line * right, pen.ink.aside)), entry.key)]


# --- pieces --------------------------------------------------------------------------------------------


def _row(line: Text, key: entries.Key | None = None) -> Row:
    return Row(Text.assemble(" " * MARGIN, line), key)


def _arrow(pen: Pen, opened: bool) -> str:
    if pen.marks == event_text.PLAIN:
        return "v" if opened else ">"
    return "▾" if opened else "▸"


def _looked_at(entry: entries.Entry, opened: bool) -> str:
    """As much of it as may be shown: what is folded however it is broken into rows is not drawn further than that."""
    return entry.text if opened or len(entry.text) <= SKIMMED else entry.text[: SHOWN * 2 * WIDEST]


def _faded(line: Text, pen: Pen) -> Text:
    return Text(line.plain, pen.ink.aside)


def _folded(entry: entries.Entry, lines: Sequence[Text], pen: Pen, opened: bool) -> tuple[Sequence[Text], list[Text]]:
    """As much as is shown, and the row that opens the rest, if there is one."""
    size = len(entry.text)
    if len(lines) <= FOLDED[entry.kind] and size <= SKIMMED:
        return lines, []
    if opened:
        return _cut(lines), [Text(f"{_arrow(pen, True)} less", pen.ink.aside)]
    left = safe_text.count(len(lines) - SHOWN, "more row") if size <= SKIMMED else f"all {size:,} characters"
    return lines[:SHOWN], [Text(f"{_arrow(pen, False)} {left}", pen.ink.aside)]


def _inked(line: Text, style: Style) -> Text:
    return Text(line.plain, style)


def _cut(lines: Sequence[Text] | Sequence[str]) -> list[Text]:
    made = [line if isinstance(line, Text) else Text(line) for line in lines[:MOST]]
    return made if len(lines) <= MOST else [*made, Text(REST)]


def _wrapped(lines: Sequence[str], room: int) -> list[str]:
    return [row for line in lines for row in safe_text.wrapped(line, max(room, 1))]


def draw_markdown(words: str, pen: Pen) -> list[Text]:
    """Markdown as rows, none of them wider than there is room; the rest of what is very long, as it stands."""
    drawing = markdown.MarkdownStream(lambda: pen.room, pen.marks)
    styled = words if len(words) <= STYLED else words[:STYLED].rpartition("\n")[0] or words[:STYLED]
    rest = words[len(styled) :].removeprefix("\n")
    made = rows(drawing.add(styled) + drawing.end(), pen.room)
    return [*made, *map(Text, plain(rest, pen))] if rest else made


def rows(codes: str, room: int) -> list[Text]:
    """Text with its codes as rows; code that is wider than the screen goes on in the next."""
    lines = ansi.AnsiDecoder().decode(codes.removesuffix("\n")) if codes else ()
    return [row for line in lines for row in _fitting(_on_any_paper(line), room)]


def _on_any_paper(line: Text) -> Text:
    """A terminal's own colours are not the theme's: what has no colour has the theme's, and no paper of its own."""
    for place, (start, end, style) in enumerate(line.spans):
        if isinstance(style, Style) and style.bgcolor is not None:
            colour = None if style.color is None or style.color.is_default else style.color
            bare = Style(color=colour, bold=style.bold, dim=style.dim, italic=style.italic, underline=style.underline)
            line.spans[place] = Span(start, end, bare)
    return line


def _fitting(line: Text, room: int) -> Iterator[Text]:
    if line.cell_len <= room:
        yield line
    else:
        yield from line.wrap(_console, room, overflow="fold")
