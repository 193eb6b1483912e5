"""A terminal in a few lines: it wraps, scrolls, moves its cursor and erases. Any code it does not know is refused."""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast import safe_text

CODE = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])")
# Colours, the cursor's looks, bracketed paste and the keypad change nothing that is read.
IGNORED = {"m", "q", "?25", "?12", "?2004", "?1"}


class Size(NamedTuple):
    """Of a terminal."""

    columns: int
    rows: int


class Screen:
    """What a person sees, and above it what was scrolled away."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self.size = Size(columns, rows)
        self.lines = [""]
        self._row = self._column = 0
        self._wraps = True

    encoding = "utf-8"

    def flush(self) -> None:
        """All is there at once."""

    def write(self, words: str) -> int:
        place = 0
        while place < len(words):
            if words[place] == "\x1b":
                code = CODE.match(words, place)
                assert code is not None, words[place : place + 9]
                self._obey(*code.groups())
                place = code.end()
            else:
                self._put(words[place])
                place += 1
        return len(words)

    @property
    def shown(self) -> str:
        """All of it, first to last, up to the cursor and what stands below it."""
        lines = [line.rstrip() for line in self.lines]
        lines[self._row] = lines[self._row].ljust(self._column)
        below = len(lines)
        while below > self._row + 1 and not lines[below - 1]:
            below -= 1
        return "\n".join(line.replace("\0", "") for line in lines[:below])

    @property
    def above(self) -> str:
        """What stands above the row of the cursor: most of it stays there."""
        return "\n".join(line.replace("\0", "").rstrip() for line in self.lines[: self._row]).rstrip("\n")

    def resize(self, columns: int, rows: int) -> None:
        """As most terminals do it: what has no room in a row any more goes on in the next."""
        lines, row = list[str](), 0
        for number, line in enumerate(self.lines):
            if number == self._row:
                row = len(lines) + self._column // columns
            kept = line.rstrip()
            lines += [kept[at : at + columns] for at in range(0, max(len(kept), 1), columns)]
        self.lines, self._row, self._column = lines, row, self._column % columns
        self.size = Size(columns, rows)

    def _obey(self, private: str, numbers: str, what: str) -> None:
        if {what, private + numbers} & IGNORED:
            return
        count = int(numbers or 1)
        match private + what:
            case "?h" | "?l" if numbers == "7":
                self._wraps = what == "h"
            case "A":
                self._row = max(len(self.lines) - self.size.rows, 0, self._row - count)
            case "C":
                self._column = min(self._column + count, self.size.columns - 1)
            case "D":
                self._column = max(self._column - count, 0)
            case "K":
                self.lines[self._row] = self.lines[self._row][: self._column]
            case "J":
                # The rows are still there: only what stands in them is gone.
                self.lines[self._row] = self.lines[self._row][: self._column]
                self.lines[self._row + 1 :] = [""] * len(self.lines[self._row + 1 :])
            case _:
                raise AssertionError((private, numbers, what))

    def _put(self, character: str) -> None:
        if character == "\a":
            return
        if character in "\r\n\b":
            self._column = self._column - 1 if character == "\b" else 0
            if character == "\n":
                self._down()
            return
        assert character.isprintable() or character in "\u200c\u200d", character
        wide = safe_text.cells(character)
        if not wide:
            return
        if self._column + wide > self.size.columns:
            if not self._wraps:
                self._column = self.size.columns - wide
            else:
                self._column = 0
                self._down()
        line = self.lines[self._row].ljust(self._column)
        self.lines[self._row] = line[: self._column] + character + "\0" * (wide - 1) + line[self._column + wide :]
        self._column += wide

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self.lines):
            self.lines.append("")
