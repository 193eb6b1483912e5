"""Files as an editor has them open, with unsaved changes: the editor is asked before the disk.

An editor reads and writes whole text files that fit into one message. Everything else, such as images and files that
are not UTF-8, is read from and written to the disk. The path is checked here first in both cases.
"""

from __future__ import annotations

import os
from typing import Protocol

import msgspec

from holdfast import errors
from holdfast.tools import worker_thread
from holdfast.tools.files import images, workspace

MAX_BYTES = 2_000_000
"""Size of a file that an editor is asked for. As JSON it may take six times as much."""


class EditorBuffers(Protocol):
    """An editor. The caller has made sure that the path is inside the workspace and no link."""

    async def read(self, path: workspace.WorkspacePath, exists: bool, /) -> str | None:
        """Return the content of a file; None to read it from the disk. `exists`: whether it is on the disk.

        Raise ToolFailed if the editor refuses; the disk is not used then.
        """
        ...

    async def write(self, path: workspace.WorkspacePath, text: str, /) -> bool:
        """Write a file; return False to have it written to the disk. Raise ToolFailed if the editor refuses."""
        ...


async def read(editor: EditorBuffers | None, space: workspace.Workspace, path: workspace.WorkspacePath) -> bytes | None:
    """Return the editor's content of a text file; None if it has none."""
    if editor is None:
        return None
    exists = await worker_thread.run_in_thread(lambda _: _exists(space, path))
    if exists is None:
        return None
    text = await editor.read(path, exists)
    try:
        return None if text is None else text.encode()
    except UnicodeEncodeError:
        raise errors.ToolFailed("The text has unpaired surrogates and cannot be read.") from None


async def write(
    editor: EditorBuffers | None, space: workspace.Workspace, path: workspace.WorkspacePath, data: bytes
) -> bool:
    """Have the editor write a file, and return whether it did."""
    if editor is None or not is_suitable(data):
        return False
    await worker_thread.run_in_thread(lambda _: _create_folders(space, path))
    return await editor.write(path, data.decode())


def is_suitable(data: bytes) -> bool:
    """Return whether an editor can hold this content."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return len(data) <= MAX_BYTES


def _exists(space: workspace.Workspace, path: workspace.WorkspacePath) -> bool | None:
    """Return whether the file is on the disk; None if its content is not suitable for an editor."""
    if not os.path.lexists(path.path):
        return False
    with space.open_file(path) as file:
        beginning = file.read(8_192)
        fits = os.fstat(file.fileno()).st_size <= MAX_BYTES
        return True if fits and b"\0" not in beginning and images.media_type(beginning) is None else None


def _create_folders(space: workspace.Workspace, path: workspace.WorkspacePath) -> None:
    """Create missing parent folders, which some editors do not, and check that none has become a link."""
    with space.open_folder(msgspec.structs.replace(path, parts=path.parts[:-1]), create=True):
        pass
