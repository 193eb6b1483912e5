"""A terminal without cursor control (TERM=dumb): it edits lines itself, and output is written as it comes.

Text typed while a reply streams in appears where the terminal echoes it, and is processed as usual.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import signal
from collections.abc import Sequence
from contextlib import suppress

from holdfast import safe_text
from holdfast.chat import input_line
from holdfast.runtime import interactive
from holdfast.terminal import event_text


class DumbTerminal:
    """Reads and writes whole lines."""

    def __init__(self, output: input_line.TextOutput, handler: interactive.InteractiveSession, source: int = 0) -> None:
        self._output, self._handler, self._source = output, handler, source
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial = ""
        self._question: asyncio.Future[str | None] | None = None
        self._leaving = asyncio.Event()
        self._prompted = False

    echoes = True

    @property
    def columns(self) -> int:
        try:
            return os.get_terminal_size(self._source).columns or 80
        except OSError:
            return 80

    async def run(self) -> None:
        """Read lines until `leave` is called."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._source, self._read)
        with suppress(NotImplementedError):
            loop.add_signal_handler(signal.SIGINT, self._interrupt)
        try:
            self.ready()
            await self._leaving.wait()
        finally:
            loop.remove_reader(self._source)
            with suppress(NotImplementedError):
                loop.remove_signal_handler(signal.SIGINT)

    def leave(self) -> None:
        self._leaving.set()

    def write(self, pieces: Sequence[event_text.StyledText]) -> None:
        if self._prompted and pieces:
            self._prompted = False
            self._output.out.write("\n")
        for text, style in pieces:
            self._output.out.write(self._output.style(text, style) if style and text else text)
        self._output.out.flush()

    def echo(self, line: str) -> None:
        self.write([event_text.StyledText(f"{input_line.MARK}{line}\n")])

    def redraw(self) -> None:
        """Do nothing: written text cannot change."""

    def ready(self) -> None:
        """Write the prompt, unless it is there or a question is open."""
        if not self._prompted and self._question is None:
            self.write([event_text.StyledText(f"\n{input_line.MARK}")])
            self._prompted = True

    async def read_line(self, text: str) -> str | None:
        """Return the line typed after this text, from now on; None for Ctrl-C."""
        self.write([event_text.StyledText(text)])
        self._prompted, self._question = True, asyncio.get_running_loop().create_future()
        try:
            return await self._question
        finally:
            self._question = None

    def remember(self, line: str) -> None:
        """Do nothing: there is no history."""

    def draft(self, line: str) -> None:
        """Report a line that cannot be put back to the prompt."""
        self.write([event_text.StyledText(f"Not sent: {safe_text.safe(line)}\n", "yellow")])

    def _read(self) -> None:
        try:
            data = os.read(self._source, 65536)
        except OSError:
            data = b""
        if not data:
            self._handler.leave()
        *lines, self._partial = (self._partial + self._decoder.decode(data)).split("\n")
        for line in lines:
            self._prompted = False
            if self._question is not None and not self._question.done():
                self._question.set_result(line)
            else:
                self._handler.enter(line)

    def _interrupt(self) -> None:
        self._partial = ""
        if self._question is not None and not self._question.done():
            self._question.set_result(None)
        else:
            self._handler.interrupt()
