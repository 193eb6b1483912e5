"""Every interleaving of compactors, an appender and a third actor, at the boundaries of the lock."""

from __future__ import annotations

import math
from contextlib import closing

import pytest

from tests.faults import interleavings, overlapping_calls
from tests.support import postgres


@pytest.mark.parametrize("group", interleavings.GROUPS)
def test_every_interleaving_keeps_every_promise(group: str) -> None:
    actors = interleavings.GROUPS[group]
    result = interleavings.every_schedule(actors)
    assert result.problems == []
    assert result.count == order_count(actors)


@pytest.mark.parametrize("first", overlapping_calls.CALLS)
def test_overlapping_calls_end_like_one_after_the_other(first: str) -> None:
    """Each call on PostgreSQL, held before its commit, with every other call."""
    with closing(overlapping_calls.Overlap(postgres.fresh())) as overlap:
        found = [problem for second in overlapping_calls.CALLS for problem in overlap.play(first, second)]
        assert found == []
        assert overlap.pair.one.admin.fsck().ok


def test_schedules_are_all_different_and_complete() -> None:
    found = list(interleavings.schedules(3, 3, 2, 1))
    assert len(found) == len(set(found)) == multinomial([3, 3, 2, 1])
    assert all(sorted(order) == [0, 0, 0, 1, 1, 1, 2, 2, 3] for order in found)


def order_count(actors: list[interleavings.Actor]) -> int:
    """Return the number of orders of the actors, if exchanging the two equal compactors makes no difference."""
    return multinomial([len(actor.actions) for actor in actors]) // (2 if interleavings.TWO in actors else 1)


def multinomial(counts: list[int]) -> int:
    return math.factorial(sum(counts)) // math.prod(math.factorial(count) for count in counts)
