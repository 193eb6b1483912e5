"""Telling others beside the work: never in the way of a write, whatever happens to the telling."""

from __future__ import annotations

import threading

import pytest

from holdfast import errors
from holdfast.store import notifications
from holdfast.store.postgres import notifier
from tests.contract import steps

ONE, TWO = notifications.Hint("moved", "one"), notifications.Hint("moved", "two")


class Post:
    """What was sent; and a door that can be held shut while something is on its way."""

    def __init__(self) -> None:
        self.sent: list[set[notifications.Hint]] = []
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Event()

    def __call__(self, batch: list[notifications.Hint]) -> None:
        self.reached.set()
        assert self.open.wait(60)
        self.sent.append(set(batch))


def test_nothing_is_sent_while_nobody_listens_and_that_is_not_asked_for_every_write() -> None:
    post, asked = Post(), []

    def listened() -> bool:
        asked.append(1)
        return False

    told = notifier.Notifier(listened, post)
    for _ in range(100):
        told.tell({ONE})
    told.close()
    assert post.sent == []
    assert len(asked) < 50


def test_a_server_that_is_slow_to_answer_is_not_asked_by_every_write() -> None:
    asked: list[int] = []

    def listened() -> bool:
        asked.append(1)
        raise errors.StoreBusy()

    told = notifier.Notifier(listened, Post())
    for _ in range(100):
        told.tell({ONE})
    told.close()
    assert len(asked) == 1


def test_whoever_begins_to_listen_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    post, anybody = Post(), [False, True]
    monkeypatch.setattr(notifier, "LOOK", 0.0)
    told = notifier.Notifier(lambda: anybody.pop(0), post)
    told.tell({ONE})
    told.tell({TWO})
    told.close()
    assert post.sent == [{TWO}]


def test_what_comes_while_a_batch_is_on_its_way_goes_together_and_once() -> None:
    post = Post()
    told = notifier.Notifier(lambda: True, post)
    post.open.clear()
    told.tell({ONE})
    assert post.reached.wait(60)
    for _ in range(50):
        told.tell({ONE, TWO})
    post.open.set()
    told.close()
    assert post.sent == [{ONE}, {ONE, TWO}]


def test_closing_sends_what_waits_and_nothing_after(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing but the closing ends the gathering.
    monkeypatch.setattr(notifier, "GATHER", 3600.0)
    post = Post()
    told = notifier.Notifier(lambda: True, post)
    told.tell({ONE})
    steps.wait_until(lambda: post.sent == [{ONE}])
    told.tell({TWO})
    told.close()
    told.tell({ONE})
    assert post.sent == [{ONE}, {TWO}]


def test_a_store_that_cannot_be_asked_or_told_fails_no_write_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notifier, "LOOK", 0.0)
    sent: list[list[notifications.Hint]] = []
    answers: list[bool | errors.StoreError] = [errors.StoreBusy(), True, True]

    def listened() -> bool:
        answer = answers.pop(0)
        if isinstance(answer, errors.StoreError):
            raise answer
        return answer

    def send(batch: list[notifications.Hint]) -> None:
        sent.append(batch)
        if len(sent) == 1:
            raise errors.StoreBusy()

    told = notifier.Notifier(listened, send)
    told.tell({ONE})
    told.tell({ONE})
    steps.wait_until(lambda: sent == [[ONE]])
    told.tell({TWO})
    told.close()
    assert sent == [[ONE], [TWO]]
