"""A folder of immutable files (or rows of a table), each named by the digest of its content.

The content can be verified against its name at any time, and equal content is stored once. The database knows which
of the files are referenced.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import tempfile
import weakref
from collections.abc import Collection, Iterator
from hashlib import blake2b
from typing import BinaryIO, Literal, NamedTuple, cast

from holdfast import errors, fault_points
from holdfast.store.backup import atomic_file
from holdfast.store.driver import Driver, Tx
from holdfast.store.sqlite import paths as sqlite_paths

CHUNK_BYTES = 1024 * 1024
# The size of a row of BlobTables, and of the content that is read into memory.
PART_BYTES = 256 * 1024
MAX_MEMORY_BYTES = 8 * 1024 * 1024
NAME = "blob"
DIGEST_PATTERN = re.compile(r"[0-9a-f]{64}")
# Do not follow links or wait for a pipe: a folder may come from an untrusted source.
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class StagedBlob(NamedTuple):
    """Content in a temporary file."""

    temp: str
    digest: str
    size: int


class BlobFiles:
    """The attachments of one store, backup or export. Without a folder, they are removed with this object."""

    def __init__(self, folder: str | None = None) -> None:
        self.folder = folder or tempfile.mkdtemp(prefix="holdfast-blobs-")
        if folder is None:
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def path(self, digest: str) -> str:
        return os.path.join(self.folder, digest[:2], digest[2:])

    def stage(self, source: BinaryIO) -> StagedBlob:
        """Write content to a temporary file and compute its digest."""
        sqlite_paths.make_directory(self.folder)
        temp, digest, size = atomic_file.create(self.folder, NAME), blake2b(digest_size=32), 0
        try:
            with open(temp, "wb") as file:
                while part := source.read(CHUNK_BYTES):
                    file.write(part)
                    digest.update(part)
                    size += len(part)
            sqlite_paths.sync(temp)
            fault_points.reach("blob", "drafted")
        except BaseException:
            atomic_file.discard(temp)
            raise
        return StagedBlob(temp, digest.hexdigest(), size)

    def put(self, staged: StagedBlob, tx: Tx | None = None) -> None:  # noqa: ARG002
        """Move staged content into place. A file that is there has the same content, or is damaged.

        BlobTables writes in the transaction; files ignore it.
        """
        path = self.path(staged.digest)
        sqlite_paths.make_directory(os.path.dirname(path))
        try:
            os.replace(staged.temp, path)
        except FileNotFoundError:
            if not os.path.exists(path):  # The driver may run a step again.
                raise
        fault_points.reach("blob", "renamed")
        sqlite_paths.sync(os.path.dirname(path))
        sqlite_paths.sync(self.folder)
        fault_points.reach("blob", "kept")

    def has(self, digest: str, tx: Tx | None = None) -> bool:  # noqa: ARG002
        """Return whether there is content under this digest, valid or not."""
        return os.path.exists(self.path(digest))

    def open(self, digest: str) -> BinaryIO:
        """Open the content after verifying its digest. Raises NotFound or BlobDamaged."""
        file = self.open_unverified(digest)
        try:
            if _digest(file) != digest:
                raise errors.BlobDamaged(digest)
            file.seek(0)
        except BaseException:
            file.close()
            raise
        return file

    def open_unverified(self, digest: str) -> BinaryIO:
        """Open the file of this name. Raises NotFound, and BlobDamaged for a link or anything but a regular file."""
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

    def copy_from(self, other: BlobFiles, digest: str, link_from: BlobFiles | None = None) -> bool:
        """Copy a file, or hard-link it from an earlier backup. Return False when it is missing or damaged."""
        if self.state(digest) == "sound":
            return True
        if link_from is not None and self._link(link_from, digest):
            return True
        try:
            with other.open_unverified(digest) as source:
                staged = self.stage_as(source, digest)
        except (errors.NotFound, errors.BlobDamaged):
            return False
        try:
            self.put(staged)
        finally:
            atomic_file.discard(staged.temp)  # BlobTables copies it.
        return True

    def stage_as(self, source: BinaryIO, digest: str) -> StagedBlob:
        """Stage content that must have this digest. Raises BlobDamaged when it differs."""
        staged = self.stage(source)
        if staged.digest != digest:
            atomic_file.discard(staged.temp)
            raise errors.BlobDamaged(digest)
        return staged

    def _link(self, link_from: BlobFiles, digest: str) -> bool:
        if link_from.state(digest) != "sound":
            return False
        sqlite_paths.make_directory(os.path.dirname(self.path(digest)))
        with contextlib.suppress(OSError):
            os.link(link_from.path(digest), self.path(digest))
        return os.path.exists(self.path(digest))

    def remove(self, digest: str, tx: Tx | None = None) -> None:  # noqa: ARG002
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(digest))
        with contextlib.suppress(OSError):  # Another file may be in the folder.
            os.rmdir(os.path.dirname(self.path(digest)))

    def keep_only(self, wanted: Collection[str]) -> None:
        """Remove the other files, and the folder when it is empty."""
        for digest in {digest for digest, _ in self.files()} - set(wanted):
            self.remove(digest)
        with contextlib.suppress(OSError):
            os.rmdir(self.folder)

    def remove_abandoned(self) -> int:
        """Remove the temporary files of dead processes; return how many."""
        return atomic_file.remove_abandoned(self.folder, NAME) if os.path.isdir(self.folder) else 0

    def find_older(self, before: float) -> set[str]:
        """Return the digests of files that were last modified before this time."""
        return {digest for digest, found in self.files() if found.st_mtime < before}

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        for first in _list(self.folder):
            inside = os.path.join(self.folder, first)
            for rest in () if len(first) != 2 or os.path.islink(inside) else _list(inside):
                with contextlib.suppress(FileNotFoundError):
                    if DIGEST_PATTERN.fullmatch(first + rest):
                        yield first + rest, os.lstat(os.path.join(inside, rest))


class BlobTables(BlobFiles):
    """Attachments in tables of the database, for hosts that share no disk.

    The content of an attachment is split into rows, which are written and deleted in the transaction of their blob.
    Staged content is in a temporary file of this process.
    """

    def __init__(self, driver: Driver) -> None:
        super().__init__()
        self._driver = driver

    def put(self, staged: StagedBlob, tx: Tx | None = None) -> None:
        if tx is None:
            self._driver.write("blob", lambda own: self.put(staged, own))
            return
        tx.run("parts_delete", digest=staged.digest)
        with open(staged.temp, "rb") as file:
            for number, part in enumerate(iter(lambda: file.read(PART_BYTES), b"")):
                tx.run("part_insert", digest=staged.digest, part=number, content=part)
            if not os.fstat(file.fileno()).st_size:
                tx.run("part_insert", digest=staged.digest, part=0, content=b"")
        fault_points.reach("blob", "kept")

    def has(self, digest: str, tx: Tx | None = None) -> bool:
        if tx is None:
            return self._driver.read(lambda own: self.has(digest, own))
        return tx.one("part_get", digest=digest, part=0) is not None

    def open_unverified(self, digest: str) -> BinaryIO:
        found = tempfile.SpooledTemporaryFile(MAX_MEMORY_BYTES)  # noqa: SIM115 -- the caller closes it
        try:
            if not self._driver.read(lambda tx: self._read(tx, digest, found)):
                raise errors.NotFound("blob", digest)
            found.seek(0)
        except BaseException:
            found.close()
            raise
        return cast("BinaryIO", found)

    def _read(self, tx: Tx, digest: str, into: tempfile.SpooledTemporaryFile[bytes]) -> int:
        number = 0
        while row := tx.one("part_get", digest=digest, part=number):
            into.write(row[0])
            number += 1
        return number

    def remove(self, digest: str, tx: Tx | None = None) -> None:
        if tx is None:
            self._driver.write("blob", lambda own: self.remove(digest, own))
            return
        tx.run("parts_delete", digest=digest)

    def find_older(self, before: float) -> set[str]:  # noqa: ARG002
        """Return the digests of contents without a blob: their age does not matter, as rows are transactional."""
        return {row[0] for row in self._driver.read(lambda tx: tx.all("parts_strays"))}


def _list(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _digest(file: BinaryIO) -> str:
    digest = blake2b(digest_size=32)
    while part := file.read(CHUNK_BYTES):
        digest.update(part)
    return digest.hexdigest()
