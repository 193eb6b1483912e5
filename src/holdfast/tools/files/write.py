"""The tool write_file, and the plan for changing a file: a diff to approve, applied only if the file is unchanged."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from holdfast import errors, types
from holdfast.tools import base, worker_thread
from holdfast.tools.files import diff, editor_buffers, workspace
from holdfast.tools.permissions import sensitive_paths

MAX_BYTES = 10_000_000
_BOM = "\ufeff"

_SPEC = types.ToolSpec(
    "write_file",
    "Write a whole text file of the project: create it, with missing folders, or replace it. To change a part of a "
    "file, use edit_file.",
    {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The file, relative to the project's folder or absolute."},
            "content": {"type": "string", "description": "The complete content."},
        },
        "required": ["path", "content"],
    },
)


class FileText(msgspec.Struct, frozen=True):
    """The text of a file without its byte order mark. Invalid UTF-8 is kept as surrogate escapes."""

    text: str
    has_bom: bool = False

    def in_style_of(self, old: FileText) -> FileText:
        """Return the text with the byte order mark of the old one, and its line ends if all are CRLF."""
        ends = old.text.count("\n")
        crlf = ends and old.text.count("\r\n") == ends
        text = self.text.removeprefix(_BOM)
        return FileText(text.replace("\n", "\r\n") if crlf else text, old.has_bom or text != self.text)

    def encode(self) -> bytes:
        try:
            return (_BOM * self.has_bom + self.text).encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise errors.ToolFailed("The text has unpaired surrogates and cannot be written.") from None


def decode(data: bytes) -> FileText:
    text = data.decode("utf-8", "surrogateescape")
    return FileText(text.removeprefix(_BOM), text.startswith(_BOM))


class FileSnapshot(msgspec.Struct, frozen=True):
    """The content of a file before a change."""

    data: bytes
    version: workspace.FileVersion | None
    """None: the file exists only in an editor so far."""


Transform = Callable[[FileText | None, worker_thread.Stop], FileText]
"""Compute the new text of a file from the old one, None if there is none. May raise any error once stopped."""


class FileChange(msgspec.Struct, frozen=True):
    """A change that is ready to be applied."""

    before: FileSnapshot | None
    data: bytes
    diff: str
    added: int
    removed: int
    creates_folders: bool = False


def write_file(space: workspace.Workspace, editor: editor_buffers.EditorBuffers | None = None) -> base.Tool:
    """Build the tool that writes whole files."""

    async def run(arguments: base.Arguments) -> base.Plan:
        path, content = space.resolve(arguments["path"]), arguments["content"]

        def replace(old: FileText | None, _: worker_thread.Stop) -> FileText:
            new = FileText(content)
            # A file keeps its line ends and byte order mark, unless the new content has line ends of its own.
            return new if old is None or "\r" in content else new.in_style_of(old)

        return await plan_change(space, "write_file", path, replace, editor)

    return base.Tool(_SPEC, run)


async def plan_change(
    space: workspace.Workspace,
    tool: str,
    path: workspace.WorkspacePath,
    transform: Transform,
    editor: editor_buffers.EditorBuffers | None = None,
) -> base.Plan:
    """Return the plan of a change: its diff, and the function that applies it."""
    space.check_writable(path)
    before = await _snapshot(space, path, editor)
    change = await worker_thread.run_in_thread(lambda stop: prepare(path, before, transform, stop))

    async def go() -> types.Content:
        if editor is None:
            await worker_thread.run_in_thread(lambda stop: _apply(space, path, change, stop))
        else:
            await _apply_in_editor(editor, space, path, change)
        return _report(path, change)

    return base.Plan(_describe(tool, path, change), go)


async def _snapshot(
    space: workspace.Workspace, path: workspace.WorkspacePath, editor: editor_buffers.EditorBuffers | None
) -> FileSnapshot | None:
    """Return the file as the editor has it, otherwise as it is on the disk."""
    found = await worker_thread.run_in_thread(lambda _: snapshot(space, path))
    if editor is None or (found is not None and not editor_buffers.is_suitable(found.data)):
        return found
    data = await editor_buffers.read(editor, space, path)
    return found if data is None else FileSnapshot(data, found.version if found else None)


def prepare(
    path: workspace.WorkspacePath, before: FileSnapshot | None, transform: Transform, stop: worker_thread.Stop
) -> FileChange:
    """Compute a change. Raise ToolFailed if it was cancelled."""
    if before is not None and before.version is not None and not before.version.mode & 0o222:
        raise errors.ToolFailed("The file is read-only.")
    old = None if before is None else _decode_text(before.data)
    check_cancelled(stop)
    new = transform(old, stop)
    check_cancelled(stop)
    data = new.encode()
    if before is not None and data == before.data:
        raise errors.ToolFailed("Nothing would change: the file already has this content.")
    if len(data) > MAX_BYTES:
        raise errors.ToolFailed(f"The new content has {len(data):,} bytes; the limit is {MAX_BYTES:,}.")
    difference = diff.unified(old.text if old else "", new.text)
    return FileChange(before, data, *difference, not os.path.isdir(os.path.dirname(path.path)))


def check_cancelled(stop: worker_thread.Stop) -> None:
    """Raise ToolFailed if the call was cancelled."""
    if stop():
        raise errors.ToolFailed("Cancelled; nothing was written.")


def snapshot(space: workspace.Workspace, path: workspace.WorkspacePath) -> FileSnapshot | None:
    """Read a whole file from the disk; None if it does not exist."""
    if not os.path.lexists(path.path):
        return None
    with space.open_file(path) as file:
        found = os.fstat(file.fileno())
        if found.st_size > MAX_BYTES:
            raise errors.ToolFailed(f"The file has {found.st_size:,} bytes; the limit is {MAX_BYTES:,}.")
        return FileSnapshot(file.read(MAX_BYTES + 1), workspace.file_version(found))


def _decode_text(data: bytes) -> FileText:
    if b"\0" in data[:8192]:
        raise errors.ToolFailed("This is not a text file.")
    return decode(data)


def _apply(
    space: workspace.Workspace, path: workspace.WorkspacePath, change: FileChange, stop: worker_thread.Stop
) -> None:
    """Write the file if it is still the version that the plan has shown: only that was approved."""
    now = snapshot(space, path)
    if now != change.before:
        raise errors.ToolFailed(workspace.CHANGED)
    check_cancelled(stop)
    space.write(path, change.data, None if now is None else now.version)


async def _apply_in_editor(
    editor: editor_buffers.EditorBuffers,
    space: workspace.Workspace,
    path: workspace.WorkspacePath,
    change: FileChange,
) -> None:
    """Like `_apply`, through the editor if it accepts the file. The editor may have saved its buffer meanwhile."""
    now = await _snapshot(space, path, editor)
    if (now and now.data) != (change.before and change.before.data):
        raise errors.ToolFailed(workspace.CHANGED)
    if not await editor_buffers.write(editor, space, path, change.data):
        version = now.version if now else None
        await worker_thread.run_in_thread(lambda _: space.write(path, change.data, version))


def _describe(tool: str, path: workspace.WorkspacePath, change: FileChange) -> base.Act:
    verb = "Write the new file" if change.before is None else "Change"
    folders = ", and the folders it needs" if change.creates_folders else ""
    return base.Act(
        tool=tool,
        kind="change",
        summary=f"{verb} {errors.quote(path.name, 200)}{folders} (+{change.added} -{change.removed} lines).",
        detail=change.diff,
        paths=(path.path,),
        danger=sensitive_paths.steering(path.parts)
        or sensitive_paths.repository(path.parts, lambda name: os.path.lexists(os.path.join(path.root, name))),
    )


def _report(path: workspace.WorkspacePath, change: FileChange) -> str:
    verb = "Written" if change.before is None else "Changed"
    shown = change.diff if change.before and len(change.diff) <= 4_000 else ""
    return f"{verb}: {path.name} (+{change.added} -{change.removed} lines)." + (f"\n{shown}" if shown else "")
