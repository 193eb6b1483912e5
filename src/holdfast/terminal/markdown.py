"""Markdown on a terminal with colours, drawn while it streams in.

markdown-it-py parses the blocks. A block is drawn when it is complete; until then its source text is `open`. Only lines
that are not drawn yet are parsed again, so the cost is linear in the length of the reply.

Code is never wrapped or padded, so that it can be copied. The target of a link is written out. Text is made safe after
parsing, because Markdown entities can spell control characters.
"""

from __future__ import annotations

import io
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich import box
from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from holdfast import safe_text
from holdfast.terminal import event_text

INLINE_STYLES = {"strong_open": "bold", "em_open": "italic", "s_open": "strike", "link_open": "underline"}
CODE_STYLE, DIM, HEADING_STYLE = "cyan", "dim", "bold"
CODE_THEME = "ansi_dark"
RULE_COLUMNS = 40
MIN_TABLE_COLUMNS = 6
MAX_QUOTE_BARS = 4
# The colours of a line of code depend on this many lines before it.
HIGHLIGHT_CONTEXT_LINES = 200
# A short block is parsed with each of its lines; a longer one each time it has grown by a quarter.
SHORT_BLOCK_LINES, GROWTH = 8, 1.25
MAX_NESTING = 40

_KINDS = {
    "paragraph_open": "paragraph",
    "heading_open": "heading",
    "hr": "rule",
    "table_open": "table",
    "fence": "fence",
    "code_block": "code",
    "blockquote_open": "quote",
}
# The rule "reference" would remove link definitions from the text.
_PARSER = MarkdownIt("commonmark", {"html": False, "maxNesting": MAX_NESTING})
_PARSER.enable(["strikethrough", "table"]).disable("reference")
_STARTS_BLOCK = re.compile(r"\s*(?:$|#|`{3}|~{3}|[-*+]\s|\d{1,9}[.)]\s)")
_QUOTE_MARK = re.compile(r"\s*> ?")
_FENCE = re.compile(r"(`{3,}|~{3,}).*")
_CONSOLE = Console(
    file=io.StringIO(),
    force_terminal=True,
    color_system="standard",
    highlight=False,
    markup=False,
    emoji=False,
    legacy_windows=False,
    _environ={},
)


class Block(NamedTuple):
    """A block that contains text, and its lines in the source."""

    kind: str
    start: int
    end: int
    tokens: Sequence[Token]
    marks: Sequence[str] = ()
    """The bullets or numbers of list items that begin with this block."""
    indent: int = 0
    items: Sequence[int] = ()
    """The first lines of the list items that contain the block."""

    @property
    def inline(self) -> str:
        """The inline source of a paragraph or heading."""
        return next((token.content for token in self.tokens if token.type == "inline"), "")


