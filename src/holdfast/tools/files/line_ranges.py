"""Lines of a file by their numbers, without holding more of it than is asked for.

A file may be longer than memory, and so may one line of it. What is passed over is counted in blocks, a line that is
too long is cut where it is read, and both have an end: how far into a file one may ask, and how much is shown at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import BinaryIO

import msgspec

from holdfast import errors

BLOCK = 1 << 20
LONGEST = 2_000
"""Characters of one line."""
SHOWN = 28_000
"""Characters at once: below what any result is cut to, so that nothing is missing in the middle."""
REACH = 256_000_000
"""Bytes from the beginning within which lines can be asked for."""
COUNTED = 32_000_000
"""Bytes behind what is shown that are read only to say how many lines there are."""
_BOM = b"\xef\xbb\xbf"


class Range(msgspec.Struct, frozen=True):
    """Some lines."""

    lines: tuple[str, ...]
    first: int
    total: int | None
    """How many the file has; None where it was too long to count."""
    crlf: bool = False
    """Whether they end as on Windows."""


def read(file: BinaryIO, first: int, count: int, stop: Callable[[], bool] = lambda: False) -> Range:
    """Up to so many lines from the first on; ToolFailed where the file ends before, or they are too far into it."""
    reader = _Reader(file, stop)
    passed = reader.skip(first - 1)
    lines, used, crlf = list[str](), 0, False
    while passed == first - 1 and len(lines) < count and (found := reader.line()) is not None:
        raw, length = found
        line = _shown(raw.removesuffix(b"\r"), length)
        if lines and used + len(line) > SHOWN:
            # It was read already, and is one of those that follow.
            return Range(tuple(lines), first, _sum(first + len(lines), reader.count()), crlf)
        crlf = crlf or raw.endswith(b"\r")
        lines.append(line)
        used += len(line) + 8
    if not lines and first > 1:
        raise errors.ToolFailed(f"The file has {passed} lines.")
    return Range(tuple(lines), first, _sum(first - 1 + len(lines), reader.count()), crlf)


def _sum(lines: int, more: int | None) -> int | None:
    return None if more is None else lines + more


def _shown(raw: bytes, length: int) -> str:
    line = raw.removeprefix(_BOM).decode("utf-8", "replace")
    if length <= len(raw) + 1 and len(line) <= LONGEST:
        return line
    return f"{line[:LONGEST]}[… the line has {length:,} bytes …]"


class _Reader:
    """A file on its way to its end, or to where one has to stop."""

    def __init__(self, file: BinaryIO, stop: Callable[[], bool]) -> None:
        self._file, self._stop, self._left = file, stop, REACH
        # A file that others write to is as long as it was: it might grow as fast as it is read.
        self._end = file.seek(0, os.SEEK_END)
        file.seek(0)

    def skip(self, lines: int) -> int:
        """Pass over so many lines; how many there were, if there are less."""
        passed, last = 0, b"\n"
        while passed < lines:
            block = self._block()
            if not block:
                if self._left <= 0:
                    raise errors.ToolFailed(
                        f"Line {lines + 1} is more than {REACH:,} bytes into the file. Search it instead."
                    )
                return passed + (last != b"\n")
            found = block.count(b"\n")
            if passed + found >= lines:
                self._file.seek(_after(block, lines - passed) - len(block), 1)
                return lines
            passed, last = passed + found, block[-1:]
        return passed

    def line(self) -> tuple[bytes, int] | None:
        """The next line without its end, as far as it is shown, and how long it really is."""
        raw = self._file.readline(LONGEST * 4) if self._left > 0 else b""
        if not raw:
            return None
        self._left -= len(raw)
        if raw.endswith(b"\n"):
            return raw[:-1], len(raw) - 1
        length = len(raw)
        while block := self._block():
            at = block.find(b"\n")
            if at >= 0:
                self._file.seek(at + 1 - len(block), 1)
                return raw, length + at
            length += len(block)
        return raw, length

    def count(self) -> int | None:
        """How many lines follow; None where that would take too long to say."""
        self._left = min(self._left, COUNTED)
        found, last = 0, b"\n"
        while block := self._block():
            found, last = found + block.count(b"\n"), block[-1:]
        return None if self._left <= 0 else found + (last != b"\n")

    def _block(self) -> bytes:
        room = min(BLOCK, self._end - self._file.tell())
        block = b"" if room <= 0 or self._left <= 0 or self._stop() else self._file.read(room)
        self._left -= len(block)
        return block


def _after(block: bytes, count: int) -> int:
    """Where the block goes on after so many line ends."""
    at = 0
    for _ in range(count):
        at = block.index(b"\n", at) + 1
    return at
