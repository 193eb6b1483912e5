"""Blocks of Markdown as they look on a terminal with colours. Pure: a block and a width in, text and codes out.

Code is never broken or padded, so that it can be copied. What a reader does not see (where a link leads) is spelled
out. Text is made safe after it was read, too: Markdown has spellings for characters that act on a terminal.
"""

from __future__ import annotations

import io
import re
from collections import deque
from collections.abc import Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich import box
from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from holdfast import safe_text
from holdfast.terminal import event_text, markdown_blocks

STYLES = {"strong_open": "bold", "em_open": "italic", "s_open": "strike", "link_open": "underline"}
CODE, ASIDE, HEADING = "cyan", "dim", "bold"
THEME = "ansi_dark"
RULE = 40
# So many lines of a block of code decide how its next one is coloured.
REMEMBERED = 200
# Columns narrower than this are not readable.
NARROWEST = 6

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("strikethrough")
_BARS = re.compile(r"(?<!\\)\|")


class Drawing:
    """Draws the blocks of one reply, in order."""

    def __init__(self, marks: event_text.Marks) -> None:
        self._plain = marks == event_text.PLAIN
        self._code: deque[str] = deque(maxlen=REMEMBERED)

    def drawn(self, block: markdown_blocks.Block, width: int) -> str:
        """The block on lines of its own."""
        match block.kind:
            case "blank":
                return ""
            case "fence":
                self._code.clear()
                return _printed(Text(safe_text.safe(block.lines[0]), ASIDE), None)
            case "code":
                return _printed(self._highlighted(block), None)
            case "table":
                table = _table(block.lines, width, self._plain)
                raw = Text("\n".join(map(safe_text.safe, block.lines)))
                return _printed(table, width) if table else _printed(raw, None)
            case "heading":
                style = f"{HEADING} underline" if block.mark == "#" else HEADING
                return _printed(Text.assemble(inline(block.lines[0]), style=style), width)
            case "rule":
                return _printed(Text(("-" if self._plain else "─") * min(width, RULE), ASIDE), width)
            case _:
                return self._prose(block, width)

    def _prose(self, block: markdown_blocks.Block, width: int) -> str:
        """Text behind a mark; what goes on stands under its beginning."""
        first, rest = self._margins(block, width)
        room = max(width - safe_text.cells(first), 1)
        drawn = Text()
        begins = first
        for line in block.lines:
            for row in inline(line).wrap(_console(room), room):
                row.rstrip()
                drawn.append(begins, ASIDE if block.kind == "quote" else "").append_text(row).append("\n")
                begins = rest
        drawn.right_crop(1)
        return _printed(drawn, None)

    def _margins(self, block: markdown_blocks.Block, width: int) -> tuple[str, str]:
        """What the first row begins with, and the others."""
        indent = " " * min(block.indent, width // 3)
        if block.kind == "quote":
            bar = ("| " if self._plain else "│ ") * min(len(block.mark), 4)
            return bar, bar
        if block.kind == "item":
            mark = block.mark if block.mark[0].isdigit() or self._plain else "•"
            return f"{indent}{mark} ", " " * (len(indent) + len(mark) + 1)
        return indent, indent

    def _highlighted(self, block: markdown_blocks.Block) -> Text:
        """A line of code. Strings and comments may go over many lines, so it is seen with those before it."""
        self._code.append(safe_text.safe(block.lines[0]))
        if not block.mark:
            return Text(self._code[-1])
        code = "\n".join(self._code)
        found = Syntax("", block.mark, theme=THEME, background_color="default").highlight(code)
        lines = found.split("\n", allow_blank=True)
        shown = lines[len(self._code) - 1] if len(lines) >= len(self._code) else Text()
        # A lexer may drop what it does not like; the code has to be whole.
        return shown if shown.plain == self._code[-1] else Text(self._code[-1])


def inline(source: str) -> Text:
    """One line of text with its emphasis, code and links."""
    tokens = _MARKDOWN.parseInline(source)
    drawn, styles, leads = Text(), list[str](), list[str]()
    for token in (tokens[0].children or []) if tokens else []:
        if token.type == "link_open":
            leads.append(safe_text.safe(token.attrs.get("href", "")))
        if token.nesting == 1:
            styles.append(STYLES.get(token.type, ""))
            begins = len(drawn.plain)
        elif token.nesting == -1:
            styles.pop()
            if token.type == "link_close":
                drawn.append(_leading(leads.pop(), drawn.plain[begins:]), ASIDE)
        else:
            words, style = _words(token)
            drawn.append(safe_text.safe(words), " ".join(filter(None, [*styles, style])))
    return drawn


def _words(token: Token) -> tuple[str, str]:
    match token.type:
        case "code_inline":
            return token.content, CODE
        case "image":
            return f"{token.content} ({token.attrs.get('src', '')})", ""
        case "softbreak" | "hardbreak":
            return " ", ""
        case _:
            return token.content, ""


def _leading(target: str, shown: str) -> str:
    """Where a link leads, unless its text says so."""
    return "" if not target or target.removeprefix("mailto:") == shown else f" ({target})"


# --- tables --------------------------------------------------------------------------------------------


def _table(lines: Sequence[str], width: int, plain: bool) -> Table | None:
    """A table; None where it has no room."""
    head, aligned, *rows = map(_cells, lines)
    if width < len(head) * (NARROWEST + 2):
        return None
    table = Table(box=box.ASCII2 if plain else box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style=HEADING)
    for number, cell in enumerate(head):
        marks = aligned[number] if number < len(aligned) else ""
        right, middle = marks.endswith(":"), marks.startswith(":") and marks.endswith(":")
        table.add_column(inline(cell), justify="center" if middle else "right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(inline, [*row, *[""] * len(head)][: len(head)]))
    return table


def _cells(line: str) -> list[str]:
    bare = line.strip().removeprefix("|")
    bare = bare[:-1] if bare.endswith("|") and not bare.endswith("\\|") else bare
    return [cell.strip().replace("\\|", "|") for cell in _BARS.split(bare)]


# --- paper ---------------------------------------------------------------------------------------------


def _console(width: int) -> Console:
    """One that asks nothing of its surroundings."""
    return Console(
        file=io.StringIO(),
        force_terminal=True,
        color_system="standard",
        width=width,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        _environ={},
    )


def _printed(shown: RenderableType, width: int | None) -> str:
    """Lines with their codes; without a width, as long as they are, else with nothing behind their last letter."""
    console = _console(width or 80)
    if width is None:
        with console.capture() as captured:
            console.print(shown, soft_wrap=True)
        return captured.get()
    return "".join(f"{_row(row)}\n" for row in console.render_lines(shown, pad=False))


def _row(segments: Sequence[Segment]) -> str:
    kept = list(segments)
    while kept and not kept[-1].text.strip():
        kept.pop()
    if kept:
        kept[-1] = Segment(kept[-1].text.rstrip(), kept[-1].style)
    return "".join(each.style.render(each.text) if each.style else each.text for each in kept)