class MarkdownStream:
    """Draws one reply after the other; each begins in the first column."""

    def __init__(self, width: Callable[[], int], marks: event_text.Marks | None = None) -> None:
        self._width, self._ascii = width, marks == event_text.PLAIN
        self._reset()

    def _reset(self) -> None:
        self._context: list[str] = []  # The first lines of the list items that the next line may continue.
        self._lines: list[str] = []  # Complete lines that are not drawn yet.
        self._line = ""
        self._parsed_lines = 0
        self._fence = self._language = ""
        self._code: deque[str] = deque(maxlen=HIGHLIGHT_CONTEXT_LINES)
        self._gap = self._started = False

    @property
    def open(self) -> str:
        """The source of the text that is not drawn yet."""
        text = "\n".join([*self._lines, self._line])
        return f"\n{text}" if text and self._gap else text

    @property
    def in_code(self) -> bool:
        """Whether the last line that was drawn is inside a fenced block of code."""
        return bool(self._fence)

    def add(self, text: str) -> str:
        """Add the next piece of the reply; return the blocks that are complete now, with terminal codes."""
        text = safe_text.safe_stream(text).replace("\t", "    ")
        *lines, self._line = (self._line + text).split("\n")
        return "".join(map(self._read, lines))

    def end(self) -> str:
        """End the reply; return the rest of it."""
        drawn = self._read(self._line) if self._line else ""
        while self._lines:
            drawn += self._draw_complete(final=True)
        self._reset()
        return drawn

    def _read(self, line: str) -> str:
        if self._fence:
            return self._read_code(line)
        if not self._lines and not line.strip():
            self._gap = self._started
            return ""
        self._lines.append(line)
        count = len(self._lines)
        if count > SHORT_BLOCK_LINES and count < self._parsed_lines * GROWTH and not _STARTS_BLOCK.match(line):
            return ""
        self._parsed_lines = count
        return self._draw_complete()

    def _read_code(self, line: str) -> str:
        bare = line.strip()
        if bare.startswith(self._fence) and not bare.strip(self._fence[0]):
            self._fence = ""
            return f"{_ansi(Text(safe_text.safe(line), DIM))}\n"
        return f"{_ansi(self._highlight(line))}\n"

    def _draw_complete(self, final: bool = False) -> str:
        """Draw the blocks that further lines cannot change: all but the last, unless that is complete as well."""
        source = [*self._context, "", *self._lines] if self._context else self._lines
        first = len(source) - len(self._lines)
        blocks = [block for block in read_blocks(source) if block.start >= first]
        fence = next((block for block in blocks if block.kind == "fence"), None)
        if fence is not None:
            return self._draw_fence(fence, blocks, source, first)
        last = blocks[-1] if blocks else None
        complete = final or last is None or last.kind in ("heading", "rule")
        if complete or (not source[-1].strip() and last is not None and last.kind != "code"):
            drawn = self._draw(blocks, source, first)
            self._keep(source, len(source), last.items if last else ())
            self._gap = self._started and not source[-1].strip()
            return drawn
        assert last is not None
        drawn = self._draw(blocks[:-1], source, first)
        if len(blocks) > 1:
            self._gap = _has_blank(source[blocks[-2].end : last.start])
            self._keep(source, last.start, last.items)
        return drawn

    def _draw_fence(self, fence: Block, blocks: Sequence[Block], source: Sequence[str], first: int) -> str:
        before = blocks[: blocks.index(fence)]
        drawn = self._draw(before, source, first)
        gap = _has_blank(source[before[-1].end if before else first : fence.start])
        drawn += "\n" if self._started and (gap or self._gap) else ""
        drawn += f"{_ansi(Text(safe_text.safe(source[fence.start]), DIM))}\n"
        rest = source[fence.start + 1 :]
        self._keep(source, len(source), fence.items)
        self._gap, self._started = False, True
        self._fence, self._language = fence.tokens[0].markup, (fence.tokens[0].info.split() or [""])[0]
        self._code.clear()
        return drawn + "".join(map(self._read, rest))

    def _keep(self, source: Sequence[str], start: int, items: Sequence[int]) -> None:
        """Keep the lines from `start` on, and the list items before it that they may continue."""
        self._context = [_FENCE.sub("x", source[line]) for line in dict.fromkeys(items) if line < start]
        self._lines = list(source[start:])
        self._parsed_lines = len(self._lines)

    def _draw(self, blocks: Iterable[Block], source: Sequence[str], first: int) -> str:
        """Draw blocks, with an empty row between two that have blank lines between them."""
        drawn, end = "", first
        for block in blocks:
            self._gap = self._gap or _has_blank(source[end : block.start])
            drawn += "\n" if self._gap and self._started else ""
            drawn += "".join(f"{row}\n" for row in draw_block(block, source, max(self._width(), 1), self._ascii))
            self._gap, self._started, end = False, True, block.end
        return drawn

    def _highlight(self, line: str) -> Text:
        """Colour a line of code together with the lines before it: strings and comments may span many lines."""
        self._code.append(safe_text.safe(line))
        if not self._language:
            return Text(self._code[-1])
        code = Syntax("", self._language, theme=CODE_THEME, background_color="default").highlight("\n".join(self._code))
        lines = code.split("\n", allow_blank=True)
        shown = lines[len(self._code) - 1] if len(lines) >= len(self._code) else Text()
        # Some lexers drop characters; the code must stay complete.
        return shown if shown.plain == self._code[-1] else Text(self._code[-1])


