"""A terminal that has nothing but lines: it edits them itself, and all else is written as it comes.

What is typed while an answer comes stands where the terminal echoes it, and counts all the same.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import signal
from collections.abc import Sequence
from contextlib import suppress

from holdfast import safe_text
from holdfast.chat import prompt
from holdfast.terminal import event_text


class Plain:
    """Lines in, lines out."""

    def __init__(self, paper: prompt.Paper, person: prompt.Person, source: int = 0) -> None:
        self._paper, self._person, self._source = paper, person, source
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = ""
        self._asked: asyncio.Future[str | None] | None = None
        self._leaving = asyncio.Event()
        self._waits = False

    echoes = True

    @property
    def columns(self) -> int:
        try:
            return os.get_terminal_size(self._source).columns or 80
        except OSError:
            return 80

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._source, self._read)
        with suppress(NotImplementedError):
            loop.add_signal_handler(signal.SIGINT, self._interrupted)
        try:
            self.ready()
            await self._leaving.wait()
        finally:
            loop.remove_reader(self._source)
            with suppress(NotImplementedError):
                loop.remove_signal_handler(signal.SIGINT)

    def leave(self) -> None:
        self._leaving.set()

    def write(self, pieces: Sequence[event_text.Piece]) -> None:
        if self._waits and pieces:
            self._waits = False
            self._paper.out.write("\n")
        for words, style in pieces:
            self._paper.out.write(self._paper.style(words, style) if style and words else words)
        self._paper.out.flush()

    def echo(self, line: str) -> None:
        self.write([event_text.Piece(f"{prompt.MARK}{line}\n")])

    def changed(self) -> None:
        """Nothing here can change."""

    def ready(self) -> None:
        """Nothing goes on any more: the next line can be typed."""
        if not self._waits and self._asked is None:
            self.write([event_text.Piece(f"\n{prompt.MARK}")])
            self._waits = True

    async def line(self, words: str) -> str | None:
        """What is typed behind these words, from now on; None: Ctrl-C."""
        self.write([event_text.Piece(words)])
        self._waits, self._asked = True, asyncio.get_running_loop().create_future()
        try:
            return await self._asked
        finally:
            self._asked = None

    def remember(self, line: str) -> None:
        """Nothing here brings it back."""

    def draft(self, line: str) -> None:
        """Nobody but the terminal can put words where somebody types."""
        self.write([event_text.Piece(f"Not sent: {safe_text.safe(line)}\n", "yellow")])

    def _read(self) -> None:
        try:
            came = os.read(self._source, 65536)
        except OSError:
            came = b""
        if not came:
            self._person.leave()
        *lines, self._begun = (self._begun + self._decoder.decode(came)).split("\n")
        for line in lines:
            self._waits = False
            if self._asked is not None and not self._asked.done():
                self._asked.set_result(line)
            else:
                self._person.typed(line)

    def _interrupted(self) -> None:
        self._begun = ""
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(None)
        else:
            self._person.interrupted()
