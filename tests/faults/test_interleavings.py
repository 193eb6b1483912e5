"""Every interleaving of compactors, an appender and whoever comes between, at the boundaries of the lock."""

from __future__ import annotations

import math

import pytest

from tests.faults import interleavings, overlapping_calls
from tests.faults.interleavings import appender, compactor
from tests.support import postgres

ONE, TWO = compactor("one"), compactor("two")

# Actors, and the number of orders in which they can take their steps.
CASTS = {
    "end": ([ONE, TWO, appender(1), interleavings.ENDER], 1120),
    "end and resume": ([ONE, TWO, interleavings.RESUMER], 560),
    "append, end and resume": ([ONE, appender(2), interleavings.RESUMER], 210),
    "undo": ([ONE, TWO, appender(1), interleavings.UNDOER], 1120),
    "undo and redo": ([ONE, TWO, interleavings.REDOER], 560),
    "hide": ([ONE, TWO, appender(1), interleavings.HIDER], 1120),
    "hide and show": ([ONE, TWO, interleavings.SHOWER], 560),
    "hide, undo, show, redo": ([ONE, appender(1), interleavings.UNDOING_SHOWER], 280),
    "redact": ([ONE, TWO, appender(1), interleavings.REDACTOR], 1120),
    "expiry": ([ONE, TWO, appender(1), interleavings.TIME], 1120),
    "expiry and end": ([ONE, TWO, interleavings.TIME, interleavings.ENDER], 1120),
}


@pytest.mark.parametrize("cast", CASTS)
def test_every_interleaving_keeps_every_promise(cast: str) -> None:
    actors, expected = CASTS[cast]
    result = interleavings.every_schedule(actors)
    print(f"{cast}: {result.count} interleavings")
    assert result.problems == []
    assert result.count == expected == _multinomial([len(actor.actions) for actor in actors])


@pytest.mark.parametrize("first", overlapping_calls.CALLS)
def test_overlapping_calls_end_like_one_after_the_other(first: str) -> None:
    """Each call on PostgreSQL, held before its commit, with every other call."""
    with overlapping_calls.open_overlap(postgres.fresh()) as overlap:
        found = [problem for second in overlapping_calls.CALLS for problem in overlap.play(first, second)]
        assert found == []
        assert overlap.pair.one.admin.fsck().ok


def test_schedules_are_all_different_and_complete() -> None:
    found = list(interleavings.schedules(3, 3, 2, 1))
    assert len(found) == len(set(found)) == _multinomial([3, 3, 2, 1])
    assert all(sorted(order) == [0, 0, 0, 1, 1, 1, 2, 2, 3] for order in found)


def _multinomial(counts: list[int]) -> int:
    return math.factorial(sum(counts)) // math.prod(math.factorial(count) for count in counts)
