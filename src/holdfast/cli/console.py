"""The output of the program: data on standard output, everything else on standard error.

The capabilities of the terminal are read once. A pipe or a file gets plain text of any width, without colour.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, TextIO

import click

from holdfast import config, errors, safe_text


class Glyphs(NamedTuple):
    """The characters for lines and marks."""

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
    """The standard streams of one run of the program."""

    def __init__(self, settings: config.Settings, settings_error: errors.SettingInvalid | None = None) -> None:
        self._settings, self.settings_error = settings, settings_error
        self.out, self.err = _prepare(sys.stdout), _prepare(sys.stderr)
        self.tty = is_tty(self.out)
        self.colour = self.tty and settings.colour
        self.glyphs = _glyphs(self.out)
        self.width = settings.columns or (_width(self.out) if self.tty else None)

    @property
    def settings(self) -> config.Settings:
        """The settings. Raises SettingInvalid if a settings file is invalid."""
        if self.settings_error is not None:
            raise self.settings_error
        return self._settings

    # --- data ------------------------------------------------------------------------------------------

    def print(self, line: str = "") -> None:
        """Print a line of data, which must be safe to show: see `safe_text.safe`."""
        print(line, file=self.out)

    def prose(self, line: str, *style: str) -> None:
        """Print a sentence, made safe and wrapped between words."""
        for piece in safe_text.wrap(safe_text.safe(line), self.width):
            self.print(self.style(piece, *style) if style else piece)

    def table(self, rows: Sequence[Sequence[str]], heading: Sequence[str] = (), right: Collection[int] = ()) -> None:
        """Print rows in columns, with the columns in `right` right-aligned.

        Only a terminal gets the heading: programs that read a pipe count and cut its lines.
        """
        titled = bool(heading) and self.tty and bool(rows)
        lines = [heading, *rows] if titled else rows
        widths = [max(map(safe_text.cells, column)) for column in list(zip(*lines, strict=True))[:-1]]
        for number, row in enumerate(lines):
            columns = [safe_text.pad(row[at], width, right=at in right) for at, width in enumerate(widths)]
            line = self.clipped("  ".join([*columns, row[-1]]).rstrip(), self.width)
            self.print(self.style(line, "dim") if titled and number == 0 else line)

    def json(self, value: Any) -> None:
        """Print JSON in ASCII, which is safe on every terminal and in every encoding."""
        print(json.dumps(value, indent=2).replace("\x7f", "\\u007f"), file=self.out)

    def json_line(self, value: Any) -> None:
        """Print JSON on one line, and flush it."""
        print(json.dumps(value).replace("\x7f", "\\u007f"), file=self.out, flush=True)

    # --- notes and questions ---------------------------------------------------------------------------

    def note(self, line: object) -> None:
        """Print a line on standard error."""
        self._write_error(f"{safe_text.safe(line)}\n")

    def progress(self, line: str) -> None:
        """Show a line that the next one replaces, on a terminal only; an empty line removes it."""
        if is_tty(self.err):
            self._write_error(f"\r\x1b[K{safe_text.safe(line)}")

    def percentage(self, what: str) -> Callable[[int, int], None]:
        """Return a progress callback that shows a percentage."""
        return lambda done, total: self.progress(f"{what}: {done / max(total, 1):.0%}")

    def _write_error(self, line: str) -> None:
        """A closed standard error changes neither the outcome of a command nor its exit code."""
        try:
            print(line, end="", file=self.err, flush=True)
        except BrokenPipeError:
            silence(self.err)

    def preview(self, as_json: bool, yes: bool) -> Callable[[str], None] | None:
        """Return how to show what a command will delete: as data, or with JSON as notes if a question follows."""
        if not as_json:
            return self.print
        return self.note if not yes and is_tty(sys.stdin) else None

    def confirm(self, question: str, yes: bool) -> bool:
        """Ask before data is deleted or replaced. Without a terminal, the answer is no unless --yes was given."""
        if yes:
            return True
        if not is_tty(sys.stdin):
            self.note("Nothing was changed. Repeat with --yes to proceed.")
            return False
        self.out.flush()
        if click.confirm(question, default=False, err=True):
            return True
        self.note("Nothing was changed.")
        return False

    # --- text ------------------------------------------------------------------------------------------

    def style(self, line: str, *names: str) -> str:
        if not self.colour:
            return line
        return f"\x1b[{';'.join(COLOURS[name] for name in names)}m{line}\x1b[0m"

    def span(self, first: int, last: int) -> str:
        """Format a range of messages."""
        if last < first:
            return "no messages"
        return str(first) if first == last else f"{first}{self.glyphs.dash}{last}"

    def clipped(self, line: str, room: int | None) -> str:
        return line if room is None else safe_text.clip(line, room, self.glyphs.more)


def silence(stream: TextIO) -> None:
    """Redirect a closed stream to the null device: Python flushes its streams once more when it exits."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def _prepare(stream: TextIO | None) -> TextIO:
    """Make a stream escape characters that it cannot encode. A stream that the parent closed is None."""
    if stream is None:
        return io.StringIO()
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    return stream


def is_tty(stream: TextIO | None) -> bool:
    """Return whether a stream is an open terminal."""
    try:
        return stream is not None and stream.isatty()
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
        # Some pseudo-terminals report 0.
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
