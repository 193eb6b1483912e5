"""Context files: the project's instructions to agents (`AGENTS.md`), read into the system prompt.

A cloned repository chooses what the file contains, so the file is opened like any file a tool reads: confined to
the project, a regular file, and none that usually holds keys or passwords. The user is notified when a file is used for
the first time in a folder, and again when it changed.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Sequence
from hashlib import blake2b

import msgspec

from holdfast import errors, events
from holdfast.store import async_db
from holdfast.tools.files import workspace
from holdfast.tools.permissions import sensitive_paths

logger = logging.getLogger("holdfast.agent")

NAME = "AGENTS.md"
MAX_CHARACTERS = 32_000


class ContextFile(msgspec.Struct, frozen=True):
    """One context file: its text, or the reason why it is not used."""

    name: str
    path: str
    text: str = ""
    size: int = 0
    """Bytes of the whole file."""
    problem: str = ""

    @property
    def notice(self) -> events.Notice:
        """The notice shown to the user about the file."""
        path = workspace.quote_name(self.path)
        if self.problem:
            return events.Notice(f"{path} is not used: {self.problem}", "warning")
        cut = f", the first {MAX_CHARACTERS:,} characters of it" if self.text.endswith(_CUT) else ""
        return events.Notice(f"Project instructions in use: {path} ({self.size:,} bytes{cut}).")


_CUT = "\n[The file goes on.]"


def read(folder: str, off_limits: Sequence[str] = ()) -> tuple[ContextFile, ...]:
    """Read the nearest context file, from the folder up to the root of its repository; empty if there is none.

    Files that are `off_limits` are not even opened: closing the store's file would cancel the locks SQLite holds on it.
    """
    folders = _folders(os.path.realpath(folder))
    space = workspace.Workspace([folders[-1]], off_limits)
    paths = [path for each in folders if os.path.lexists(path := os.path.join(each, NAME))]
    return tuple(each for each in map(functools.partial(_read, space), paths[:1]) if each.text or each.problem)


def _folders(folder: str) -> list[str]:
    """Return the folder and its parents up to the root of the repository; without a repository, only the folder."""
    above = [folder]
    while not os.path.exists(os.path.join(above[-1], ".git")):
        parent = os.path.dirname(above[-1])
        if parent == above[-1]:
            return [folder]
        above.append(parent)
    return above


def _read(space: workspace.Workspace, path: str) -> ContextFile:
    name = os.path.basename(path)
    try:
        place = space.resolve(os.path.realpath(path))
        if reason := sensitive_paths.secret(place.parts):
            raise errors.NotAllowed(f"it points to {place.name}. {reason}")
        with space.open_file(place) as file:
            size = os.fstat(file.fileno()).st_size
            # UTF-8 encodes a character in at most four bytes.
            text = file.read(4 * MAX_CHARACTERS + 4).decode("utf-8", "replace").strip()
    except errors.HoldfastError as error:
        return ContextFile(name, path, problem=str(error))
    return ContextFile(name, path, text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + _CUT, size)


class Announcements:
    """Context files that the user is still to be notified of: each once per store, and again when it changed."""

    def __init__(self, files: Sequence[ContextFile]) -> None:
        self._files = tuple(files)

    async def emit(self, db: async_db.AsyncSessionDB, emit: Callable[[events.AnyEvent], None]) -> None:
        """Emit a notice for each file that is new to the store, or changed. Later calls do nothing."""
        files, self._files = self._files, ()
        for each in files:
            if await _is_new(db, each):
                # Chats do not show notices; the operator of a gateway finds them in the log.
                logger.log(logging.WARNING if each.problem else logging.INFO, "%s", each.notice.text)
                emit(each.notice)


async def _is_new(db: async_db.AsyncSessionDB, file: ContextFile) -> bool:
    """Record the file's digest; return whether it is new. If the store fails, the file is announced once more."""
    key = f"context_file:{blake2b(os.fsencode(file.path), digest_size=16).hexdigest()}"
    digest = blake2b(f"{file.size}\0{file.problem}\0{file.text}".encode(), digest_size=16).hexdigest()
    try:
        if await db.admin.get_meta(key) == digest:
            return False
        await db.admin.set_meta(key, digest)
    except Exception as error:  # noqa: BLE001 -- an announcement never stops a turn
        logger.warning("could not record that %s was announced: %s", file.path, error)
    return True
