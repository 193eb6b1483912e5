"""Entries as rows of a given width. Pure.

Markdown is drawn as in the chat. Long texts and tool calls are folded: a row says what they are, and opens them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
from rich import ansi
from rich.console import Console
from rich.style import Style
from rich.text import Span, Text

from holdfast import safe_text
from holdfast.runtime import wording
from holdfast.terminal import event_text, markdown
from holdfast.tui import entries

MAX_WIDTH = 110
"""Longer lines are hard to read, however wide the terminal is."""
MAX_UNFOLDED_ROWS = {"user": 40, "queued": 40, "reply": 400}
"""Entries with more rows are folded. People know what they pasted; a reply they want to read."""
FOLDED_ROWS = 20
"""The rows of a folded entry that are shown."""
MAX_ROWS = 5_000
MAX_CHARACTERS = 200_000
MAX_UNFOLDED_CHARACTERS = 20_000
MAX_MARKDOWN_CHARACTERS = 20_000
"""Markdown takes far longer to draw than plain text."""
MORE = "(The rest is not shown here. `holdfast sessions show` prints all.)"
MARGIN = 3
ROW_CHARACTERS = 1_000
"""Longer than any row."""
MESSAGE_KINDS = ("user", "queued", "reply", "reasoning", "program")

_console = Console(width=MAX_WIDTH, color_system=None, _environ={})


class EntryStyles(NamedTuple):
    """The styles of the theme."""

    user: Style = Style(bold=True)
    user_background: Style = Style()
    model: Style = Style(bold=True)
    dim: Style = Style(dim=True)
    success: Style = Style(color="green")
    warning: Style = Style(color="yellow")
    error: Style = Style(color="red")
    compaction: Style = Style(bold=True)


class Row(NamedTuple):
    """One row of the screen."""

    text: Text
    key: entries.Key | None = None
    """The entry that a click on the row opens."""
    background: Style | None = None


class RowFormat(msgspec.Struct, frozen=True):
    """The width, styles and marks of rows."""

    width: int
    styles: EntryStyles = EntryStyles()
    marks: event_text.Marks = event_text.Marks()

    @property
    def room(self) -> int:
        """The columns between the margins."""
        return max(min(self.width, MAX_WIDTH) - 2 * MARGIN, 8)

    @property
    def is_ascii(self) -> bool:
        """Whether only ASCII marks may be drawn."""
        return self.marks == event_text.PLAIN

    def arrow(self, opened: bool) -> str:
        """Return the sign of an entry that can be opened or closed."""
        if self.is_ascii:
            return "v" if opened else ">"
        return "▾" if opened else "▸"

    def clip(self, text: str, room: int | None = None) -> str:
        return safe_text.clip(text, self.room if room is None else room, self.marks.more)


def draw_entry(entry: entries.Entry, form: RowFormat, opened: bool = False) -> list[Row]:
    """Draw an entry, with an empty row behind it."""
    if len(entry.text) > MAX_CHARACTERS and (opened or entry.kind not in MAX_UNFOLDED_ROWS):
        entry = msgspec.structs.replace(entry, text=f"{entry.text[:MAX_CHARACTERS]}\n\n{MORE}")
    if entry.kind == "tool":
        return _draw_tool(entry, form, opened)
    rows = _draw_message(entry, form, opened) if entry.kind in MESSAGE_KINDS else _draw_notice(entry, form)
    if entry.hidden:
        rows = [row._replace(text=_restyle(row.text, form.styles.dim)) for row in rows]
    return [*rows, Row(Text())]


def draw_below(above: Sequence[Row], entry: entries.Entry, form: RowFormat, opened: bool) -> list[Row]:
    return [*separator(above, entry), *draw_entry(entry, form, opened)]


def separator(above: Sequence[Row], entry: entries.Entry) -> list[Row]:
    """Return the empty row between tool calls, which have none between them, and another entry."""
    return [Row(Text())] if entry.kind != "tool" and above and above[-1].text.plain.strip() else []


def draw_reply(model: str, lines: Sequence[Text], form: RowFormat) -> list[Row]:
    """Draw the lines of a reply under the name of the model."""
    model = form.clip(safe_text.safe(model), max(form.room - len("Holdfast  "), 0))
    heading = Text.assemble(("Holdfast", form.styles.model), (f"  {model}", form.styles.dim))
    return [_row(heading), *map(_row, lines), Row(Text())]


def _draw_message(entry: entries.Entry, form: RowFormat, opened: bool) -> list[Row]:
    match entry.kind:
        case "reply":
            return _draw_stored_reply(entry, form, opened)
        case "reasoning":
            return _draw_reasoning(entry, form, opened)
        case "program":
            return _draw_program(entry, form, opened)
        case _:
            return _draw_user(entry, form, opened)


def _draw_notice(entry: entries.Entry, form: RowFormat) -> list[Row]:
    """Draw an entry that is not a message."""
    match entry.kind:
        case "compaction":
            return _draw_compaction(entry, form)
        case "summary":
            return [_row(line) for line in _limit(draw_markdown(entry.text, form))]
        case "answer":
            lines = safe_text.lay_out(safe_text.safe_lines(entry.text), form.room)
            return [_row(line) for line in _limit(_wrap(lines, form.room))]
        case _:
            styles = {"info": form.styles.dim, "warning": form.styles.warning, "error": form.styles.error}
            lines = _wrap(safe_text.safe_lines(entry.text), form.room)
            return [_row(_restyle(line, styles[entry.level])) for line in _limit(lines)]


def _draw_user(entry: entries.Entry, form: RowFormat, opened: bool) -> list[Row]:
    when = "queued" if entry.kind == "queued" else safe_text.date(entry.at) if entry.at else ""
    if entry.hidden:
        when = f"{when} {form.marks.dot} hidden"
    bar = (" > " if form.is_ascii else " ▌ ", form.styles.user)
    when = form.clip(when, max(form.room - len("You  "), 0))
    heading = Text.assemble(("You", form.styles.user), (f"  {when}", form.styles.dim))
    body = [Text(line) for line in plain_lines(_visible_text(entry, opened), form)]
    shown, more = _fold(entry, body, form, opened)
    key = entry.key if more else None
    return [Row(Text.assemble(bar, line), key, form.styles.user_background) for line in [heading, *shown, *more]]


def _draw_stored_reply(entry: entries.Entry, form: RowFormat, opened: bool) -> list[Row]:
    body = draw_markdown(_visible_text(entry, opened), form)
    shown, more = _fold(entry, body, form, opened)
    hidden = f" {form.marks.dot} hidden" if entry.hidden else ""
    rows = draw_reply(f"{entry.name}{hidden}", [*shown, *more], form)[:-1]
    return [row._replace(key=entry.key) for row in rows] if more else rows


def _draw_reasoning(entry: entries.Entry, form: RowFormat, opened: bool) -> list[Row]:
    dim = form.styles.dim
    if not opened:
        line = f"{form.arrow(False)} reasoning: {_first_line(entry.text)}"
        return [_row(Text(form.clip(line), dim), entry.key)]
    lines = [Text(line, dim) for line in _wrap(safe_text.safe_lines(entry.text.strip()), form.room)]
    heading = Text(f"{form.arrow(True)} reasoning", dim)
    return [_row(line, entry.key) for line in [heading, *_limit(lines)]]


def _draw_tool(entry: entries.Entry, form: RowFormat, opened: bool) -> list[Row]:
    """Draw a tool call in one row; opened, with all its arguments and output."""
    styles, arrow = form.styles, form.arrow(opened)
    name, _, arguments = safe_text.safe(entry.name).partition(" ")
    sign, style = {
        True: (form.marks.done, styles.success),
        False: (form.marks.failed, styles.error),
        None: (form.marks.more, styles.warning),
    }[entry.ok]
    output = _first_line(entry.text)
    name = form.clip(name, max(form.room - 10, 1))
    room = max(form.room - safe_text.cells(f"{arrow} {sign} {name}") - 1, 0)
    call = form.clip(arguments, room * 3 // 5 if output else room)
    output = "" if opened else form.clip(output, max(room - safe_text.cells(call) - 2, 0))
    heading = Text.assemble((f"{arrow} ", styles.dim), (f"{sign} ", style), (name, "bold"), (f" {call}", styles.dim))
    heading.append(f"  {output}", styles.error if entry.ok is False else styles.dim)
    if not opened:
        return [_row(heading, entry.key)]
    body = [Text(line, styles.dim) for line in _wrap([arguments], form.room - 4)] if arguments else []
    body += [Text(line) for line in _wrap(safe_text.safe_lines(entry.text.rstrip()), form.room - 4)]
    bar = ("  | " if form.is_ascii else "  │ ", styles.dim)
    return [_row(heading, entry.key), *(_row(Text.assemble(bar, line), entry.key) for line in _limit(body))]


def _draw_program(entry: entries.Entry, form: RowFormat, opened: bool) -> list[Row]:
    """Draw the message of a program: its first line, or all of it."""
    lines = safe_text.safe_lines(entry.text.strip())
    if not opened:
        line = Text(form.clip(f"{form.marks.dot} {lines[0]}"), form.styles.dim)
        return [_row(line, entry.key if len(lines) > 1 else None)]
    return [_row(_restyle(line, form.styles.dim), entry.key) for line in _limit(_wrap(lines, form.room))]


def _draw_compaction(entry: entries.Entry, form: RowFormat) -> list[Row]:
    """Draw a line across the transcript with the text in its middle."""
    line, styles = "-" if form.is_ascii else "─", form.styles
    text = f" {entry.text} {form.marks.dot} Enter opens it "
    if safe_text.cells(text) > form.room - 4:
        text = f" {form.clip(entry.text.replace('a summary replaces ', ''), max(form.room - 6, 1))} "
    left = max((form.room - safe_text.cells(text)) // 2, 1)
    right = max(form.room - safe_text.cells(text) - left, 1)
    style = styles.dim if entry.hidden else styles.compaction
    row = Text.assemble((line * left, styles.dim), (text, style), (line * right, styles.dim))
    return [_row(row, entry.key)]


# --- parts ---------------------------------------------------------------------------------------------


def _row(line: Text, key: entries.Key | None = None) -> Row:
    return Row(Text.assemble(" " * MARGIN, line), key)


def _first_line(text: str) -> str:
    return safe_text.safe(wording.first_line(text.lstrip()[:ROW_CHARACTERS]))


def _visible_text(entry: entries.Entry, opened: bool) -> str:
    """Return the text that may be visible: of a very long folded entry, only the beginning."""
    if opened or len(entry.text) <= MAX_UNFOLDED_CHARACTERS:
        return entry.text
    return entry.text[: FOLDED_ROWS * 2 * MAX_WIDTH]


def _fold(
    entry: entries.Entry, lines: Sequence[Text], form: RowFormat, opened: bool
) -> tuple[Sequence[Text], list[Text]]:
    """Return the lines to show, and the line that opens the rest, if there is any."""
    size = len(entry.text)
    if len(lines) <= MAX_UNFOLDED_ROWS[entry.kind] and size <= MAX_UNFOLDED_CHARACTERS:
        return lines, []
    if opened:
        return _limit(lines), [Text(f"{form.arrow(True)} less", form.styles.dim)]
    is_short = size <= MAX_UNFOLDED_CHARACTERS
    rest = safe_text.count(len(lines) - FOLDED_ROWS, "more row") if is_short else f"all {size:,} characters"
    return lines[:FOLDED_ROWS], [Text(f"{form.arrow(False)} {rest}", form.styles.dim)]


def _restyle(line: Text, style: Style) -> Text:
    return Text(line.plain, style)


def _limit(lines: Sequence[Text] | Sequence[str]) -> list[Text]:
    kept = [line if isinstance(line, Text) else Text(line) for line in lines[:MAX_ROWS]]
    return kept if len(lines) <= MAX_ROWS else [*kept, Text(MORE)]


def _wrap(lines: Sequence[str], room: int) -> list[str]:
    return [row for line in lines for row in safe_text.wrap(line, max(room, 1))]


def plain_lines(text: str, form: RowFormat) -> list[str]:
    """Wrap a text without interpreting it."""
    return _wrap(safe_text.safe_lines(text), form.room)


def draw_markdown(text: str, form: RowFormat) -> list[Text]:
    """Draw Markdown as rows that fit; the rest of a very long text is plain."""
    stream, limit = markdown.MarkdownStream(lambda: form.room, form.marks), MAX_MARKDOWN_CHARACTERS
    head = text if len(text) <= limit else text[:limit].rpartition("\n")[0] or text[:limit]
    rest = text[len(head) :].removeprefix("\n")
    rows = decode_rows(stream.add(head) + stream.end(), form.room)
    return [*rows, *map(Text, plain_lines(rest, form))] if rest else rows


def decode_rows(codes: str, room: int) -> list[Text]:
    """Decode text with terminal codes into rows; code that is wider than the screen is wrapped."""
    lines = ansi.AnsiDecoder().decode(codes.removesuffix("\n")) if codes else ()
    return [row for line in lines for row in _fit(_remove_backgrounds(line), room)]


def _remove_backgrounds(line: Text) -> Text:
    """Replace the terminal's default colours by those of the theme."""
    for place, (start, end, style) in enumerate(line.spans):
        if isinstance(style, Style) and style.bgcolor is not None:
            colour = None if style.color is None or style.color.is_default else style.color
            bare = Style(color=colour, bold=style.bold, dim=style.dim, italic=style.italic, underline=style.underline)
            line.spans[place] = Span(start, end, bare)
    return line


def _fit(line: Text, room: int) -> Iterator[Text]:
    if line.cell_len <= room:
        yield line
    else:
        yield from line.wrap(_console, room, overflow="fold")
