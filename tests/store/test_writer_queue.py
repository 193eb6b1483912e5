"""The line of writers: one at a time, nobody for ever, and whoever gives up holds nobody up."""

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
from tests.support import conversations, polling

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
    """Somebody stands at the front until they are told to go."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield lambda: fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


# Waiters of other tests in this process: they may be on their way home, or wait for a lock of their own.
_elsewhere: set[threading.Thread] = set()


def waiters() -> int:
    return sum(thread.name == "holdfast-writer-queue" and thread not in _elsewhere for thread in threading.enumerate())


def is_free(path: Path) -> bool:
    with front_try(path) as got:
        return got


@contextmanager
def front_try(path: Path) -> Iterator[bool]:
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(fd)


def fail() -> None:
    raise errors.LeaseLost()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    _elsewhere.clear()
    _elsewhere.update(threading.enumerate())
    return tmp_path / "queue"


def test_work_is_done_and_its_result_handed_over(path: Path) -> None:
    with line(path) as mine:
        assert mine.run(LONG, lambda a, b: a + b, 2, 3) == 5
        assert is_free(path)


def test_nobody_else_works_meanwhile(path: Path) -> None:
    with line(path) as mine:
        assert mine.run(LONG, is_free, path) is False


def test_many_in_line_work_one_at_a_time_and_all_get_there(path: Path) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        inside.append(number)
        most.append(len(inside))
        inside.remove(number)

    def writer(number: int) -> None:
        with line(path) as mine:
            for _ in range(50):
                mine.run(LONG, work, number)

    conversations.at_once(*(lambda number=number: writer(number) for number in range(6)))
    assert (len(most), max(most)) == (300, 1)


def test_wait_is_bounded(path: Path) -> None:
    with front_taken(path), line(path) as mine, pytest.raises(errors.StoreBusy):
        mine.run(0.05, fail)


def test_work_nobody_waits_for_is_never_begun(path: Path) -> None:
    begun: list[bool] = []
    with front_taken(path) as leave, line(path) as mine:
        with pytest.raises(errors.StoreBusy):
            mine.run(0.05, begun.append, True)
        leave()
        polling.until(lambda: waiters() == 0)
        assert begun == []


def test_whoever_gave_up_lets_go_when_their_turn_comes(path: Path) -> None:
    with front_taken(path) as leave, line(path) as mine:
        for _ in range(3):
            with pytest.raises(errors.StoreBusy):
                mine.run(0.02, fail)
        assert waiters() == 3
        leave()
        polling.until(lambda: waiters() == 0)
        assert is_free(path)
        assert mine.run(LONG, lambda: "again") == "again"


def waited(path: Path, mine: writer_queue.WriterQueue, work: Callable[[], object]) -> list[object]:
    """Have work done that has to wait for the front; what came of it."""
    with front_taken(path) as leave:
        threading.Thread(target=lambda: (polling.until(lambda: waiters() == 1), leave())).start()
        return [mine.run(LONG, work)]


def test_error_of_work_that_waited_is_its_callers(path: Path) -> None:
    with line(path) as mine:
        with pytest.raises(errors.LeaseLost):
            waited(path, mine, fail)
        assert is_free(path)


def test_waiters_are_kept_for_the_next_wait_and_sent_home_at_the_end(path: Path) -> None:
    with line(path) as mine:
        with pytest.raises(errors.LeaseLost):
            waited(path, mine, fail)
        assert waiters() == 1
        with front_taken(path) as leave:
            timer = threading.Timer(0.02, leave)
            timer.start()
            assert mine.run(LONG, lambda: "done") == "done"
            timer.join()
        assert waiters() == 1
    polling.until(lambda: waiters() == 0)


def test_interrupted_wait_holds_nobody_up(path: Path) -> None:
    main, before = threading.get_ident(), signal.getsignal(signal.SIGUSR1)

    def interrupt() -> None:
        polling.until(lambda: waiters() == 1)
        signal.pthread_kill(main, signal.SIGUSR1)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGUSR1, stop)
    try:
        with front_taken(path) as leave, line(path) as mine:
            threading.Thread(target=interrupt).start()
            with pytest.raises(KeyboardInterrupt):
                mine.run(LONG, fail)
            leave()
            # Interrupted before it stood in line or while it did: either way the line is free.
            polling.until(lambda: is_free(path))
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_queue_is_its_owners_alone_and_no_link_is_followed(path: Path, tmp_path: Path) -> None:
    with line(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(errors.StoreUnusable):
        writer_queue.WriterQueue(str(link))


def test_closing_and_closing_inherited_close_each_descriptor_once(path: Path) -> None:
    mine = writer_queue.WriterQueue(str(path))
    mine.close()
    reused = os.open(path, os.O_RDWR)
    mine.close_inherited()
    os.fstat(reused)
    os.close(reused)