# --- blocks --------------------------------------------------------------------------------------------


def read_blocks(source: Sequence[str]) -> list[Block]:
    """Parse lines of Markdown into their blocks."""
    tokens: list[Token] = []
    _PARSER.block.parse("\n".join(source), _PARSER, {}, tokens)
    if any(token.level >= MAX_NESTING - 1 for token in tokens):
        return [Block("code", 0, len(source), ())]  # The parser drops text below this depth.
    return list(_blocks(tokens, source))


def _blocks(tokens: Sequence[Token], source: Sequence[str]) -> Iterator[Block]:
    items: list[Token] = []
    marks: list[str] = []  # Of the items that have no block yet.
    place = 0
    while place < len(tokens):
        token, place = tokens[place], place + 1
        if token.type == "list_item_open":
            items.append(token)
            marks.append(f"{token.info}{token.markup}")
        elif token.type == "list_item_close":
            if marks:
                start = _lines_of(items[-1])[0]
                yield _block("paragraph", (start, start + 1), (), marks, items, source)
            items.pop()
            marks = []
        elif token.type in _KINDS:
            begin = place
            while token.nesting == 1 and not (tokens[place].nesting == -1 and tokens[place].level == token.level):
                place += 1
            inner = tokens[begin:place] if token.nesting == 1 else ()
            yield _block(_KINDS[token.type], _lines_of(token), (token, *inner), marks, items, source)
            marks = []


def _block(
    kind: str,
    lines: tuple[int, int],
    tokens: Sequence[Token],
    marks: Sequence[str],
    items: Sequence[Token],
    source: Sequence[str],
) -> Block:
    first_lines = [_lines_of(item)[0] for item in items]
    # An item whose marker is not indented enough to be nested still looks nested: the source decides.
    line = source[first_lines[-len(marks)] if marks else lines[0]]
    return Block(kind, *lines, tokens, tuple(marks), len(line) - len(line.lstrip(" ")), first_lines)


def _lines_of(token: Token) -> tuple[int, int]:
    return (token.map[0], token.map[1]) if token.map else (0, 0)


def _has_blank(lines: Iterable[str]) -> bool:
    return any(not line.strip() for line in lines)


