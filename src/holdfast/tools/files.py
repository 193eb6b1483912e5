"""Reading files, within the folders that were allowed."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Sequence

from holdfast import errors, types
from holdfast.tools import port

LINES = 400
MAX_LINE = 2_000
MAX_BYTES = 20_000_000

_SPEC = types.ToolSpec(
    "read_file",
    "Read a text file of the project. Lines come numbered. Long files come in parts: `from_line` asks for the next.",
    {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The file, from the project's folder or absolute."},
            "from_line": {"type": "integer", "description": "The first line to read; 1 when left out."},
            "lines": {"type": "integer", "description": f"How many lines at most; {LINES} when left out."},
        },
        "required": ["path"],
    },
)


def read_file(roots: Sequence[str]) -> port.Tool:
    """A tool that reads files below these folders; the first is where relative paths begin."""
    allowed = [os.path.realpath(root) for root in roots]

    async def run(arguments: port.Arguments) -> types.Content:
        path = inside(arguments["path"], allowed)
        first, count = arguments.get("from_line", 1), arguments.get("lines", LINES)
        if first < 1 or count < 1:
            raise errors.ToolFailed("`from_line` and `lines` begin at 1.")
        return await asyncio.to_thread(_numbered, path, first, min(count, LINES))

    return port.Tool(_SPEC, run, parallel=True)


def inside(path: str, roots: Sequence[str]) -> str:
    """The real path, if it lies in an allowed folder; links that lead out of it are refused too."""
    if not path or "\0" in path:
        raise errors.ToolFailed("That is no path.")
    real = os.path.realpath(os.path.join(roots[0], os.path.expanduser(path)))
    if not any(real == root or real.startswith(root.rstrip(os.sep) + os.sep) for root in roots):
        raise errors.ToolFailed(f"{errors.shown(path)} is outside of {' and '.join(roots)}, where files may be read.")
    return real


def _numbered(path: str, first: int, count: int) -> str:
    data = _bytes(path)
    if b"\0" in data[:8192]:
        raise errors.ToolFailed(f"{errors.shown(os.path.basename(path))} is not a text file.")
    lines = data.decode("utf-8", "replace").splitlines()
    if not lines:
        return "[The file is empty.]"
    if first > len(lines):
        raise errors.ToolFailed(f"The file has {len(lines)} lines.")
    shown = lines[first - 1 : first - 1 + count]
    text = "\n".join(f"{number}\t{line[:MAX_LINE]}" for number, line in enumerate(shown, first))
    last = first - 1 + len(shown)
    return text if last == len(lines) else f"{text}\n[Lines {first}-{last} of {len(lines)}.]"


def _bytes(path: str) -> bytes:
    """Only ordinary files: a pipe or a device would never end."""
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with open(fd, "rb") as file:
            found = os.fstat(file.fileno())
            if stat.S_ISDIR(found.st_mode):
                raise errors.ToolFailed("That is a folder.")
            if not stat.S_ISREG(found.st_mode):
                raise errors.ToolFailed("That is not an ordinary file.")
            if found.st_size > MAX_BYTES:
                raise errors.ToolFailed(f"The file has {found.st_size:,} bytes; at most {MAX_BYTES:,} are read.")
            return file.read(MAX_BYTES)
    except IsADirectoryError:
        raise errors.ToolFailed("That is a folder.") from None
    except OSError as error:
        raise errors.ToolFailed(f"It cannot be read: {error.strerror or error}.") from None
