"""Drawing with characters: trees, tables, and two pictures side by side. Pure: values in, lines out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast import safe_text
from holdfast.cli import console


class Node(NamedTuple):
    """A line of a tree and what hangs below it. `style` names colours of console.COLOURS."""

    line: str
    below: Sequence[Node] = ()
    style: tuple[str, ...] = ()


class Line(NamedTuple):
    """A finished line: the branches of the tree, then the text, coloured apart from each other."""

    lead: str
    line: str
    style: tuple[str, ...] = ()

    def plain(self) -> str:
        return self.lead + self.line


def tree(root: Node, glyphs: console.Glyphs) -> Iterator[Line]:
    """The lines of a tree, however deep: no recursion."""
    yield Line("", root.line, root.style)
    waiting = _below(root, "", glyphs)
    while waiting:
        node, lead, under = waiting.pop()
        yield Line(lead, node.line, node.style)
        waiting += _below(node, under, glyphs)


def _below(node: Node, lead: str, glyphs: console.Glyphs) -> list[tuple[Node, str, str]]:
    """What hangs below, the last first, with the lead of its own line and of those under it."""
    leads = [(lead + glyphs.fork, lead + glyphs.pipe)] * (len(node.below) - 1)
    leads.append((lead + glyphs.last, lead + "   "))
    return [(child, *pair) for child, pair in zip(node.below, leads, strict=False)][::-1]


def drawn(out: console.Console, line: Line, room: int | None) -> str:
    """A line as the console shows it, clipped to the room there is."""
    lead = out.clipped(line.lead, room)
    left = None if room is None else max(0, room - safe_text.cells(lead))
    body = out.clipped(line.line, left)
    return lead + (out.style(body, *line.style) if line.style else body)


def beside(out: console.Console, left: Sequence[Line], right: Sequence[Line], room: int) -> list[str]:
    """Two pictures next to each other, each in its half of the room."""
    half = (room - 3) // 2
    lines = []
    for number in range(max(len(left), len(right))):
        first = left[number] if number < len(left) else Line("", "")
        second = right[number] if number < len(right) else Line("", "")
        spaces = " " * max(0, half - safe_text.cells(first.plain()))
        lines.append(f"{drawn(out, first, half)}{spaces}   {drawn(out, second, half)}".rstrip())
    return lines


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table: the first column to the left, numbers after it to the right."""
    widths = [max(safe_text.cells(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [
        "  ".join(safe_text.padded(cell, widths[place], right=place > 0) for place, cell in enumerate(row)).rstrip()
        for row in rows
    ]
