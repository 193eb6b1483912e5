"""The client-side deadline of a round trip: when the server is asked, and when the connection is given up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.store.postgres import connection


class Expired(Exception):
    pass


def work() -> Iterator[Any]:
    """Wants to read, until there is something."""
    while not (yield "read"):
        pass
    return "answer"


YES, NO = True, False


@pytest.mark.parametrize(
    ("answers", "readies", "outcome", "asked"),
    [
        ([], [0, 0, 1], "answer", 0),
        ([YES], [0] * 5 + [1], "answer", 1),
        ([YES, YES], [0] * 9 + [1], "answer", 2),
        ([NO], [0] * 6, "expired", 1),
        ([NO], [0] * 4 + [1], "answer", 1),
        ([YES, NO], [0] * 12, "expired", 2),
        ([YES] * 9, [0] * 30, "expired", 6),  # a server that says it works has no more time than `total`
    ],
)
def test_silent_server_is_asked_and_given_up_when_it_does_not_work(
    answers: list[bool], readies: list[int], outcome: str, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, left = [0.0], list(answers)
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def wait(gen: Any) -> Any:
        next(gen)
        try:
            for ready in readies:
                now[0] += 1.1
                gen.send(ready)
        except StopIteration as end:
            return end.value
        return "still waiting"

    bounded = connection.enforce_deadline(work(), 3.0, 20.0, lambda: 0, is_working=lambda: left.pop(0), expire=Expired)
    try:
        found = wait(bounded)
    except Expired:
        found = "expired"
    assert (found, len(answers) - len(left)) == (outcome, asked)


def test_bytes_that_move_start_the_silence_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def long_answer() -> Iterator[Any]:
        for _ in range(100):
            yield "read"
        return "answer"

    def wait(gen: Any) -> Any:
        try:
            next(gen)
            while True:
                for ready in (0, 0, 1):
                    now[0] += 1.1
                    gen.send(ready)
        except StopIteration as end:
            return end.value

    bounded = connection.enforce_deadline(long_answer(), 3.0, 1e6, lambda: 0, is_working=lambda: False, expire=Expired)
    assert wait(bounded) == "answer"


def test_request_that_is_still_being_sent_is_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    now, unsent = [0.0], iter(range(30, 0, -1))
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    bounded = connection.enforce_deadline(
        work(), 3.0, 1e6, lambda: next(unsent, 1), is_working=lambda: False, expire=Expired
    )

    def wait(intervals: int) -> None:
        for _ in range(intervals):
            now[0] += 1.1
            bounded.send(0)

    next(bounded)
    wait(30)
    with pytest.raises(Expired):  # the last byte is not sent
        wait(10)
