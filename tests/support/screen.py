"""A terminal emulator that wraps, scrolls, moves its cursor and erases. An unknown control code fails the test."""

from __future__ import annotations

import re

from prompt_toolkit.data_structures import Size

from holdfast import safe_text

CODE = r"\x1b\[(\??)([\d;]*)([A-Za-z])"
# Colours, the shape of the cursor, bracketed paste and the keypad do not change the text.
IGNORED = {"m", "q", "?25", "?12", "?2004", "?1"}


class Screen:
    """The rows that a user sees, and above them those that were scrolled away."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self.size = Size(rows, columns)
        self.lines = [""]
        self._row = self._column = 0
        self._wraps = True

    encoding = "utf-8"

    def flush(self) -> None:
        """Do nothing: text is shown when it is written."""

    def write(self, text: str) -> int:
        for part in re.finditer(rf"{CODE}|(.)", text, re.DOTALL):
            *code, character = part.groups()
            if character is None:
                self._run_code(*code)
            else:
                self._put(character)
        return len(text)

    @property
    def shown(self) -> str:
        """All rows up to the cursor, and those below it that are not empty."""
        lines = [line.rstrip() for line in self.lines]
        lines[self._row] = lines[self._row].ljust(self._column)
        last = max([self._row, *(number for number, line in enumerate(lines) if line)])
        return "\n".join(line.replace("\0", "") for line in lines[: last + 1])

    @property
    def above(self) -> str:
        """The rows above the cursor."""
        return "\n".join(line.replace("\0", "").rstrip() for line in self.lines[: self._row]).rstrip("\n")

    def resize(self, columns: int, rows: int) -> None:
        """Reflow as most terminals do: the end of a row that is too long continues in the next."""
        lines, row = list[str](), 0
        for number, line in enumerate(self.lines):
            if number == self._row:
                row = len(lines) + self._column // columns
            kept = line.rstrip()
            lines += [kept[at : at + columns] for at in range(0, max(len(kept), 1), columns)]
        self.lines, self._row, self._column = lines, row, self._column % columns
        self.size = Size(rows, columns)

    def _run_code(self, private: str, numbers: str, what: str) -> None:
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
                self._row += 1
                self.lines += [""] * (self._row == len(self.lines))
            return
        assert character.isprintable() or character in "\u200c\u200d", character
        wide = safe_text.cells(character)
        if not wide:
            return
        if self._column + wide > self.size.columns and self._wraps:
            self._put("\n")
        self._column = min(self._column, self.size.columns - wide)
        line = self.lines[self._row].ljust(self._column)
        self.lines[self._row] = line[: self._column] + character + "\0" * (wide - 1) + line[self._column + wide :]
        self._column += wide
