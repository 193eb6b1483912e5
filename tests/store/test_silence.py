"""Whoever waits for a server asks after a while whether it is there, and gives up only if it is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from holdfast.store import silence


class Lost(Exception):
    pass


def work() -> Iterator[Any]:
    """Wants to read, until there is something."""
    while not (yield "read"):
        pass
    return "answer"


def heard(looks: Sequence[str], readies: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, int]:
    """What came of waiting, with what each look found and whether there was anything each second; looks taken."""
    now, left = [0.0], list(looks)
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

    try:
        outcome = silence.watched(wait, lambda: left.pop(0), Lost, patience=3.0)(work())
    except Lost:
        outcome = "lost"
    return outcome, len(looks) - len(left)


W, G, U = silence.WORKING, silence.GONE, silence.UNHEARD


@pytest.mark.parametrize(
    ("looks", "readies", "outcome"),
    [
        ([], [0, 0, 1], ("answer", 0)),
        ([W], [0, 0, 0, 0, 1], ("answer", 1)),
        ([W, W], [0] * 7 + [1], ("answer", 2)),
        ([G], [0] * 9, ("lost", 1)),
        ([W, G], [0] * 9, ("lost", 2)),
        ([U, U], [0] * 9, ("lost", 2)),
        ([U], [0, 0, 0, 0, 1], ("answer", 1)),
        ([U, W, W], [0] * 9, ("still waiting", 3)),
    ],
)
def test_silence_is_asked_about_and_only_an_absent_server_is_given_up(
    looks: list[str], readies: list[int], outcome: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert heard(looks, readies, monkeypatch) == outcome
