"""A fair queue of writers over all processes of a machine.

SQLite's own waiting starves: of eight writers one may wait for seconds while another commits thousands
of times. Writers therefore stand in line on a lock file beside the database before they begin. The line
is a courtesy and no safeguard: SQLite's lock decides, so a stuck or foreign process costs time only.
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
from holdfast.store.sqlite import paths as sqlite_paths

try:
    import fcntl
except ImportError:  # Windows: writers fall back to the driver's short random waits.
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")


class Turnstile:
    """One place in line for this SessionDB; its own threads are ordered by the driver's lock."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = _open(path)
        self._waiter: _Waiter | None = None

    def run(self, timeout: float, work: Callable[..., T], *args: Any) -> T:
        """Do the work at the front of the line; StoreBusy when it takes longer to get there."""
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
            self._waiter.dismiss()
        self._fd, self._waiter = -1, None

    def _wait(self, work: Callable[[], T], timeout: float) -> T:
        waiter = self._waiter = self._waiter or _Waiter(self._path)
        try:
            return waiter.run_for(work, timeout)
        finally:
            # One whose caller gave up stays in line until it gets through, and ends; the next gets a new one.
            if waiter.abandoned:
                self._waiter = None

    def let_go(self) -> None:
        """In a forked child: close what was inherited. That leaves the parent its lock, and keeps none alive."""
        for fd in (self._fd, self._waiter.fd if self._waiter else -1):
            with contextlib.suppress(OSError):  # another thread of the parent may have been closing it
                os.close(fd)
        self._fd, self._waiter = -1, None


class _Job:
    """Work handed to the waiter: begun only if its caller still waits, and then always awaited."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.begun = False
        self.given_up = False
        self.done: SimpleQueue[bool] = SimpleQueue()
        self.result: Any = None
        self.error: BaseException | None = None


class _Waiter(threading.Thread):
    """Waits for the lock, and then works, on behalf of a caller that must not wait for ever.

    flock knows no timeout, so a thread of its own blocks on it. The work is done in this thread too: to
    wake the caller first would let everybody in line wait for that. It has a descriptor of its own, so a
    lock it gets after its caller gave up is nobody else's.
    """

    def __init__(self, path: str) -> None:
        super().__init__(name="holdfast-turnstile", daemon=True)
        self.fd = _open(path)
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._guard = threading.Lock()
        self.abandoned = False
        self.start()

    def run_for(self, work: Callable[[], T], timeout: float) -> T:
        job = _Job(work)
        self._jobs.put(job)
        try:
            job.done.get(timeout=timeout)
        except BaseException as reason:
            # Not even Ctrl-C may leave work running that nobody waits for: it uses the caller's connection.
            if self._gave_up(job):
                raise errors.StoreBusy() if isinstance(reason, Empty) else reason from None
            job.done.get()
            if not isinstance(reason, Empty):
                raise
        if job.error is not None:
            raise job.error
        result: T = job.result
        return result

    def _gave_up(self, job: _Job) -> bool:
        with self._guard:
            self.abandoned = job.given_up = not job.begun
            return job.given_up

    def dismiss(self) -> None:
        self._jobs.put(None)

    def run(self) -> None:
        while job := self._jobs.get():
            fcntl.flock(self.fd, fcntl.LOCK_EX)
            with self._guard:
                job.begun = not job.given_up
            if not job.begun:
                # A forked child may have a copy of this descriptor: closing ours alone would not free the lock.
                fcntl.flock(self.fd, fcntl.LOCK_UN)
                break
            self._work(job)
        os.close(self.fd)

    def _work(self, job: _Job) -> None:
        try:
            job.result = job.work()
        except BaseException as error:  # noqa: BLE001 -- it is the caller's, and raised there
            job.error = error
        finally:
            fcntl.flock(self.fd, fcntl.LOCK_UN)
            job.done.put(True)


def _open(path: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
    with sqlite_paths.opening(path):
        return os.open(path, flags, 0o600)
