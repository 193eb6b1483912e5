"""Notifications are sent from a background thread and never delay or fail a write."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext

import pytest

from holdfast import errors
from holdfast.store import notifications
from holdfast.store.postgres import notify
from tests.support import polling

ONE, TWO = notifications.Hint("moved", "one"), notifications.Hint("moved", "two")


class Server:
    """Stands for a connection: records what is sent, can be paused, and fails as often as asked."""

    def __init__(self, failures: int = 0) -> None:
        self.sent: list[set[notifications.Hint | None]] = []
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Event()
        self.failures = failures
        self.connected = 0
        self.closed = False

    def connect(self) -> Server:
        self.connected += 1
        self.closed = False
        return self

    def execute(self, _: str, values: dict[str, list[str]]) -> None:
        self.reached.set()
        assert self.open.wait(60)
        self.sent.append({notifications.decode(payload, "") for payload in values["payloads"]})
        if self.failures:
            self.failures -= 1
            self.closed = True
            raise errors.StoreBusy()

    def close(self) -> None:
        self.closed = True


def notifier_of(server: Server) -> notify.Notifier:
    return notify.Notifier(server.connect, nullcontext)


def test_hints_that_come_while_a_batch_is_sent_are_sent_together_and_once() -> None:
    server = Server()
    sender = notifier_of(server)
    server.open.clear()
    sender.notify({ONE})
    assert server.reached.wait(60)
    for _ in range(50):
        sender.notify({ONE, TWO})
    server.open.set()
    sender.close()
    assert server.sent == [{ONE}, {ONE, TWO}]


def test_closing_sends_what_is_pending_and_nothing_after(monkeypatch: pytest.MonkeyPatch) -> None:
    # Only closing ends the interval.
    monkeypatch.setattr(notify, "BATCH_INTERVAL", 3600.0)
    server = Server()
    sender = notifier_of(server)
    sender.notify({ONE})
    polling.until(lambda: server.sent == [{ONE}])
    sender.notify({TWO})
    sender.close()
    sender.notify({ONE})
    assert server.sent == [{ONE}, {TWO}]
    assert (server.connected, server.closed) == (1, True)


def test_failed_notification_fails_no_write_and_the_next_one_reconnects() -> None:
    server = Server(failures=1)
    sender = notifier_of(server)
    sender.notify({ONE})
    polling.until(lambda: server.sent == [{ONE}])
    sender.notify({TWO})
    sender.close()
    assert server.sent == [{ONE}, {TWO}]
    assert server.connected == 2


class Pauses(threading.Event):
    """Stands for the event that ends a pause: records the pauses, and writes during as many of them as asked."""

    def __init__(self, write: Callable[[], None], writes: int) -> None:
        super().__init__()
        self.taken: list[float | None] = []
        self._write, self._writes = write, writes

    def wait(self, timeout: float | None = None) -> bool:
        if len(self.taken) < self._writes:
            self._write()
        self.taken.append(timeout)
        return self.is_set()


def test_pauses_grow_while_writes_go_on_and_are_short_again_after_a_quiet_one() -> None:
    sender = notifier_of(Server())
    pauses = sender._closing = Pauses(lambda: sender.notify({ONE}), 4)
    sender.notify({ONE})
    polling.until(lambda: len(pauses.taken) == 5)
    sender.notify({ONE})
    polling.until(lambda: len(pauses.taken) == 6)
    sender.close()
    shortest, longest = notify.BATCH_INTERVAL, notify.MAX_BATCH_INTERVAL
    assert pauses.taken == [shortest, 2 * shortest, longest, longest, longest, shortest]


def test_pause_after_a_failure_is_longer_than_between_batches() -> None:
    sender = notifier_of(Server(failures=1))
    pauses = sender._closing = Pauses(lambda: None, 0)
    sender.notify({ONE})
    polling.until(lambda: len(pauses.taken) == 1)
    sender.notify({TWO})
    polling.until(lambda: len(pauses.taken) == 2)
    sender.close()
    assert pauses.taken == [notify.FAILURE_INTERVAL, notify.BATCH_INTERVAL]


def test_store_without_writes_opens_no_connection_and_no_thread() -> None:
    server = Server()
    sender = notifier_of(server)
    sender.notify(set())
    sender.close()
    assert (server.connected, sender._thread) == (0, None)


def test_committed_write_does_not_fail_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    server = Server()
    sender = notifier_of(server)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        sender.notify({ONE})
    sender.notify({TWO})
    sender.close()
    assert server.sent == [{ONE, TWO}]
