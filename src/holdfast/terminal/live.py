"""Text at the end of the screen that can be taken back, to be written once more in its last form.

How many rows it takes is counted as a terminal would. Where that cannot be known (the terminal was resized, the text
is taller than it, or has characters that terminals draw differently where the row ends), it is not taken back: what
was written stays as it is, and nothing above it is ever touched.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import NamedTuple

from holdfast.terminal import text


class Size(NamedTuple):
    """Of a terminal."""

    columns: int
    rows: int


Measure = Callable[[], Size]


class Live:
    """What was written since the cursor stood at the beginning of a row; nothing at first."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self.leave()

    @property
    def fresh(self) -> bool:
        """Whether the cursor stands at the beginning of a row, as far as this text goes."""
        return self._fresh

    def leave(self) -> None:
        """What was written stays, and what comes next begins at a row of its own."""
        self._size: Size | None = None
        self._row = self._column = 0
        self._doubtful = False
        self._sure = self._fresh = True

    def put(self, words: str) -> None:
        """To be told of safe text that is written, without tabs."""
        if not words:
            return
        size = self._measure()
        self._sure = self._sure and self._size in (None, size)
        self._size, self._fresh = size, words.endswith("\n")
        for character in words:
            self._step(character, size.columns)

    def taken_back(self) -> str | None:
        """The codes that take it away, the cursor where it began; None where that is not certain to go well."""
        if self._size is None:
            return ""
        if not self._sure or self._measure() != self._size or self._row >= self._size.rows:
            return None
        up = f"\x1b[{self._row}A" if self._row else ""
        self.leave()
        return f"\r{up}\x1b[J"

    def _step(self, character: str, columns: int) -> None:
        if character == "\n":
            self._row, self._column, self._doubtful = self._row + 1, 0, False
            return
        doubtful = not character.isascii() and _doubtful(character)
        self._doubtful = self._doubtful or doubtful
        wide = 2 if doubtful else text.cells(character)
        # A terminal begins the next row with the first character that has no room, not before.
        if self._column + wide > columns:
            self._sure = self._sure and not self._doubtful
            self._row, self._column = self._row + 1, 0
        self._column += wide


def _doubtful(character: str) -> bool:
    """Marks, joiners, pictures and their like: as wide as each terminal thinks they are."""
    code = ord(character)
    return code >= 0x1F000 or 0x1160 <= code <= 0x11FF or unicodedata.category(character) in ("Mn", "Me", "Mc", "Cf")
