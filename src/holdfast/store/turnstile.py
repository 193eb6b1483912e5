"""A fair queue of writers over all processes of a machine.

SQLite's own waiting starves: of eight writers one may wait for seconds while another commits thousands
of times. Writers therefore stand in line on a lock file beside the database before they begin. The line
is a courtesy and no safeguard: SQLite's lock decides, so a stuck or foreign process costs time only.
"""

from __future__ import annotations

import os
import threading
from queue import Empty, SimpleQueue

from holdfast import errors

try:
    import fcntl
except ImportError:  # Windows: writers fall back to the driver's short random waits.
    fcntl = None  # type: ignore[assignment]


class Turnstile:
    """One place in line for this SessionDB; its own threads are ordered by the driver's lock."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = _open(path)
        self._held = -1
        self._waiter: _Waiter | None = None

    def enter(self, timeout: float) -> None:
        """Come to the front, or raise StoreBusy when that takes longer."""
        if fcntl is None:
            return
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._held = self._fd
        except BlockingIOError:
            self._held = self._wait(timeout)

    def leave(self) -> None:
        if fcntl is not None and self._held >= 0:
            fcntl.flock(self._held, fcntl.LOCK_UN)
            self._held = -1

    def close(self) -> None:
        self.leave()
        os.close(self._fd)
        if self._waiter:
            self._waiter.dismiss()

    def _wait(self, timeout: float) -> int:
        waiter = self._waiter or _Waiter(self._path)
        self._waiter = waiter
        if waiter.wait(timeout):
            return waiter.fd
        # It stays in line until it gets through, lets go at once and ends; the next wait has a new one.
        self._waiter = None
        raise errors.StoreBusy()


class _Waiter(threading.Thread):
    """Blocks on the lock on behalf of a caller that must not block for ever: flock knows no timeout.

    It has a descriptor of its own, so a lock it gets after its caller gave up is nobody else's.
    """

    def __init__(self, path: str) -> None:
        super().__init__(name="holdfast-turnstile", daemon=True)
        self.fd = _open(path)
        self._asked: SimpleQueue[bool] = SimpleQueue()
        self._granted: SimpleQueue[bool] = SimpleQueue()
        self._guard = threading.Lock()
        self._given_up = False
        self.start()

    def wait(self, timeout: float) -> bool:
        self._asked.put(True)
        try:
            return self._granted.get(timeout=timeout)
        except Empty:
            with self._guard:
                self._given_up = self._granted.empty()
            return not self._given_up and self._granted.get()

    def dismiss(self) -> None:
        self._asked.put(False)

    def run(self) -> None:
        while self._asked.get():
            fcntl.flock(self.fd, fcntl.LOCK_EX)
            with self._guard:
                if self._given_up:
                    break
                self._granted.put(True)
        os.close(self.fd)


def _open(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0), 0o600)
