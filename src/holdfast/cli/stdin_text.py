"""Read the message, or an addition to it, from standard input, which may be silent, endless or binary."""

from __future__ import annotations

import os
import select
import stat
import sys

import click

from holdfast.cli import console

FIRST_BYTE_TIMEOUT = 1.5
"""Seconds to wait for input if there is a message without it.

Programs are often started with a pipe that stays open and silent, while a download needs a moment to begin.
"""
SILENT = "Nothing came on standard input; continuing without it."
MAX_BYTES = 16 * 1024 * 1024
BINARY_CHECK_BYTES = 8000
"""The bytes that are searched for NUL to detect binary data, as git and grep do."""


def read_message(out: console.Console, words: str | None) -> str | None:
    """Return the words followed by standard input, if it is piped; None if there is neither."""
    piped = None
    if is_piped():
        if words is None or _has_input():
            piped = _read_text()
        else:
            out.note(SILENT)
    if words is None and piped is None:
        return None
    return "\n\n".join(part for part in (decode(words), (piped or "").strip("\n")) if part)


def decode(words: str | None) -> str:
    """Return an argument of the command line as valid Unicode: invalid UTF-8 arrives as unpaired surrogates."""
    return (words or "").encode("utf-8", "surrogateescape").decode("utf-8", "replace").strip()


def _read_text() -> str:
    data = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        largest = f"{MAX_BYTES // (1024 * 1024)} MB"
        raise click.UsageError(f"Standard input is larger than {largest}. Name a file in the message instead.")
    if b"\0" in data[:BINARY_CHECK_BYTES]:
        raise click.UsageError("Standard input is not text. Name a file in the message instead.")
    return data.decode("utf-8", "replace")


def is_terminal() -> bool:
    """Return whether standard input is a terminal."""
    return console.is_tty(sys.stdin)


def is_piped() -> bool:
    """Return whether standard input is a pipe, a file or a socket, and not a device."""
    try:
        return sys.stdin is not None and not stat.S_ISCHR(os.fstat(sys.stdin.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def _has_input() -> bool:
    """Wait for input or its end, up to the timeout."""
    try:
        return bool(select.select([sys.stdin.fileno()], [], [], FIRST_BYTE_TIMEOUT)[0])
    except (OSError, ValueError):
        return True  # Windows cannot wait for a pipe.
