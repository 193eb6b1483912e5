"""Folders kept in memory, to be laid out again for every kill, and told apart by what is in them.

A process killed at the same point leaves the same bytes most of the time. What holds for some bytes holds for
their equals, so what was left is looked at once for each that differs, though the kills are as many as they are.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple


class _File(NamedTuple):
    name: str
    mode: int
    modified: int
    content: bytes


class Folder:
    """A folder as it was when it was read. Nobody may have a store in it open: reading would cancel SQLite's locks."""

    def __init__(self, folder: Path) -> None:
        entries = sorted(folder.rglob("*"))
        self._folders = [str(entry.relative_to(folder)) for entry in entries if entry.is_dir()]
        self._files = [_read(entry, folder) for entry in entries if entry.is_file()]

    def lay_out(self, at: Path) -> Path:
        """A new folder of the same content."""
        os.mkdir(at, 0o700)
        for name in self._folders:
            os.mkdir(f"{at}/{name}", 0o700)
        for file in self._files:
            fd = os.open(f"{at}/{file.name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, file.mode)
            os.write(fd, file.content)
            # Some files are kept or taken by their age.
            os.utime(fd, ns=(file.modified, file.modified))
            os.close(fd)
        return at


def _read(path: Path, folder: Path) -> _File:
    found = path.stat()
    return _File(str(path.relative_to(folder)), found.st_mode & 0o777, found.st_mtime_ns, path.read_bytes())


def fingerprint(folder: str) -> str:
    """Of all names, modes and contents beneath. Asked of a process that has no store of it open, as above."""
    told = sha256()
    for place, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            path = f"{place}/{name}"
            with open(path, "rb") as file:
                content = file.read()
            told.update(f"{path.removeprefix(folder)}\0{os.stat(path).st_mode}\0{len(content)}\0".encode())
            told.update(content)
        told.update("\0".join([place.removeprefix(folder), *folders, "\n"]).encode())
    return told.hexdigest()
