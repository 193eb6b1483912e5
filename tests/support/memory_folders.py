"""Temporary folders in memory, where syncing costs nothing, and copies of their contents."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple


class _File(NamedTuple):
    name: str
    mode: int
    modified: int
    content: bytes


class SavedFolder:
    """A folder kept in memory. No store in it may be open: reading would cancel SQLite's locks."""

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
    """A digest of all names, modes and contents; no store in the folder may be open."""
    digest = sha256()
    for place, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            path = f"{place}/{name}"
            with open(path, "rb") as file:
                content = file.read()
            digest.update(f"{path.removeprefix(folder)}\0{os.stat(path).st_mode}\0{len(content)}\0".encode())
            digest.update(content)
        digest.update("\0".join([place.removeprefix(folder), *folders, "\n"]).encode())
    return digest.hexdigest()


def shared_memory() -> str | None:
    """A folder in memory, where syncing costs nothing: what a kill leaves behind is the same there."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@contextlib.contextmanager
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir=shared_memory(), prefix="holdfast-") as made:
        yield made
