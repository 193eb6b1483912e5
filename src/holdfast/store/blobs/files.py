"""A folder of immutable files, each named by the digest of what is in it.

What a name says can be checked at any time, and the same content is kept once. Which of the files are
wanted is not known here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterator
from hashlib import blake2b
from typing import BinaryIO, Literal, NamedTuple

from holdfast import errors
from holdfast.store import fault_points
from holdfast.store.backup import atomic_file
from holdfast.store.driver import Tx
from holdfast.store.sqlite import paths as sqlite_paths

CHUNK = 1024 * 1024
NAME = "blob"
DIGEST = re.compile(r"[0-9a-f]{64}")
# Never through a link, and never waiting for the other end of a pipe: a folder may come from anywhere.
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class Draft(NamedTuple):
    """Content that is on the disk and not yet on the shelf."""

    temp: str
    digest: str
    size: int


class Shelf:
    """The files of one store, of one backup or of one export."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def path(self, digest: str) -> str:
        return os.path.join(self.folder, digest[:2], digest[2:])

    def draft(self, source: BinaryIO) -> Draft:
        """Write content down under a name of its own, and learn its digest."""
        sqlite_paths.make(self.folder)
        temp, digest, size = atomic_file.create(self.folder, NAME), blake2b(digest_size=32), 0
        try:
            with open(temp, "wb") as file:
                while part := source.read(CHUNK):
                    file.write(part)
                    digest.update(part)
                    size += len(part)
            atomic_file.sync(temp)
            fault_points.reach("blob", "drafted")
        except BaseException:
            atomic_file.discard(temp)
            raise
        return Draft(temp, digest.hexdigest(), size)

    def put(self, draft: Draft, tx: Tx | None = None) -> None:  # noqa: ARG002
        """Onto the shelf, in the place of what may be there: the name says it is the same, or it is damaged.

        A shelf in the database does it in that transaction; files know none.
        """
        path = self.path(draft.digest)
        sqlite_paths.make(os.path.dirname(path))
        try:
            os.replace(draft.temp, path)
        except FileNotFoundError:
            if not os.path.exists(path):  # a step that runs again finds it done
                raise
        fault_points.reach("blob", "renamed")
        atomic_file.sync(os.path.dirname(path))
        atomic_file.sync(self.folder)
        fault_points.reach("blob", "kept")

    def has(self, digest: str, tx: Tx | None = None) -> bool:  # noqa: ARG002
        """Whether something is kept under this name, sound or not."""
        return os.path.exists(self.path(digest))

    def open(self, digest: str) -> BinaryIO:
        """The content, known to be what the name says."""
        file = self.raw(digest)
        try:
            found = _digest(file)
            if found != digest:
                raise errors.BlobDamaged(digest)
            file.seek(0)
        except BaseException:
            file.close()
            raise
        return file

    def raw(self, digest: str) -> BinaryIO:
        """The file of this name, whatever is in it."""
        path = self.path(digest)
        if os.path.islink(os.path.dirname(path)):
            raise errors.BlobDamaged(digest)
        try:
            fd = os.open(path, _FLAGS)
        except FileNotFoundError:
            raise errors.NotFound("blob", digest) from None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise errors.BlobDamaged(digest) from None
            raise
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise errors.BlobDamaged(digest)
        return os.fdopen(fd, "rb")

    def state(self, digest: str) -> Literal["sound", "missing", "damaged"]:
        try:
            self.open(digest).close()
        except errors.NotFound:
            return "missing"
        except (errors.BlobDamaged, OSError):
            return "damaged"
        return "sound"

    def copy_from(self, other: Shelf, digest: str, near: Shelf | None = None) -> bool:
        """The same file here, synced; from a neighbour by a second name if that has it. Whether it could be had."""
        if self.has(digest) and self.state(digest) == "sound":
            return True
        if near is not None and self._linked(near, digest):
            return True
        try:
            with other.raw(digest) as source:
                draft = self.draft_of(source, digest)
        except (errors.NotFound, errors.BlobDamaged):
            return False
        try:
            self.put(draft)
        finally:
            atomic_file.discard(draft.temp)  # where it was not moved, it was copied
        return True

    def draft_of(self, source: BinaryIO, digest: str) -> Draft:
        """A draft of what should be this content; BlobDamaged when it is not."""
        draft = self.draft(source)
        if draft.digest != digest:
            atomic_file.discard(draft.temp)
            raise errors.BlobDamaged(digest)
        return draft

    def _linked(self, near: Shelf, digest: str) -> bool:
        if near.state(digest) != "sound":
            return False
        sqlite_paths.make(os.path.dirname(self.path(digest)))
        with contextlib.suppress(OSError):
            os.link(near.path(digest), self.path(digest))
        return os.path.exists(self.path(digest))

    def remove(self, digest: str, tx: Tx | None = None) -> None:  # noqa: ARG002
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(digest))
        with contextlib.suppress(OSError):  # others may be in the folder still
            os.rmdir(os.path.dirname(self.path(digest)))

    def keep_only(self, wanted: Collection[str]) -> None:
        """Remove every other file of ours; and the folder, when nothing is left in it."""
        for digest in {digest for digest, _ in self.files()} - set(wanted):
            self.remove(digest)
        with contextlib.suppress(OSError):
            os.rmdir(self.folder)

    def remove_all(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def sweep(self) -> int:
        """Remove drafts of dead processes; how many."""
        return atomic_file.remove_abandoned(self.folder, NAME) if os.path.isdir(self.folder) else 0

    def strays(self, before: float) -> set[str]:
        """Digests that files have which nobody touched since then."""
        return {digest for digest, found in self.files() if found.st_mtime < before}

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Every digest there is a file for."""
        for first in _listed(self.folder):
            inside = os.path.join(self.folder, first)
            for rest in () if len(first) != 2 or os.path.islink(inside) else _listed(inside):
                with contextlib.suppress(FileNotFoundError):
                    if DIGEST.fullmatch(first + rest):
                        yield first + rest, os.lstat(os.path.join(inside, rest))


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _digest(file: BinaryIO) -> str:
    digest = blake2b(digest_size=32)
    while part := file.read(CHUNK):
        digest.update(part)
    return digest.hexdigest()
