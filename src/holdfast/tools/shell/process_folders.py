"""The folders of background processes: each is labelled with its database, and is deleted some time after the end.

Several databases may have their processes in one home. A folder is labelled after its process is in the database, and
cleaning up lists the folders before it reads the database. So a labelled process that is not in the database was
deleted with its conversation, and has not just been started.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from holdfast import types
from holdfast.tools.shell import supervisor_client

KEEP = 7 * 86_400.0
"""Seconds for which the folder of an ended process is kept."""
_SIGNED = "book"


def within(home: str) -> str:
    """Return where the folders are, in the home of the program."""
    return os.path.join(home, "processes")


def signature(database: str) -> str:
    """Return the label of folders whose processes are in this database; empty for an in-memory database."""
    if database == ":memory:":
        return ""
    path = database if "://" in database else os.path.realpath(database)
    return blake2b(path.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def sign(folder: str, book: str) -> None:
    """Label a folder with its database. A folder without a label is kept for the full time."""
    if book:
        with contextlib.suppress(OSError), open(os.path.join(folder, _SIGNED), "x", encoding="ascii") as file:
            file.write(book)


class Folder(NamedTuple):
    """A folder, as listed before the database was read."""

    id: str
    path: str
    book: str


def seen(home: str) -> list[Folder]:
    """Return all folders."""
    try:
        with os.scandir(home) as entries:
            found = [(entry.name, entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [Folder(name, path, _book(path)) for name, path in found]


def tidied(found: Sequence[Folder], book: str, every: Sequence[types.Process], keep: float = KEEP) -> int:
    """Delete expired folders and return their number. `every` are all processes of the database, read afterwards.

    They go a while after the end; at once where the process was redacted, or is gone with its conversation.
    """
    known = {process.id: process for process in every}
    removed = 0
    for folder in found:
        row = known.get(folder.id)
        unwanted = not row.command if row else bool(book) and folder.book == book
        ended = row is None or row.state != "running"
        # A process whose conversation was deleted has no row, and may still run.
        if (
            ended
            and (unwanted or _changed(folder.path) < time.time() - keep)
            and not supervisor_client.tell(folder.path)
        ):
            shutil.rmtree(folder.path, ignore_errors=True)
            removed += not os.path.lexists(folder.path)
    return removed


def _book(folder: str) -> str:
    try:
        with open(os.path.join(folder, _SIGNED), encoding="ascii", errors="replace") as file:
            return file.read(100)
    except OSError:
        return ""


def _changed(folder: str) -> float:
    """Return when the last file was created or renamed, which is at the end of the process."""
    try:
        return os.lstat(folder).st_mtime
    except OSError:
        return time.time()


def last_sign(folder: str) -> float:
    """Return when a file was last written; 0 if there is no folder."""
    try:
        paths = [folder, *(os.path.join(folder, name) for name in os.listdir(folder))]
        return max(os.lstat(path).st_mtime for path in paths)
    except OSError:
        return 0.0
