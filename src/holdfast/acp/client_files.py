"""The tools for files in a session of an editor: what it has open is read and written through it.

So a model sees what its user sees, saved or not, and a change shows up where the user works. Where files may lie is
decided here as everywhere; the editor is never asked for one that is outside.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from acp import schema

from holdfast import errors
from holdfast.acp import client as editors
from holdfast.acp import client_requests
from holdfast.tools import base
from holdfast.tools.files import file_tools, workspace


def tools(
    conn: editors.Client,
    session_id: str,
    capabilities: schema.ClientCapabilities | None,
    roots: Sequence[str | os.PathLike[str]],
    *,
    off_limits: Sequence[str] = (),
    epoch: Callable[[], object] = lambda: None,
) -> list[base.Tool]:
    """All tools for files below these folders, as the editor spells them; the first is where relative paths begin."""
    offered = (capabilities.fs if capabilities else None) or schema.FileSystemCapabilities()
    folders = [os.fspath(root) for root in roots]
    editor = Editor(conn, session_id, folders, bool(offered.read_text_file), bool(offered.write_text_file))
    return file_tools.file_tools(folders, off_limits=off_limits, epoch=epoch, editor=editor if editor.offers else None)


class Editor:
    """The files of one session. What it does not offer is left to the disk."""

    def __init__(self, conn: editors.Client, session_id: str, roots: Sequence[str], reads: bool, writes: bool) -> None:
        self._conn, self._session_id, self._reads, self._writes = conn, session_id, reads, writes
        # An editor may know a folder by a link, and has its files under that name.
        self._spelled = {os.path.realpath(root): os.path.abspath(root) for root in reversed(roots)}

    @property
    def offers(self) -> bool:
        return self._reads or self._writes

    async def read(self, place: workspace.WorkspacePath, there: bool) -> str | None:
        if not self._reads:
            return None
        asked = self._conn.read_text_file(path=self._path(place), session_id=self._session_id)
        try:
            text = (await client_requests.answered(asked)).content
        except client_requests.NotOffered:
            self._reads = False
            return None
        except errors.ToolFailed:
            if there:
                raise
            return None  # The disk has no such file either, and says so in our own words.
        # Some say that a file that is not there is empty.
        return text if there or text else None

    async def write(self, place: workspace.WorkspacePath, text: str) -> bool:
        if not self._writes:
            return False
        asked = self._conn.write_text_file(path=self._path(place), content=text, session_id=self._session_id)
        try:
            await client_requests.answered(asked)
        except client_requests.NotOffered:
            self._writes = False
            return False
        return True

    def _path(self, place: workspace.WorkspacePath) -> str:
        return os.path.join(self._spelled[place.root], *place.parts)
