"""A terminal in a few lines: it wraps, scrolls, goes up and erases downwards. Anything else it is sent is refused."""

from __future__ import annotations

import re

from holdfast.terminal import live, text

CODE = re.compile(r"\x1b\[(\d*)([AJ])|\x1b\[[\d;]*m")


class Screen:
    """What a person sees, and above it what was scrolled away."""

    def __init__(self, columns: int, rows: int) -> None:
        self.size = live.Size(columns, rows)
        self.lines = [""]
        self._row = self._column = 0

    def write(self, words: str) -> None:
        place = 0
        while place < len(words):
            if words[place] == "\x1b":
                code = CODE.match(words, place)
                assert code is not None, words[place : place + 9]
                self._obey(code)
                place = code.end()
            else:
                self._put(words[place])
                place += 1

    @property
    def shown(self) -> str:
        """All of it, first to last."""
        return "\n".join(line.replace("\0", "") for line in self.lines).rstrip("\n")

    def _obey(self, code: re.Match[str]) -> None:
        if code[2] == "A":
            top = max(0, len(self.lines) - self.size.rows)
            self._row = max(top, self._row - int(code[1]))
        elif code[2] == "J":
            self.lines[self._row] = self.lines[self._row][: self._column]
            del self.lines[self._row + 1 :]
            # The rows are still there: only what stands in them is gone.

    def _put(self, character: str) -> None:
        if character in "\r\n":
            self._column = 0
            if character == "\n":
                self._down()
            return
        assert character.isprintable(), character
        wide = text.cells(character)
        if self._column + wide > self.size.columns:
            self._column = 0
            self._down()
        line = self.lines[self._row].ljust(self._column)
        self.lines[self._row] = line[: self._column] + character + "\0" * (wide - 1) + line[self._column + wide :]
        self._column += wide

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self.lines):
            self.lines.append("")
