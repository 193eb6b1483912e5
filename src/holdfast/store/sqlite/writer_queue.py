"""A fair queue of the writers of all processes, by `flock` on a file next to the database.

SQLite's own busy handler is unfair: of eight writers one may wait for seconds while another commits thousands of times.
The queue only orders the writers. SQLite's lock still protects the database, so a process that ignores the queue or
hangs in it costs time but breaks nothing.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from holdfast import errors
from holdfast.store.sqlite import paths

try:
    import fcntl
except ImportError:  # Windows: writers poll SQLite's lock with short random pauses instead.
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")
ResultQueue = SimpleQueue[tuple[Any, BaseException | None]]


class WriterQueue:
    """The place of one store in the queue. The caller orders its own threads by a lock."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = _open(path)
        self._waiter: _Waiter | None = None

    def run(self, timeout: float, work: Callable[..., T], *args: Any) -> T:
        """Run the work at the front of the queue; raise StoreBusy if that is not reached within `timeout` seconds."""
        if fcntl is None:
            return work(*args)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return self._wait(partial(work, *args), timeout)
        try:
            return work(*args)
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._fd)
        if self._waiter is not None:
            self._waiter.stop()
        self._fd, self._waiter = -1, None

    def close_inherited(self) -> None:
        """In a forked child, close the descriptors. The parent keeps its lock until it unlocks or ends."""
        for fd in (self._fd, self._waiter.fd if self._waiter else -1):
            with contextlib.suppress(OSError):  # another thread of the parent may have been closing it
                os.close(fd)
        self._fd, self._waiter = -1, None

    def _wait(self, work: Callable[[], T], timeout: float) -> T:
        waiter = self._waiter = self._waiter or _Waiter(self._path)
        try:
            return waiter.run_with_timeout(work, timeout)
        finally:
            # A waiter whose caller gave up ends when it gets the lock; the next call starts a new one.
            if waiter.abandoned:
                self._waiter = None


class _Waiter(threading.Thread):
    """A thread that waits for the lock and does the work of a caller whose wait is limited; one caller at a time.

    `flock` has no timeout, so it blocks in this thread. The work is done here too: every other writer would wait while
    the caller is woken. The thread has its own descriptor, so a lock that it gets after its caller gave up is not
    mistaken for the lock of a later call.
    """

    def __init__(self, path: str) -> None:
        super().__init__(name="holdfast-writer-queue", daemon=True)
        self.fd = _open(path)
        self._jobs: SimpleQueue[tuple[Callable[[], Any], ResultQueue] | None] = SimpleQueue()
        self._guard = threading.Lock()
        self._begun = False
        self.abandoned = False
        self.start()

    def run_with_timeout(self, work: Callable[[], T], timeout: float) -> T:
        self._begun, outcomes = False, ResultQueue()
        self._jobs.put((work, outcomes))
        try:
            result, error = outcomes.get(timeout=timeout)
        except BaseException as reason:
            with self._guard:
                self.abandoned = not self._begun
            if self.abandoned:
                raise errors.StoreBusy() if isinstance(reason, Empty) else reason from None
            # Even after Ctrl-C, work that has begun is waited for: it uses the caller's connection.
            result, error = outcomes.get()
            if not isinstance(reason, Empty):
                raise
        if error is not None:
            raise error
        done: T = result
        return done

    def stop(self) -> None:
        self._jobs.put(None)

    def run(self) -> None:
        while job := self._jobs.get():
            work, outcomes = job
            fcntl.flock(self.fd, fcntl.LOCK_EX)
            with self._guard:
                self._begun = not self.abandoned
            outcome: tuple[Any, BaseException | None] | None = None
            try:
                outcome = (work(), None) if self._begun else None
            except BaseException as error:  # noqa: BLE001 -- raised in the caller's thread
                outcome = None, error
            # A forked child may have a copy of this descriptor: closing ours alone would not free the lock.
            fcntl.flock(self.fd, fcntl.LOCK_UN)
            if outcome is None:
                break
            outcomes.put(outcome)
        os.close(self.fd)


def _open(path: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
    with paths.translate_open_errors(path):
        return os.open(path, flags, 0o600)
