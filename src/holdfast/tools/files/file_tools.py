"""Reading and writing files, within the folders that were allowed."""

from __future__ import annotations

import base64
import hashlib
import io
import os
from collections.abc import Callable, Sequence
from typing import BinaryIO

import msgspec

from holdfast import content_parts, errors, types
from holdfast.tools import base, worker_thread
from holdfast.tools.files import edit, editor_buffers, images, line_ranges, read_cache, search, workspace, write
from holdfast.tools.permissions import sensitive_paths

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
    editor: editor_buffers.Buffers | None = None,
) -> list[base.Tool]:
    """Reading, writing, editing, finding and searching below these folders; the first is where relative paths begin.

    `off_limits` are files and folders that stay closed even there. `epoch` gives anything that differs when the
    model's view of the conversation has changed: a file is told again, then, though it was read before. An `editor`
    is asked for files before the disk is; finding and searching is done on the disk.
    """
    where, known = workspace.Workspace(roots, off_limits), read_cache.Reads(epoch)
    return [
        _reader(where, known, editor),
        _writer(where, known, editor),
        edit.edit_file(where, known, editor),
        search.find_files(where),
        search.search_files(where),
    ]


def read_file(roots: Sequence[str]) -> base.Tool:
    """Only reading, and each time anew."""
    return _reader(workspace.Workspace(roots), None, None)


class _Looked(msgspec.Struct, frozen=True):
    content: types.Content
    seen: object


def _reader(
    where: workspace.Workspace, known: read_cache.Reads | None, editor: editor_buffers.Buffers | None
) -> base.Tool:
    async def run(arguments: base.Arguments) -> types.Content | base.Plan:
        first, count = arguments.get("from_line", 1), min(arguments.get("lines", LINES), LINES)
        if first < 1 or count < 1:
            raise errors.ToolFailed("`from_line` and `lines` begin at 1.")
        place = where.place(arguments["path"])

        async def look() -> types.Content:
            held = await editor_buffers.held(editor, where, place)
            looked = await worker_thread.stoppable(lambda stop: _look(where, place, (first, count), held, stop))
            return looked.content

        if danger := sensitive_paths.secret(place.parts):
            act = base.Act(tool="read_file", kind="look", summary=f"Read {errors.shown(place.name, 200)}.",
                           paths=(place.path,), danger=danger)  # fmt: skip
            return base.Plan(act, look)
        return await look() if known is None else await _again(where, known, place, (first, count), editor)

    return base.Tool(_READ, run, parallel=True)


async def _again(
    where: workspace.Workspace,
    known: read_cache.Reads,
    place: workspace.Place,
    asked: tuple[int, int],
    editor: editor_buffers.Buffers | None,
) -> types.Content:
    """What is asked for, or where the model has it already. Nothing is noted that the model might not get."""
    now = base.current()
    key = (now.conversation_id, place.path, *asked)
    held = await editor_buffers.held(editor, where, place)
    seen = await worker_thread.stoppable(lambda _: _seen(where, place)) if held is None else _digest(held)
    if (call := known.before(key, seen)) is not None:
        return (
            f"[{place.name} has not changed since it was read in this conversation by the call {call or 'before'}, "
            "with these very lines. If that is not in view any more, `recall` brings it back; or read it once more.]"
        )
    looked = await worker_thread.stoppable(lambda stop: _look(where, place, asked, held, stop))
    known.note(key, looked.seen, now.call_id)
    return looked.content


def _seen(where: workspace.Workspace, place: workspace.Place) -> workspace.Seen:
    with where.reading(place) as file:
        return workspace.seen(os.fstat(file.fileno()))


def _digest(held: bytes) -> object:
    return hashlib.sha256(held).digest()


def _look(
    where: workspace.Workspace,
    place: workspace.Place,
    asked: tuple[int, int],
    held: bytes | None,
    stop: worker_thread.Stop,
) -> _Looked:
    if held is not None:
        return _Looked(_numbered(line_ranges.read(io.BytesIO(held), *asked, stop), len(held)), _digest(held))
    with where.reading(place) as file:
        found = os.fstat(file.fileno())
        beginning = file.read(8192)
        if images.kind(beginning) is not None and (picture := _picture(file, place, found.st_size)) is not None:
            return _Looked(picture, workspace.seen(found))
        if b"\0" in beginning:
            raise errors.ToolFailed(f"{errors.shown(place.parts[-1])} is not a text file.")
        text = _numbered(line_ranges.read(file, *asked, stop), found.st_size)
        # Of before it was read: who changes it meanwhile makes it another file.
        return _Looked(text, workspace.seen(found))


def _numbered(found: line_ranges.Range, size: int) -> str:
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
    found = images.read(data)
    if found is None or len(data) > MAX_PICTURE:
        return None
    if max(found.width, found.height) > MAX_SIDE:
        raise errors.ToolFailed(f"The picture is {found.width} x {found.height}; at most {MAX_SIDE} each can be shown.")
    told = f"[{place.name}: {found.media_type}, {found.width} x {found.height}, {len(data):,} bytes]"
    shown = content_parts.Image(media_type=found.media_type, data=base64.b64encode(data).decode())
    return content_parts.encode([content_parts.Text(told), shown])


def _writer(where: workspace.Workspace, known: read_cache.Reads, editor: editor_buffers.Buffers | None) -> base.Tool:
    async def run(arguments: base.Arguments) -> base.Plan:
        place, content = where.place(arguments["path"]), arguments["content"]

        def changed(old: write.Text | None, _: worker_thread.Stop) -> write.Text:
            given = write.Text(content)
            # A file keeps the way its lines end and how it begins, unless what is written has ways of its own.
            return given if old is None or "\r" in content else given.like(old)

        return await write.planned(where, known, "write_file", place, changed, editor)

    return base.Tool(_WRITE, run)
