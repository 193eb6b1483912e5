"""A disk that can be full, tear a write in two, die in the middle of one, or be written down.

It is a layer between SQLite and the real files, put under every connection this process opens from then
on; so it is used in children of the zygote only. Writes, truncations and syncs are counted together.
"""

from __future__ import annotations

import errno
import os
import signal
from typing import Any, NamedTuple

import apsw

from holdfast.store.sqlite import paths as sqlite_paths
from holdfast.store.sqlite import wal_sync

BENEATH = apsw.vfs_names()[0]


class Touch(NamedTuple):
    """One thing SQLite did to a file: write (with its bytes), truncate (offset is the new size), sync, delete.

    Lost is a sync that failed. The test may put in notes of its own, such as what was acknowledged when.
    """

    kind: str
    file: str
    offset: int
    data: bytes


class Disk(apsw.VFS):
    """Registers itself as the default. `how`: full, torn, quota, unsynced, kill; from touch number `at` on.

    A quota is reported in another way than a full disk: SQLite reports a failed write, the system the reason.
    Or hole: the first sync of the log from there on fails, once, and what it should have kept is gone, though
    readers of the file still see it.
    """

    def __init__(self, *, keep: bool = False) -> None:
        super().__init__("faulty", BENEATH, makedefault=True)
        self.count = 0
        self.at: int | None = None
        self.how = ""
        self.log: list[Touch] | None = [] if keep else None
        # The log is synced by the store itself, past SQLite and this layer.
        self._sync, wal_sync._sync = wal_sync._sync, self._synced  # type: ignore[attr-defined]
        self._fill, sqlite_paths._fill = sqlite_paths._fill, self._filled

    def arm(self, at: int | None, how: str) -> None:
        self.count, self.at, self.how = 0, at, how

    def repair(self) -> None:
        self.at = None

    def xOpen(self, name: Any, flags: list[int]) -> File:  # noqa: N802
        return File(self, name, flags)

    def xDelete(self, name: str, sync: bool) -> None:  # noqa: N802
        if self.log is not None:
            self.log.append(Touch("delete", os.path.basename(name), 0, b""))
        super().xDelete(name, sync)

    def _synced(self, fd: int) -> None:
        name = os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))
        if self.how == "hole" and self.at is not None and self.count >= self.at:
            self.repair()
            self.touched("lost", name)
            raise OSError(errno.EIO, "the disk of this test has a hole")
        if not self.touched("sync", name) and self.how == "unsynced":
            raise OSError(errno.EIO, "the disk of this test does not sync")
        self._sync(fd)

    def _filled(self, fd: int, size: int) -> None:
        """Allocate space, or fail as if a quota were reached."""
        if self.how == "quota" and self.at is not None and self.count > self.at:
            raise OSError(errno.EDQUOT, "the quota of this test is reached")
        self._fill(fd, size)

    def note(self, text: str) -> None:
        if self.log is not None:
            self.log.append(Touch("note", "", 0, text.encode()))

    def touched(self, kind: str, file: str, offset: int = 0, data: bytes = b"") -> bool:
        """Whether it goes through; counts it either way."""
        number, self.count = self.count, self.count + 1
        if self.log is not None:
            self.log.append(Touch(kind, file, offset, data))
        if self.at is None or number < self.at or self.how == "hole":
            return True
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return False


class File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        super().__init__(BENEATH, name, flags)
        self._disk = disk
        self._name = os.path.basename(name.filename() if isinstance(name, apsw.URIFilename) else name or "")

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        disk = self._disk
        if disk.touched("write", self._name, offset, bytes(data)) or disk.how == "unsynced":
            super().xWrite(data, offset)
            return
        if disk.how == "torn":
            super().xWrite(data[: len(data) // 2], offset)
        if disk.how == "quota":
            error = apsw.IOError("the quota of this test is reached")
            error.extendedresult = apsw.SQLITE_IOERR_WRITE
            raise error
        raise apsw.FullError("the disk of this test is full")

    def xTruncate(self, size: int) -> None:  # noqa: N802
        self._disk.touched("truncate", self._name, size)
        super().xTruncate(size)

    def xSync(self, flags: int) -> None:  # noqa: N802
        if not self._disk.touched("sync", self._name) and self._disk.how == "unsynced":
            raise apsw.IOError("the disk of this test does not sync")
        super().xSync(flags)
