"""Text that is safe to show, and how much room it takes. Pure: text in, text out.

Whatever comes from the store or the command line may hold codes that move the cursor, recolour the
terminal or turn the reading direction. Nothing of that kind leaves this program as it came.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from holdfast import time_format

# Joiners are part of the spelling of several scripts and of composed emoji, and can do no harm.
_JOINERS = "\u200c\u200d"


def safe(text: object) -> str:
    """One line: line breaks and tabs become spaces, everything unprintable is spelled out."""
    line = str(text)
    return line if line.isprintable() else "".join(map(_shown, line))


def safe_lines(text: str) -> list[str]:
    """The same for text of several lines."""
    return [safe(line.expandtabs(4)) for line in text.replace("\r\n", "\n").split("\n")]


def flowing(text: str) -> str:
    """The same for a piece of text that others follow: its lines and tabs stay, whatever moves the cursor goes."""
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" else _shown(c) for c in text.replace("\r", ""))


def _shown(character: str) -> str:
    if character.isprintable() or character in _JOINERS:
        return character
    if character.isspace() and character not in "\x1c\x1d\x1e\x1f\x85\v\f":
        return " "
    return character.encode("unicode_escape").decode("ascii")


def cells(text: str) -> int:
    """How many columns of a terminal the text takes."""
    return len(text) if text.isascii() else sum(map(_cell, text))


@lru_cache(4096)
def _cell(character: str) -> int:
    if character in _JOINERS or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def clipped(text: str, room: int, mark: str = "…") -> str:
    """The text, or as much of it as fits with the mark behind it."""
    if not _wider(text, room):
        return text
    taken = max(0, room - cells(mark))
    return _head(text, taken).rstrip() + mark[: max(0, room)]


def clipped_path(path: str, room: int, mark: str = "…") -> str:
    """The path in one safe line, or as much of its end as fits with the mark before it."""
    line = safe(path)
    if not _wider(line, room):
        return line
    return mark + _head(line[::-1], max(0, room - cells(mark)))[::-1]


def _head(text: str, room: int) -> str:
    used = 0
    for place, character in enumerate(text):
        used += _cell(character)
        if used > room:
            return text[:place]
    return text


def padded(text: str, room: int, *, right: bool = False) -> str:
    """The text filled up with spaces."""
    spaces = " " * (room - cells(text))
    return spaces + text if right else text + spaces


def wrapped(line: str, room: int | None) -> list[str]:
    """One line broken between words, inside of words that are longer than a line."""
    if room is None or not _wider(line, room):
        return [line]
    lines, rest = [], line
    while _wider(rest, room):
        head = _head(rest, room) or rest[0]
        # A word that ends with the line has all its room.
        space = len(head) if rest[len(head) :].startswith(" ") else head.rfind(" ")
        # A line of nothing but its own indent would never come to an end.
        cut = space if space > 0 and head[:space].strip() else len(head)
        lines.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip(" ")
    return [*lines, rest] if rest else lines


def _wider(line: str, room: int) -> bool:
    """Whether it is wider than this; mostly its beginning tells, however long it is."""
    return cells(line[: 2 * room + 1]) > room or (len(line) > 2 * room and cells(line) > room)


when = time_format.when


def count(number: int, one: str, many: str | None = None) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def size(number: int) -> str:
    """Bytes in the largest unit that leaves at least one."""
    for unit, step in (("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000)):
        if number >= step:
            return f"{number / step:.1f} {unit}"
    return f"{number} B"
