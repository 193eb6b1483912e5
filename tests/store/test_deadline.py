"""The client-side deadline of a round trip to PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.store.postgres import connection


class Expired(Exception):
    pass


def work(reads: int = 1) -> Iterator[Any]:
    """Waits until it could read so often."""
    for _ in range(reads):
        while not (yield "read"):
            pass
    return "answer"


YES, NO = True, False


@pytest.mark.parametrize(
    ("answers", "readies", "outcome", "asked"),
    [
        ([], [0, 0, 1], "answer", 0),
        ([YES, YES], [0] * 9 + [1], "answer", 2),
        ([NO], [0] * 6, "expired", 1),
        ([NO], [0] * 4 + [1], "answer", 1),
        ([YES, NO], [0] * 12, "expired", 2),
        ([YES] * 9, [0] * 30, "expired", 6),  # a server that says it works has no more time than `total`
    ],
)
def test_silent_server_is_probed_and_given_up(
    answers: list[bool], readies: list[int], outcome: str, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, left = [0.0], list(answers)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    bounded = connection.enforce_deadline(work(), 3.0, 20.0, lambda: 0, is_working=lambda: left.pop(0), expire=Expired)

    def wait() -> str:
        next(bounded)
        try:
            for ready in readies:
                now[0] += 1.1
                bounded.send(ready)
        except StopIteration as end:
            return str(end.value)
        except Expired:
            return "expired"
        return "still waiting"

    assert (wait(), len(answers) - len(left)) == (outcome, asked)


@pytest.mark.parametrize("progress", ["received", "sent"])
def test_bytes_sent_or_received_restart_the_deadline(progress: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now, unsent = [0.0], iter(range(30, 0, -1) if progress == "sent" else [])
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    bounded = connection.enforce_deadline(
        work(100), 3.0, 1e6, lambda: next(unsent, 1), is_working=lambda: False, expire=Expired
    )

    def wait(intervals: int, every_third: int = 0) -> None:
        for interval in range(intervals):
            now[0] += 1.1
            bounded.send(every_third if interval % 3 == 2 else 0)

    next(bounded)
    wait(30, 1 if progress == "received" else 0)
    with pytest.raises(Expired):
        wait(10)