def draw_block(block: Block, source: Sequence[str], width: int, ascii_only: bool, depth: int = 0) -> list[str]:
    """Draw a block as rows with terminal codes."""
    if block.kind in ("code", "fence"):
        return [safe_text.safe(line) for line in source[block.start : block.end]]
    indent = " " * min(block.indent, width // 3)
    mark = "".join(f"{each if ascii_only or each[0].isdigit() else '•'} " for each in block.marks)
    rest = " " * len(indent + mark)
    room = max(width - len(rest), 1)
    match block.kind:
        case "quote":
            rows = _draw_quote(block, source, room, ascii_only, depth)
        case "table":
            rows = _draw_table(block, source, room, ascii_only)
        case "rule":
            rows = _rows(Text(("-" if ascii_only else "─") * min(room, RULE_COLUMNS), DIM), room)
        case "heading":
            style = f"{HEADING_STYLE} underline" if block.tokens[0].tag == "h1" else HEADING_STYLE
            rows = _rows(Text.assemble(draw_inline(block.inline), style=style), room)
        case _:
            rows = [_ansi(row) for row in draw_inline(block.inline).wrap(_CONSOLE, room)]
    return [f"{rest if number else indent + mark}{row}".rstrip(" ") for number, row in enumerate(rows or [""])]


def _draw_quote(block: Block, source: Sequence[str], width: int, ascii_only: bool, depth: int) -> list[str]:
    inside = [_QUOTE_MARK.sub("", line, count=1) for line in source]
    bar = _ansi(Text("|" if ascii_only else "│", DIM)) if depth < MAX_QUOTE_BARS else ""
    rows, end = list[str](), block.start
    for each in _blocks(block.tokens[1:], inside):
        rows += [""] if rows and _has_blank(inside[end : each.start]) else []
        rows += draw_block(each, inside, max(width - 2, 1), ascii_only, depth + 1)
        end = each.end
    return [f"{bar} {row}" if bar and row else bar or row for row in rows or [""]]


def _draw_table(block: Block, source: Sequence[str], width: int, ascii_only: bool) -> list[str]:
    """Draw a table, or its source where the columns do not fit."""
    rows: list[list[Text]] = []
    justify: list[str] = []
    for number, token in enumerate(block.tokens):
        if token.type == "tr_open":
            rows.append([])
        elif token.type in ("th_open", "td_open"):
            rows[-1].append(draw_inline(block.tokens[number + 1].content))
            justify += [str(token.attrs.get("style", "text-align:left")).partition(":")[2]] if len(rows) == 1 else []
    head, *body = rows
    if width < len(head) * (MIN_TABLE_COLUMNS + 2):
        return [safe_text.safe(line.strip()) for line in source[block.start : block.end]]
    style = box.ASCII2 if ascii_only else box.SIMPLE_HEAD
    table = Table(box=style, pad_edge=False, show_edge=False, header_style=HEADING_STYLE)
    for cell, side in zip(head, justify, strict=True):
        table.add_column(cell, justify="right" if side == "right" else "center" if side == "center" else "left")
        table.columns[-1].overflow = "fold"
    for row in body:
        table.add_row(*row)
    return _rows(table, width)


# --- inline text ---------------------------------------------------------------------------------------


def draw_inline(source: str) -> Text:
    """Draw text with its emphasis, code and links."""
    tokens = _PARSER.parseInline(source)
    drawn, styles, targets, begin = Text(), list[str](), list[str](), 0
    for token in (tokens[0].children or []) if tokens else []:
        if token.type == "link_open":
            targets.append(safe_text.safe(token.attrs.get("href", "")))
        if token.nesting == 1:
            styles.append(INLINE_STYLES.get(token.type, ""))
            begin = len(drawn.plain)
        elif token.nesting == -1:
            styles.pop()
            if token.type == "link_close":
                drawn.append(_link_target(targets.pop(), drawn.plain[begin:]), DIM)
        elif token.type in ("softbreak", "hardbreak"):
            drawn.append("\n")
        else:
            style = CODE_STYLE if token.type == "code_inline" else ""
            drawn.append(safe_text.safe(_inline_text(token)), " ".join(filter(None, [*styles, style])))
    return drawn


def _inline_text(token: Token) -> str:
    return f"{token.content} ({token.attrs.get('src', '')})" if token.type == "image" else token.content


def _link_target(target: str, shown: str) -> str:
    """Return the target of a link, unless the text of the link is the target."""
    return "" if not target or target.removeprefix("mailto:") == shown else f" ({target})"


def _rows(shown: RenderableType, width: int) -> list[str]:
    """Render rows of at most `width` columns, without spaces at their ends."""
    rows = _CONSOLE.render_lines(shown, _CONSOLE.options.update(width=width), pad=False)
    return [_codes(row) for row in rows]


def _ansi(text: Text) -> str:
    text.stylize_before(text.style)  # Without spans, `render` ignores the style of the whole text.
    return _codes(list(text.render(_CONSOLE)), strip=False)


def _codes(segments: Sequence[Segment], strip: bool = True) -> str:
    kept = list(segments)
    while strip and kept and not kept[-1].text.strip():
        kept.pop()
    if strip and kept:
        kept[-1] = Segment(kept[-1].text.rstrip(), kept[-1].style)
    return "".join(each.style.render(each.text) if each.style else each.text for each in kept)
