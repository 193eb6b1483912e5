"""The writer queue of SQLite: one writer at a time, bounded waits, and no lock left by an abandoned wait."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import errors
from holdfast.store.sqlite import writer_queue
from tests.support import polling

LONG = 60.0


@contextmanager
def line(path: Path) -> Iterator[writer_queue.WriterQueue]:
    made = writer_queue.WriterQueue(str(path))
    try:
        yield made
    finally:
        made.close()


@contextmanager
def front_taken(path: Path) -> Iterator[Callable[[], None]]:
    """Hold the lock until the function is called."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield lambda: fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


# Waiter threads of other tests in this process.
_elsewhere: set[threading.Thread] = set()


def waiters() -> int:
    return sum(thread.name == "holdfast-writer-queue" and thread not in _elsewhere for thread in threading.enumerate())


def is_free(path: Path) -> bool:
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def fail() -> None:
    raise errors.LeaseLost()


@pytest.fixture
def path(path: Path) -> Path:
    _elsewhere.clear()
    _elsewhere.update(threading.enumerate())
    return path


def test_work_runs_alone_and_returns_its_result(path: Path) -> None:
    with line(path) as mine:
        assert mine.run(LONG, is_free, path) is False
        assert mine.run(LONG, lambda a, b: a + b, 2, 3) == 5
        assert is_free(path)


def test_wait_is_bounded_and_abandoned_work_never_runs(path: Path) -> None:
    begun: list[bool] = []
    with front_taken(path) as leave, line(path) as mine:
        for _ in range(3):
            with pytest.raises(errors.StoreBusy):
                mine.run(0.02, begun.append, True)
        assert waiters() == 3
        leave()
        polling.until(lambda: waiters() == 0)
        assert is_free(path)
        assert mine.run(LONG, lambda: "again") == "again"
    assert begun == []


def test_waiting_work_raises_its_error_and_the_waiter_thread_is_reused(path: Path) -> None:
    with line(path) as mine:
        for _ in range(2):
            with front_taken(path) as leave:
                releasing = threading.Timer(0.02, lambda leave=leave: (polling.until(lambda: waiters() == 1), leave()))
                releasing.start()
                with pytest.raises(errors.LeaseLost):
                    mine.run(LONG, fail)
                releasing.join()
            assert waiters() == 1
            assert is_free(path)
    polling.until(lambda: waiters() == 0)


@contextmanager
def interruptible() -> Iterator[tuple[Callable[[], None], threading.Event]]:
    """Yield a function that raises KeyboardInterrupt in this thread, and an event that is set when it is raised."""
    main, before, interrupted = threading.get_ident(), signal.getsignal(signal.SIGUSR1), threading.Event()

    def stop(*_: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGUSR1, stop)
    try:
        yield lambda: signal.pthread_kill(main, signal.SIGUSR1), interrupted
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_interrupted_wait_blocks_no_other_writer(path: Path) -> None:
    with interruptible() as (interrupt, _), front_taken(path) as leave, line(path) as mine:
        threading.Thread(target=lambda: (polling.until(lambda: waiters() == 1), interrupt())).start()
        with pytest.raises(KeyboardInterrupt):
            mine.run(LONG, fail)
        leave()
        # Interrupted before it stood in line or while it did: either way the line is free.
        polling.until(lambda: is_free(path))


def test_interrupt_waits_for_work_that_has_begun(path: Path) -> None:
    done: list[bool] = []

    with interruptible() as (interrupt, interrupted), front_taken(path) as leave, line(path) as mine:

        def work() -> None:
            interrupt()
            interrupted.wait()
            done.append(is_free(path))

        threading.Thread(target=lambda: (polling.until(lambda: waiters() == 1), leave())).start()
        with pytest.raises(KeyboardInterrupt):
            mine.run(LONG, work)
        assert done == [False]


def test_queue_file_is_private_and_no_link_is_followed(path: Path, tmp_path: Path) -> None:
    with line(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(errors.StoreUnusable):
        writer_queue.WriterQueue(str(link))
