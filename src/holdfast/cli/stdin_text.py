"""What is piped in: the message, or what it is about. It may be nothing, endless, or no text at all."""

from __future__ import annotations

import os
import select
import stat
import sys

import click

from holdfast.cli import console

# Seconds to wait for the first byte of what may be piped in, when the message is there without it. Programs are
# often started with a pipe that stays open and silent; a download, on the other hand, needs a moment to begin.
FIRST_BYTE = 1.5
SILENT = "Nothing came on standard input; going on without it."
# No model has a window for so much, and a pipe may never end.
LARGEST = 16 * 1024 * 1024
# A text has no such byte; how far to look for one is what git and grep have settled on.
NUL, LOOKED_AT = b"\0", 8000


def message(out: console.Console, words: str | None) -> str | None:
    """The one message: what was given, and after it what is piped in; None when there is neither."""
    came = None
    if piped():
        if words is None or _begins():
            came = _text(_all())
        else:
            out.note(SILENT)
    if words is None and came is None:
        return None
    return "\n\n".join(part for part in (given(words), (came or "").strip("\n")) if part)


def given(words: str | None) -> str:
    """What was given as the message, as text."""
    # What a shell passes on that is no UTF-8 comes as lone surrogates, which nothing else takes.
    return (words or "").encode("utf-8", "surrogateescape").decode("utf-8", "replace").strip()


def _all() -> bytes:
    data = sys.stdin.buffer.read(LARGEST + 1)
    if len(data) > LARGEST:
        most = f"{LARGEST // (1024 * 1024)} MB"
        raise click.UsageError(f"More than {most} came on standard input. Name a file in the message instead.")
    return data


def _text(data: bytes) -> str:
    if NUL in data[:LOOKED_AT]:
        raise click.UsageError("What came on standard input is not text. Name a file in the message instead.")
    return data.decode("utf-8", "replace")


def tty() -> bool:
    try:
        return sys.stdin is not None and sys.stdin.isatty()
    except ValueError:
        return False


def piped() -> bool:
    """Whether somebody sends something: a pipe, a file, a socket. A device is nobody."""
    try:
        return sys.stdin is not None and not stat.S_ISCHR(os.fstat(sys.stdin.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def _begins() -> bool:
    """Whether something comes, or the end does, before long."""
    try:
        return bool(select.select([sys.stdin.fileno()], [], [], FIRST_BYTE)[0])
    except (OSError, ValueError):
        return True  # Not every system can wait for a pipe; there it is read as it comes.
