"""Syncing the write-ahead log (WAL), which makes acknowledged writes survive a power loss.

With `synchronous=FULL`, SQLite would sync the WAL inside every commit while all other writers wait. The driver commits
first, leaves the writer queue and syncs the WAL before it acknowledges the write. SQLite appends to the WAL and reads
it up to the first invalid frame, so one sync covers every earlier commit of any process. SQLite still syncs the WAL
before it checkpoints.

SQLite holds no POSIX locks on the WAL, so unlike the database file it may be opened and closed at any time.
"""

from __future__ import annotations

import os

from holdfast.store.sqlite import paths

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# On macOS, fsync does not flush the drive's cache.
_FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)
_sync_data = getattr(os, "fdatasync", os.fsync)

SYNC_FAILED = "The disk did not store the last write: it is not acknowledged and may be lost."


def _sync(fd: int) -> None:
    if _FULL_SYNC is not None:
        fcntl.fcntl(fd, _FULL_SYNC)
    else:
        _sync_data(fd)


class Wal:
    """A descriptor of the WAL that the store was opened with; closed when its last user is done.

    After a failed sync the next one may succeed although the kernel dropped the unwritten pages. Recovery would then
    stop at the missing frames, so a `damaged` WAL is checkpointed and truncated before the next write.
    """

    def __init__(self, path: str, inode: paths.Inode) -> None:
        self.damaged = False
        self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self._path, self._inode = path, inode
        self._link = f"/proc/self/fd/{self._fd}"
        name, found = self._read_link(), os.fstat(self._fd)
        # Trusted only if the file was still at the path after its name was read.
        self._name = name if (found.st_ino, found.st_dev) == inode == paths.inode(path) else None
        paths.sync(os.path.dirname(path))  # makes the names of new files durable
        self.sync()

    def sync(self) -> bool:
        """Sync; return whether everything committed so far survives a power loss."""
        try:
            _sync(self._fd)
        except OSError:
            self.damaged = True
        return not self.damaged

    def is_in_place(self) -> bool:
        """Return whether the file at the path is still the one that was opened.

        On Linux, compare the descriptor's name in /proc: since Linux 6.13, a stat makes the next write update the
        timestamp, so that the sync must also write the inode.
        """
        if self._name is not None:
            return self._read_link() == self._name
        return paths.inode(self._path) == self._inode

    def _read_link(self) -> str | None:
        try:
            return os.readlink(self._link)
        except OSError:
            return None

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)
