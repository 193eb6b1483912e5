"""The folders of processes: each is signed with the book its process is in, and goes when nobody may read it any more.

Several books may have their processes in one home. A folder is signed only after its process is in the book, and
whoever tidies reads the folders first and the book second. So a process that is signed for and not in the book was
deleted with its conversation, and never is one that only just began.
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
"""The folder of a process that ended is kept for so long."""
_SIGNED = "book"


def within(home: str) -> str:
    """Where the folders are, in the home of the program."""
    return os.path.join(home, "processes")


def signature(database: str) -> str:
    """What folders of processes are signed with that are in this database; nothing where no other program sees it."""
    if database == ":memory:":
        return ""
    path = database if "://" in database else os.path.realpath(database)
    return blake2b(path.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def sign(folder: str, book: str) -> None:
    """Say in which book the process of this folder is. Unsigned, the folder is kept as long as any."""
    if book:
        with contextlib.suppress(OSError), open(os.path.join(folder, _SIGNED), "x", encoding="ascii") as file:
            file.write(book)


class Folder(NamedTuple):
    """One of them, as it was seen before the book was read."""

    id: str
    path: str
    book: str


def seen(home: str) -> list[Folder]:
    """All there are."""
    try:
        with os.scandir(home) as entries:
            found = [(entry.name, entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [Folder(name, path, _book(path)) for name, path in found]


def tidied(found: Sequence[Folder], book: str, every: Sequence[types.Process], keep: float = KEEP) -> int:
    """Remove those of them that may go; how many. `every` are all processes of the book, read after them.

    They go a while after the end; at once where the process was redacted, or is gone with its conversation.
    """
    known = {process.id: process for process in every}
    removed = 0
    for folder in found:
        row = known.get(folder.id)
        unwanted = not row.command if row else bool(book) and folder.book == book
        ended = row is None or row.state != "running"
        # One whose conversation was deleted has no row any more, and may still be at work.
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
    """When the last file came to it or got its name, which is at the end of its process."""
    try:
        return os.lstat(folder).st_mtime
    except OSError:
        return time.time()


def last_sign(folder: str) -> float:
    """When something was last written there; long ago where there is no folder."""
    try:
        paths = [folder, *(os.path.join(folder, name) for name in os.listdir(folder))]
        return max(os.lstat(path).st_mtime for path in paths)
    except OSError:
        return 0.0
