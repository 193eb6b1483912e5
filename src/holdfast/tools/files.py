"""Reading and writing files, within the folders that were allowed."""

from __future__ import annotations

import base64
import hashlib
import io
import os
from collections.abc import Callable, Sequence
from typing import BinaryIO

import msgspec

from holdfast import errors, parts, types
from holdfast.tools import (
    buffers,
    changing,
    editing,
    finding,
    guarded,
    pictures,
    port,
    ranges,
    reads,
    threads,
    workspace,
)

LINES = 400
MAX_PICTURE = 3_500_000
MAX_SIDE = 8_000

_READ = types.ToolSpec(
    "read_file",
    "Read a file of the project: text with numbered lines, or a picture (png, jpeg, gif, webp). Long files come in "
    "parts: `from_line` asks for the next.",
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

_WRITE = types.ToolSpec(
    "write_file",
    "Write a whole text file of the project: a new one, with the folders it needs, or all of an existing one. To "
    "change a part of a file, use edit_file.",
    {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The file, from the project's folder or absolute."},
            "content": {"type": "string", "description": "All that will be in it."},
        },
        "required": ["path", "content"],
    },
)


def tools(
    roots: Sequence[str],
    *,
    off_limits: Sequence[str] = (),
    epoch: Callable[[], object] = lambda: None,
    editor: buffers.Buffers | None = None,
) -> list[port.Tool]:
    """Reading, writing, editing, finding and searching below these folders; the first is where relative paths begin.

    `off_limits` are files and folders that stay closed even there. `epoch` gives anything that differs when the
    model's view of the conversation has changed: a file is told again, then, though it was read before. An `editor`
    is asked for files before the disk is; finding and searching is done on the disk.
    """
    where, known = workspace.Workspace(roots, off_limits), reads.Reads(epoch)
    return [
        _reader(where, known, editor),
        _writer(where, known, editor),
        editing.edit_file(where, known, editor),
        finding.find_files(where),
        finding.search_files(where),
    ]


def read_file(roots: Sequence[str]) -> port.Tool:
    """Only reading, and each time anew."""
    return _reader(workspace.Workspace(roots), None, None)


class _Looked(msgspec.Struct, frozen=True):
    content: types.Content
    seen: object


def _reader(where: workspace.Workspace, known: reads.Reads | None, editor: buffers.Buffers | None) -> port.Tool:
    async def run(arguments: port.Arguments) -> types.Content | port.Plan:
        first, count = arguments.get("from_line", 1), min(arguments.get("lines", LINES), LINES)
        if first < 1 or count < 1:
            raise errors.ToolFailed("`from_line` and `lines` begin at 1.")
        place = where.place(arguments["path"])

        async def look() -> types.Content:
            held = await buffers.held(editor, where, place)
            looked = await threads.stoppable(lambda stop: _look(where, place, (first, count), held, stop))
            return looked.content

        if danger := guarded.secret(place.parts):
            act = port.Act(tool="read_file", kind="look", summary=f"Read {errors.shown(place.name, 200)}.",
                           paths=(place.path,), danger=danger)  # fmt: skip
            return port.Plan(act, look)
        return await look() if known is None else await _again(where, known, place, (first, count), editor)

    return port.Tool(_READ, run, parallel=True)


async def _again(
    where: workspace.Workspace,
    known: reads.Reads,
    place: workspace.Place,
    asked: tuple[int, int],
    editor: buffers.Buffers | None,
) -> types.Content:
    """What is asked for, or where the model has it already. Nothing is noted that the model might not get."""
    now = port.current()
    key = (now.conversation_id, place.path, *asked)
    held = await buffers.held(editor, where, place)
    seen = await threads.stoppable(lambda _: _seen(where, place)) if held is None else _digest(held)
    if (call := known.before(key, seen)) is not None:
        return (
            f"[{place.name} has not changed since it was read in this conversation by the call {call or 'before'}, "
            "with these very lines. If that is not in view any more, `recall` brings it back; or read it once more.]"
        )
    looked = await threads.stoppable(lambda stop: _look(where, place, asked, held, stop))
    known.note(key, looked.seen, now.call_id)
    return looked.content


def _seen(where: workspace.Workspace, place: workspace.Place) -> workspace.Seen:
    with where.reading(place) as file:
        return workspace.seen(os.fstat(file.fileno()))


def _digest(held: bytes) -> object:
    return hashlib.sha256(held).digest()


def _look(
    where: workspace.Workspace, place: workspace.Place, asked: tuple[int, int], held: bytes | None, stop: threads.Stop
) -> _Looked:
    if held is not None:
        return _Looked(_numbered(ranges.read(io.BytesIO(held), *asked, stop), len(held)), _digest(held))
    with where.reading(place) as file:
        found = os.fstat(file.fileno())
        beginning = file.read(8192)
        if pictures.kind(beginning) is not None and (picture := _picture(file, place, found.st_size)) is not None:
            return _Looked(picture, workspace.seen(found))
        if b"\0" in beginning:
            raise errors.ToolFailed(f"{errors.shown(place.parts[-1])} is not a text file.")
        text = _numbered(ranges.read(file, *asked, stop), found.st_size)
        # Of before it was read: who changes it meanwhile makes it another file.
        return _Looked(text, workspace.seen(found))


def _numbered(found: ranges.Range, size: int) -> str:
    if not found.lines:
        return "[The file is empty.]"
    text = "\n".join(f"{number}\t{line}" for number, line in enumerate(found.lines, found.first))
    last = found.first - 1 + len(found.lines)
    told = ""
    if found.total is None:
        told = f"\n[Lines {found.first}-{last}. The file goes on; it has {size:,} bytes.]"
    elif last < found.total:
        told = f"\n[Lines {found.first}-{last} of {found.total}.]"
    return f"{text}{told}" + ("\n[Its lines end with CRLF; edit_file keeps that.]" if found.crlf else "")


def _picture(file: BinaryIO, place: workspace.Place, size: int) -> types.Content | None:
    """A picture as the model is to see it; None where it is none after all."""
    if size > MAX_PICTURE:
        raise errors.ToolFailed(f"The picture has {size:,} bytes; at most {MAX_PICTURE:,} can be shown.")
    file.seek(0)
    data = file.read(MAX_PICTURE + 1)
    found = pictures.read(data)
    if found is None or len(data) > MAX_PICTURE:
        return None
    if max(found.width, found.height) > MAX_SIDE:
        raise errors.ToolFailed(f"The picture is {found.width} x {found.height}; at most {MAX_SIDE} each can be shown.")
    told = f"[{place.name}: {found.media_type}, {found.width} x {found.height}, {len(data):,} bytes]"
    shown = parts.Image(media_type=found.media_type, data=base64.b64encode(data).decode())
    return parts.written([parts.Text(told), shown])


def _writer(where: workspace.Workspace, known: reads.Reads, editor: buffers.Buffers | None) -> port.Tool:
    async def run(arguments: port.Arguments) -> port.Plan:
        place, content = where.place(arguments["path"]), arguments["content"]

        def changed(old: changing.Text | None, _: threads.Stop) -> changing.Text:
            given = changing.Text(content)
            # A file keeps the way its lines end and how it begins, unless what is written has ways of its own.
            return given if old is None or "\r" in content else given.like(old)

        return await changing.planned(where, known, "write_file", place, changed, editor)

    return port.Tool(_WRITE, run)
