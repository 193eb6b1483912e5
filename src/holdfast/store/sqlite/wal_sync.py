"""The write-ahead log on disk: when an acknowledged write is safe from a loss of power.

SQLite would sync its log inside every commit, while everybody else stands in line. Here the commit is
made first, the line goes on, and the log is synced before anything is acknowledged: the log is written
from front to back, so one sync covers all that was committed before it, whoever did that. SQLite itself
still syncs the log before it copies anything from it into the database.

The log bears none of SQLite's locks, so unlike the database file it may be opened and closed at will.
"""

from __future__ import annotations

import os

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# macOS: there fsync stops at the drive's own cache.
_FULL = getattr(fcntl, "F_FULLFSYNC", None)
_sync_data = getattr(os, "fdatasync", os.fsync)


def _sync(fd: int) -> None:
    if _FULL is not None:
        fcntl.fcntl(fd, _FULL)
    else:
        _sync_data(fd)


HOLED = "The disk did not take the last write: it is not acknowledged and may be lost."


class Log:
    """A descriptor of the log as it was when the database was opened; closed when nobody uses it any more.

    A sync that failed may succeed the next time and yet have lost something: a hole, at which the log ends
    when it is read after a loss of power. A log with a hole (`holed`) is not built on, it is emptied first.
    """

    def __init__(self, path: str) -> None:
        self.holed = False
        self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        _sync_directory(os.path.dirname(path))
        self.synced()

    def synced(self) -> bool:
        """Whether everything committed so far survives a loss of power."""
        try:
            _sync(self._fd)
        except OSError:
            self.holed = True
        return not self.holed

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)


def _sync_directory(folder: str) -> None:
    """The names of new files must survive as well as what is in them."""
    if os.name != "posix":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
