"""Answers of commands on a terminal of any width: lines broken between words, columns kept. Pure.

A line of two columns has them apart by two spaces or more. Where the second has too little room, the first is made
narrower, and a first part that does not fit stands on a line of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast import safe_text

# So much of a line is the most a first column may have when there is not room for all.
SHARE = 0.4
# With less than this beside it a second column is not worth having: a word a line reads badly.
LEAST = 16
DEEPEST = 8

_APART = re.compile(r"(?P<first>\s*\S.*?)(?P<gap> {2,})(?P<second>\S.*)")


def laid_out(lines: Sequence[str], room: int) -> list[str]:
    """These safe lines, none wider than the room; those that fit are left as they are."""
    room = max(room, 1)
    if all(safe_text.cells(line) <= room for line in lines):
        return list(lines)
    column = _column(lines)
    if column is None or room < 2 * LEAST:
        return [row for line in lines for row in _hanging(line, room)]
    return [row for line in lines for row in _beside(line, min(column, int(room * SHARE)), room)]


def _column(lines: Sequence[str]) -> int | None:
    """Where the second column begins, where there are two in every line that has any."""
    found = [_APART.fullmatch(line) for line in lines]
    begins = {safe_text.cells(each["first"] + each["gap"]) for each in found if each}
    others = [line for line, each in zip(lines, found, strict=True) if each is None and line.strip()]
    return begins.pop() if len(begins) == 1 and not others else None


def _beside(line: str, column: int, room: int) -> list[str]:
    parts = _APART.fullmatch(line)
    if parts is None:
        return _hanging(line, room)
    rows = safe_text.wrapped(parts["second"], room - column)
    if safe_text.cells(parts["first"]) + 2 <= column:
        return [safe_text.padded(parts["first"], column) + rows[0], *(" " * column + row for row in rows[1:])]
    return [*_hanging(parts["first"], room), *(" " * column + row for row in rows)]


def _hanging(line: str, room: int) -> list[str]:
    """A line broken between words; what goes on stands under its beginning, or under the words behind a mark."""
    if safe_text.cells(line) <= room:
        return [line]
    mark = re.match(r"\s*(?:[-*•] |\d{1,9}[.):]? +)?", line)
    indent = min(safe_text.cells(mark[0]) if mark else 0, DEEPEST, room // 3)
    head = safe_text.wrapped(line, room)[0]
    rest = line[len(head) :].lstrip(" ")
    return [head, *(" " * indent + row for row in safe_text.wrapped(rest, room - indent))]
