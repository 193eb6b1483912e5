"""Split a long text into messages, and write text as code blocks. Pure.

The text is cut between paragraphs if possible, else between lines, sentences or words, and at last anywhere. A code
block that has to be cut is closed at the end of one message and opened again in the next, in the same language.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

Measure = Callable[[str], int]
"""Returns the length of a text in the units of a platform; it never decreases when the text gets longer."""

_BOUNDARIES = (
    re.compile(r"\n[ \t]*\n+"),
    re.compile(r"\n"),
    re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])"),
    re.compile(r"\s+"),
)
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})([^\n`]*)$", re.MULTILINE)
_MIN_FILL = 0.4
"""A better boundary is used if it fills the message to this fraction of its limit."""
_MAX_LANGUAGE = 20


class _CodeBlock(NamedTuple):
    """A code block: its fence and language, and the offsets of its opening line and of its content."""

    fence: str
    language: str
    start: int
    content: int


def utf16_length(text: str) -> int:
    """Return the length of a text in UTF-16 code units, in which most platforms count."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def code_block(text: str) -> str:
    """Return a Markdown code block. Its fence is longer than any in the text, so that the text cannot close it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}"


def split(text: str, limit: int, measure: Measure = len) -> list[str]:
    """Return the parts of a text, each of at most this length; none for blank text."""
    parts, rest = list[str](), text.strip("\n") if text.strip() else ""
    while rest:
        if measure(rest) <= limit:
            return [*parts, rest]
        part, rest = _split_first(rest, limit, measure)
        if part:  # Whitespace that fills a whole message is dropped.
            parts.append(part)
    return parts


def _split_first(text: str, limit: int, measure: Measure) -> tuple[str, str]:
    """Return the text of the first message and the rest, in which an open code block continues."""
    end = _cut(text, limit, measure)
    block = _open_block(text[:end])
    if block is None:
        return text[:end].rstrip(), _strip_boundary(text[end:])
    closing = f"\n{block.fence}"
    end = _cut(text, limit - measure(closing), measure)
    if end <= block.content and block.start:
        return text[: block.start].rstrip(), text[block.start :]
    if end <= block.content:
        end = _fitting(text, limit - measure(closing), measure)
    if end <= block.content:  # The limit is too small for the fences and some content.
        end = _cut(text, limit, measure)
        return text[:end].rstrip(), _strip_boundary(text[end:])
    still = _open_block(text[:end])
    if still is None:
        return text[:end].rstrip(), _strip_boundary(text[end:])
    # Each message contains some content after the opening line, so the rest always gets shorter.
    rest = text[end:].removeprefix("\n")
    return text[:end].rstrip("\n") + f"\n{still.fence}", f"{still.fence}{still.language}\n{rest}"


def _strip_boundary(rest: str) -> str:
    """Remove the boundary at the beginning of the rest; the indentation of its first line stays."""
    return re.sub(r"\A\s*\n|\A +(?=\S)", "", rest, count=1) if rest.strip() else ""


def _cut(text: str, limit: int, measure: Measure) -> int:
    """Return where to cut: the last boundary of the best kind that fills enough of the message."""
    fitting = _fitting(text, limit, measure)
    window = text[: fitting + 1]
    for boundary in _BOUNDARIES:
        found = [each.start() for each in boundary.finditer(window) if 0 < each.start() <= fitting]
        if found and found[-1] >= _MIN_FILL * fitting:
            return found[-1]
    return fitting


def _fitting(text: str, limit: int, measure: Measure) -> int:
    """Return how many characters fit; at least one."""
    if measure is len:
        return max(min(limit, len(text)), 1)
    low, high = 1, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if measure(text[:middle]) <= limit:
            low = middle
        else:
            high = middle - 1
    return low


def _open_block(text: str) -> _CodeBlock | None:
    """Return the code block that is open at the end of a text."""
    opened: _CodeBlock | None = None
    for found in _FENCE.finditer(text):
        fence, after = found[1], found[2].strip()
        if opened is None:
            opened = _CodeBlock(fence, after if len(after) <= _MAX_LANGUAGE else "", found.start(), found.end() + 1)
        elif fence[0] == opened.fence[0] and len(fence) >= len(opened.fence) and not after:
            opened = None
    return opened
