"""The tool read_file: numbered lines of a text file, or an image."""

from __future__ import annotations

import base64
import io
import itertools
import os
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from holdfast import content_parts, errors, types
from holdfast.tools import base, worker_thread
from holdfast.tools.files import editor_buffers, images, workspace
from holdfast.tools.permissions import sensitive_paths

DEFAULT_LINES = 400
MAX_LINE_LENGTH = 2_000
MAX_CHARACTERS = 28_000
"""Per call: less than the limit of any tool result, so that no result is cut in the middle."""
MAX_OFFSET = 256_000_000
"""Lines can be requested within so many bytes from the start of a file."""
MAX_COUNTED_BYTES = 32_000_000
"""Bytes after the shown lines that are read only to count lines."""
BLOCK_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"

_SPEC = types.ToolSpec(
    "read_file",
    "Read a file of the project: text with numbered lines, or an image (png, jpeg, gif, webp). Long files are read in "
    "parts: use `from_line` for the next part.",
    {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The file, relative to the project's folder or absolute."},
            "from_line": {"type": "integer", "description": "The first line to read; 1 by default."},
            "lines": {"type": "integer", "description": f"Maximum number of lines; {DEFAULT_LINES} by default."},
        },
        "required": ["path"],
    },
)


def read_file(space: workspace.Workspace, editor: editor_buffers.EditorBuffers | None = None) -> base.Tool:
    """Build the tool that reads files."""

    async def run(arguments: base.Arguments) -> types.Content | base.Plan:
        first = arguments.get("from_line", 1)
        count = min(arguments.get("lines", DEFAULT_LINES), DEFAULT_LINES)
        if first < 1 or count < 1:
            raise errors.ToolFailed("`from_line` and `lines` must be at least 1.")
        path = space.resolve(arguments["path"])

        async def read() -> types.Content:
            buffer = await editor_buffers.read(editor, space, path)
            return await worker_thread.run_in_thread(lambda stop: _read(space, path, (first, count), buffer, stop))

        if danger := sensitive_paths.secret(path.parts):
            act = base.Act(tool="read_file", kind="look", summary=f"Read {errors.quote(path.name, 200)}.",
                           paths=(path.path,), danger=danger)  # fmt: skip
            return base.Plan(act, read)
        return await read()

    return base.Tool(_SPEC, run, parallel=True)


def _read(
    space: workspace.Workspace,
    path: workspace.WorkspacePath,
    lines: tuple[int, int],
    buffer: bytes | None,
    stop: worker_thread.Stop,
) -> types.Content:
    if buffer is not None:
        return _number_lines(read_lines(io.BytesIO(buffer), *lines, stop), len(buffer))
    with space.open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        beginning = file.read(8192)
        if images.media_type(beginning) is not None and (image := _read_image(file, path, size)) is not None:
            return image
        if b"\0" in beginning:
            raise errors.ToolFailed(f"{errors.quote(path.parts[-1])} is not a text file.")
        return _number_lines(read_lines(file, *lines, stop), size)


def _number_lines(found: LineRange, size: int) -> str:
    if not found.lines:
        return "[The file is empty.]"
    text = "\n".join(f"{number}\t{line}" for number, line in enumerate(found.lines, found.first))
    last = found.first - 1 + len(found.lines)
    note = ""
    if found.total is None:
        note = f"\n[Lines {found.first}-{last}. More lines follow; the file has {size:,} bytes.]"
    elif last < found.total:
        note = f"\n[Lines {found.first}-{last} of {found.total}.]"
    return f"{text}{note}" + ("\n[Lines end with CRLF; edit_file keeps that.]" if found.crlf else "")


def _read_image(file: BinaryIO, path: workspace.WorkspacePath, size: int) -> types.Content | None:
    """Return an image with a caption; None if the file is damaged or no image after all."""
    if size > images.MAX_BYTES:
        raise errors.ToolFailed(f"The image has {size:,} bytes; the limit is {images.MAX_BYTES:,}.")
    file.seek(0)
    data = file.read(images.MAX_BYTES + 1)
    found = images.read(data)
    if found is None or len(data) > images.MAX_BYTES:
        return None
    if max(found.width, found.height) > images.MAX_SIDE:
        raise errors.ToolFailed(f"The image is {found.width} x {found.height}; the limit is {images.MAX_SIDE} each.")
    caption = f"[{path.name}: {found.media_type}, {found.width} x {found.height}, {len(data):,} bytes]"
    image = content_parts.Image(media_type=found.media_type, data=base64.b64encode(data).decode())
    return content_parts.encode([content_parts.Text(caption), image])


# --- lines ---------------------------------------------------------------------------------------------


class LineRange(msgspec.Struct, frozen=True):
    """Consecutive lines of a file."""

    lines: tuple[str, ...]
    first: int
    total: int | None
    """Number of lines of the file; None if it is too long to count."""
    crlf: bool = False
    """Whether lines end with CRLF."""


def read_lines(file: BinaryIO, first: int, count: int, stop: worker_thread.Stop = lambda: False) -> LineRange:
    """Read up to `count` lines from line `first` on.

    A file, and a single line of it, may be larger than memory: long lines are cut as they are read. Raise ToolFailed if
    the file has fewer lines, or they are too far into it.
    """
    rows = _split_lines(file, stop)
    skipped = sum(1 for _ in itertools.islice(rows, first - 1))
    if skipped < first - 1 and file.tell() >= MAX_OFFSET:
        raise errors.ToolFailed(
            f"Line {first} is more than {MAX_OFFSET:,} bytes into the file. Use search_files instead."
        )
    lines, used, crlf, further = list[str](), 0, False, 0
    for raw, length in rows:
        line = _shorten(raw.removesuffix(b"\r"), length)
        if lines and used + len(line) > MAX_CHARACTERS:
            further = 1
            break
        crlf = crlf or raw.endswith(b"\r")
        lines.append(line)
        used += len(line) + 8
        if len(lines) == count:
            break
    if not lines and first > 1:
        raise errors.ToolFailed(f"The file has {skipped} lines.")
    end = min(file.tell() + MAX_COUNTED_BYTES, MAX_OFFSET)
    for _ in rows:
        further += 1
        if file.tell() >= end:
            break
    total = None if file.tell() >= end else first - 1 + len(lines) + further
    return LineRange(tuple(lines), first, total, crlf)


def _shorten(raw: bytes, length: int) -> str:
    line = raw.removeprefix(_BOM).decode("utf-8", "replace")
    if length <= len(raw) + 1 and len(line) <= MAX_LINE_LENGTH:
        return line
    return f"{line[:MAX_LINE_LENGTH]}[… the line has {length:,} bytes …]"


def _split_lines(file: BinaryIO, stop: worker_thread.Stop) -> Iterator[tuple[bytes, int]]:
    """Yield the lines of a file without their ends, each possibly cut, and its real length in bytes.

    End where the file ended at first: another process might append to it as fast as it is read.
    """
    end = min(file.seek(0, os.SEEK_END), MAX_OFFSET)
    file.seek(0)
    at = 0
    while at < end and not stop() and (raw := file.readline(min(MAX_LINE_LENGTH * 4, end - at))):
        last, begin = raw, at
        at += len(raw)
        while not last.endswith(b"\n") and at < end and (last := file.readline(min(BLOCK_BYTES, end - at))):
            at += len(last)
        yield raw.removesuffix(b"\n"), at - begin - last.endswith(b"\n")
