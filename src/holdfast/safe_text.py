"""Text that is safe to print on a terminal, and its width. Pure functions.

Text from the store, the model or the command line may contain codes that move the cursor, change colours or reverse the
direction of reading. These functions spell such characters out.
"""

from __future__ import annotations

import datetime
import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

# Several scripts and composed emoji need joiners, which are harmless.
_JOINERS = "\u200c\u200d"
_CONTROL_SPACES = "\x1c\x1d\x1e\x1f\x85\v\f"

# Further rows of a line are indented to the text behind a bullet or a number, or to the second of two columns, unless
# that is more than this share of the width.
MAX_INDENT_SHARE = 0.4
_INDENT = re.compile(r"\s*(?:[-*•] |\d{1,9}[.):]? +|\S.*? {2,}(?=\S))?")


def safe(text: object) -> str:
    """Return one safe line: line breaks and tabs become spaces, unprintable characters are escaped."""
    line = str(text)
    return line if line.isprintable() else "".join(map(_escape, line))


def safe_lines(text: str) -> list[str]:
    """Return the safe lines of a text."""
    return [safe(line.expandtabs(4)) for line in text.replace("\r\n", "\n").split("\n")]


def safe_stream(text: str) -> str:
    """Return a safe piece of a stream: line breaks and tabs stay, carriage returns are removed."""
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" else _escape(c) for c in text.replace("\r", ""))


def _escape(character: str) -> str:
    if character.isprintable() or character in _JOINERS:
        return character
    if character.isspace() and character not in _CONTROL_SPACES:
        return " "
    return character.encode("unicode_escape").decode("ascii")


def cells(text: str) -> int:
    """Return the number of terminal columns that a text takes."""
    return len(text) if text.isascii() else sum(map(_cell, text))


@lru_cache(4096)
def _cell(character: str) -> int:
    if character in _JOINERS or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def clip(text: str, room: int, mark: str = "…") -> str:
    """Return the text, or its beginning with a mark if it is wider than `room` columns."""
    if not _is_wider(text, room):
        return text
    return _head(text, max(0, room - cells(mark))).rstrip() + mark[: max(0, room)]


def clip_path(path: str, room: int, mark: str = "…") -> str:
    """Return the path as one safe line, or its end with a mark if it is wider than `room` columns."""
    line = safe(path)
    if not _is_wider(line, room):
        return line
    return mark + _head(line[::-1], max(0, room - cells(mark)))[::-1]


def _head(text: str, room: int) -> str:
    used = 0
    for place, character in enumerate(text):
        used += _cell(character)
        if used > room:
            return text[:place]
    return text


def pad(text: str, room: int, *, right: bool = False) -> str:
    """Return the text filled up with spaces."""
    spaces = " " * (room - cells(text))
    return spaces + text if right else text + spaces


def wrap(line: str, room: int | None) -> list[str]:
    """Wrap a line between words, and inside words that are wider than a line."""
    if room is None or not _is_wider(line, room):
        return [line]
    lines, rest = [], line
    while _is_wider(rest, room):
        head = _head(rest, room) or rest[0]
        # A word that ends exactly at the edge fits.
        space = len(head) if rest[len(head) :].startswith(" ") else head.rfind(" ")
        # A row of nothing but indentation would never make progress.
        cut = space if space > 0 and head[:space].strip() else len(head)
        lines.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip(" ")
    return [*lines, rest] if rest else lines


def _is_wider(line: str, room: int) -> bool:
    """Return whether a line is wider than `room`; usually its beginning decides, however long it is."""
    return cells(line[: 2 * room + 1]) > room or (len(line) > 2 * room and cells(line) > room)


def lay_out(lines: Sequence[str], room: int) -> list[str]:
    """Fit the safe lines of a command's answer into `room` columns; lines that fit stay as they are."""
    return [row for line in lines for row in _wrap_hanging(line, max(room, 1))]


def _wrap_hanging(line: str, room: int) -> list[str]:
    if cells(line) <= room:
        return [line]
    mark = _INDENT.match(line)
    indent = cells(mark[0]) if mark else 0
    if indent > room * MAX_INDENT_SHARE:
        indent = min(2, room // 3)
    head = wrap(line, room)[0]
    rest = line[len(head) :].lstrip(" ")
    return [head, *(" " * indent + row for row in wrap(rest, room - indent))]


def count(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: `1 message`, `2,000 messages`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def size(number: int) -> str:
    """Return a number of bytes in the largest unit that gives at least one."""
    for unit, step in (("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000)):
        if number >= step:
            return f"{number / step:.1f} {unit}"
    return f"{number} B"


def date(at: float) -> str:
    """Return the local date and minute of a Unix time; `@` and the number for a time that the calendar cannot show."""
    try:
        moment = datetime.datetime.fromtimestamp(at, datetime.UTC).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"@{at:.0f}"
    return moment.strftime("%Y-%m-%d %H:%M")
