"""A long text as several messages, cut where it hurts least. Pure.

Between paragraphs if that can be, else between lines, sentences, words, and at last anywhere. A block of code that
has to be cut is closed at the end of one message and opened again in the next, in the same language.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

Measure = Callable[[str], int]
"""How long a platform says that a text is; never less for a longer one."""

_BORDERS = (
    re.compile(r"\n[ \t]*\n+"),
    re.compile(r"\n"),
    re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])"),
    re.compile(r"\s+"),
)
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})([^\n`]*)$", re.MULTILINE)
_LEAST = 0.4
"""A better border is taken if that fills a message to so much of its limit."""
_LANGUAGE = 20


class _Block(NamedTuple):
    """A block of code: its fence, its language, where its opening begins and where what is in it does."""

    fence: str
    language: str
    start: int
    head: int


def split(text: str, limit: int, measure: Measure = len) -> list[str]:
    """Parts of at most this length each, in order; nothing where there is nothing to see."""
    parts, rest = list[str](), text.strip("\n") if text.strip() else ""
    while rest:
        if measure(rest) <= limit:
            return [*parts, rest]
        part, rest = _first(rest, limit, measure)
        parts.append(part)
    return parts


def _first(text: str, limit: int, measure: Measure) -> tuple[str, str]:
    """As much as one message takes, and the rest; an open block of code goes on there."""
    end = _cut(text, limit, measure)
    block = _open_at(text[:end])
    if block is None:
        return text[:end].rstrip(), _led(text[end:])
    closing = f"\n{block.fence}"
    end = _cut(text, limit - measure(closing), measure)
    if end <= block.head and block.start:
        return text[: block.start].rstrip(), text[block.start :]
    if end <= block.head:
        end = _fitting(text, limit - measure(closing), measure)
    if end <= block.head:  # There is hardly room for the fences, and none for what is between.
        end = _cut(text, limit, measure)
        return text[:end].rstrip(), _led(text[end:])
    still = _open_at(text[:end])
    if still is None:
        return text[:end].rstrip(), _led(text[end:])
    # Each message brings some of the text forward: it ends behind the opening that the next one repeats.
    rest = text[end:].removeprefix("\n")
    return text[:end].rstrip("\n") + f"\n{still.fence}", f"{still.fence}{still.language}\n{rest}"


def _led(rest: str) -> str:
    """What comes next, without the border it was cut at; how far its first line is indented stays."""
    return re.sub(r"\A\s*\n|\A +(?=\S)", "", rest, count=1) if rest.strip() else ""


def _cut(text: str, limit: int, measure: Measure) -> int:
    """Where to cut: the last border of the best kind that fills enough of the message."""
    most = _fitting(text, limit, measure)
    window = text[: most + 1]
    for border in _BORDERS:
        found = [each.start() for each in border.finditer(window) if 0 < each.start() <= most]
        if found and found[-1] >= _LEAST * most:
            return found[-1]
    return most


def _fitting(text: str, limit: int, measure: Measure) -> int:
    """How many characters of it fit; at least one."""
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


def _open_at(text: str) -> _Block | None:
    """The block of code that is open at the end of a text."""
    opened: _Block | None = None
    for found in _FENCE.finditer(text):
        fence, after = found[1], found[2].strip()
        if opened is None:
            opened = _Block(fence, after if len(after) <= _LANGUAGE else "", found.start(), found.end() + 1)
        elif fence[0] == opened.fence[0] and len(fence) >= len(opened.fence) and not after:
            opened = None
    return opened
