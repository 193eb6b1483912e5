"""Where the program writes: data to standard output, everything else to standard error.

What a terminal can show is asked once. A pipe or a file gets plain text of any width, without colour.
"""

from __future__ import annotations

import io
import json
import os
import sys
from typing import Any, NamedTuple, TextIO

from holdfast import config, errors, safe_text


class Glyphs(NamedTuple):
    """What lines and marks are drawn with."""

    fork: str = "├─ "
    last: str = "└─ "
    pipe: str = "│  "
    rule: str = "─"
    live: str = "●"
    ended: str = "○"
    cut: str = "◆"
    dash: str = "–"
    more: str = "…"
    dot: str = "·"


ASCII = Glyphs("|- ", "`- ", "|  ", "-", "*", "o", "#", "-", "...", "-")
COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


class Console:
    """One run of the program, as its user sees it."""

    def __init__(self, settings: config.Settings, wrong: errors.SettingInvalid | None = None) -> None:
        self._settings, self.wrong = settings, wrong
        self.out, self.err = _prepared(sys.stdout), _prepared(sys.stderr)
        self.tty = _is_tty(self.out)
        self.colour = self.tty and settings.colour
        self.glyphs = _glyphs(self.out)
        self.width = settings.columns or (_width(self.out) if self.tty else None)

    @property
    def settings(self) -> config.Settings:
        """What the program runs by. Raises SettingInvalid where a file is wrong: then there are none to go by."""
        if self.wrong is not None:
            raise self.wrong
        return self._settings

    def print(self, line: str = "") -> None:
        """A line of data. It must be safe already: see text.safe."""
        print(line, file=self.out)

    def prose(self, line: str, *style: str) -> None:
        """A sentence, made safe and broken between words."""
        for piece in safe_text.wrapped(safe_text.safe(line), self.width):
            self.print(self.style(piece, *style) if style else piece)

    def json(self, value: Any) -> None:
        """Data for programs. All ASCII, so it is safe on every terminal and in every encoding."""
        print(json.dumps(value, indent=2).replace("\x7f", "\\u007f"), file=self.out)

    def line(self, value: Any) -> None:
        """The same on one line, which is there at once."""
        print(json.dumps(value).replace("\x7f", "\\u007f"), file=self.out, flush=True)

    def note(self, line: object) -> None:
        """Anything that is not data: one line on standard error."""
        self._tell(f"{safe_text.safe(line)}\n")

    def progress(self, line: str) -> None:
        """A line that replaces itself, only where somebody is watching; an empty one takes it away."""
        if _is_tty(self.err):
            self._tell(f"\r\x1b[K{safe_text.safe(line)}")

    def _tell(self, line: str) -> None:
        """Whoever no longer listens must not change what becomes of the command, nor its exit code."""
        try:
            print(line, end="", file=self.err, flush=True)
        except BrokenPipeError:
            silence(self.err)

    def style(self, line: str, *names: str) -> str:
        if not self.colour:
            return line
        return f"\x1b[{';'.join(COLOURS[name] for name in names)}m{line}\x1b[0m"

    def span(self, first: int, last: int) -> str:
        """A range of messages."""
        if last < first:
            return "no messages"
        return str(first) if first == last else f"{first}{self.glyphs.dash}{last}"

    def clipped(self, line: str, room: int | None) -> str:
        return line if room is None else safe_text.clipped(line, room, self.glyphs.more)


def silence(stream: TextIO) -> None:
    """Python flushes its streams once more at its end; by then they must lead somewhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class Nowhere(io.StringIO):
    """Takes everything and keeps nothing."""

    def write(self, text: str, /) -> int:
        return len(text)


def _prepared(stream: TextIO | None) -> TextIO:
    """The stream, so that a character it cannot encode is spelled out instead of raising."""
    if stream is None:  # closed by whoever started the program
        return Nowhere()
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
    return stream


def _is_tty(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:
        return False


def _glyphs(stream: TextIO) -> Glyphs:
    try:
        "".join(Glyphs()).encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return Glyphs()


def _width(stream: TextIO) -> int:
    try:
        # Some pseudo-terminals say 0.
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
