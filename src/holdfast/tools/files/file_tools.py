"""The built-in file tools, for programs that embed an agent."""

from __future__ import annotations

import os
from collections.abc import Sequence

from holdfast.tools import base
from holdfast.tools.files import edit, editor_buffers, file_search, read, workspace, write


def file_tools(
    roots: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = ".",
    *,
    off_limits: Sequence[str] = (),
    editor: editor_buffers.EditorBuffers | None = None,
) -> list[base.Tool]:
    """Return the tools read_file, write_file, edit_file, find_files and search_files.

    `roots`: the folder, or folders, in which files may be read and written. Relative paths start at the first.
    `off_limits`: files and folders inside the roots that stay closed.
    `editor`: an editor that is asked for its unsaved buffers before the disk.
    """
    folders = [roots] if isinstance(roots, str | os.PathLike) else roots
    space = workspace.Workspace([os.fspath(each) for each in folders], off_limits)
    return [
        read.read_file(space, editor),
        write.write_file(space, editor),
        edit.edit_file(space, editor),
        file_search.find_files(space),
        file_search.search_files(space),
    ]
