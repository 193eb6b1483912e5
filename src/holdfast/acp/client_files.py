"""The file tools of a session: files are read and written through the editor where it offers that.

The model sees what the user sees, saved or not, and a change appears in the open buffer. The tools check paths as
always; the editor is never asked for a file outside the session's folders.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from acp import schema

from holdfast import errors
from holdfast.acp import client as clients
from holdfast.tools import base
from holdfast.tools.files import file_tools, workspace


def file_tools_for(
    client: clients.ToolClient,
    session_id: str,
    capabilities: schema.ClientCapabilities | None,
    roots: Sequence[str | os.PathLike[str]],
    *,
    off_limits: Sequence[str] = (),
) -> list[base.Tool]:
    """Return the file tools for these folders; relative paths begin at the first."""
    offered = (capabilities.fs if capabilities else None) or schema.FileSystemCapabilities()
    folders = [os.fspath(root) for root in roots]
    buffers = EditorFiles(client, session_id, folders, bool(offered.read_text_file), bool(offered.write_text_file))
    return file_tools.file_tools(folders, off_limits=off_limits, editor=buffers if buffers.is_usable else None)


class EditorFiles:
    """The files of one session. Operations that the editor does not offer use the disk."""

    def __init__(
        self, client: clients.ToolClient, session_id: str, roots: Sequence[str], reads: bool, writes: bool
    ) -> None:
        self._client, self._session_id, self._reads, self._writes = client, session_id, reads, writes
        # The editor may have opened a folder by a symbolic link and knows its files by that path.
        self._spelled = {os.path.realpath(root): os.path.abspath(root) for root in reversed(roots)}

    @property
    def is_usable(self) -> bool:
        return self._reads or self._writes

    async def read(self, place: workspace.WorkspacePath, there: bool) -> str | None:
        """Return the text of a file; None to read it from the disk. `there`: the disk has the file."""
        if not self._reads:
            return None
        response = self._client.read_text_file(path=self._path(place), session_id=self._session_id)
        try:
            text = (await clients.request(response)).content
        except clients.NotOffered:
            self._reads = False
            return None
        except errors.ToolFailed:
            if there:
                raise
            return None
        # Some editors return an empty text for a file that does not exist.
        return text if there or text else None

    async def write(self, place: workspace.WorkspacePath, text: str) -> bool:
        """Write a file; return False if it has to be written to the disk."""
        if not self._writes:
            return False
        response = self._client.write_text_file(path=self._path(place), content=text, session_id=self._session_id)
        try:
            await clients.request(response)
        except clients.NotOffered:
            self._writes = False
            return False
        return True

    def _path(self, place: workspace.WorkspacePath) -> str:
        return os.path.join(self._spelled[place.root], *place.parts)
