"""Every interleaving of compactors, an appender and a third actor, at the boundaries of the lock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from holdfast import errors
from holdfast.store import leases, log
from holdfast.store.driver import Tx
from holdfast.store.mail import chat_leases
from tests.faults import checker, interleavings, overlapping_calls, steps
from tests.support import postgres, two_hosts


@pytest.mark.parametrize("group", interleavings.GROUPS)
def test_every_interleaving_keeps_every_promise(group: str) -> None:
    actors = interleavings.GROUPS[group]
    assert interleavings.every_schedule(actors) == (order_count(actors), [])


@pytest.mark.parametrize("first", overlapping_calls.CALLS)
def test_overlapping_calls_end_like_one_after_the_other(first: str) -> None:
    """Each call on PostgreSQL, held before its commit, with every other call."""
    with closing(overlapping_calls.Overlap(postgres.fresh())) as overlap:
        found = [problem for second in overlapping_calls.CALLS for problem in overlap.play(first, second)]
        assert found == []


@pytest.fixture
def pair() -> Iterator[two_hosts.Pair]:
    with closing(two_hosts.Pair(postgres.fresh())) as both:
        steps.begin(both.one, "c")
        yield both
        assert checker.verify(both.one, also=["c"]) == []


def test_reader_sees_one_state_while_another_host_compacts_and_appends(pair: two_hosts.Pair) -> None:
    lease = pair.one.acquire_lease("c", "compact", "me")

    def read_twice(tx: Tx) -> list[tuple[int, int]]:
        before = log.context(tx, "c", None)
        pair.one.commit_compaction(lease, summary="", cut_seq=1)
        pair.one.append_message("c", role="user", content="meanwhile")
        return [(context.epoch, context.last_seq) for context in (before, log.context(tx, "c", None))]

    before, after = pair.other.driver.read(read_twice)
    assert before == after


@pytest.mark.parametrize("call", ["begin", "settle", "send"])
def test_holder_of_a_chat_lease_that_is_taken_over_meanwhile_writes_nothing(call: str, pair: two_hosts.Pair) -> None:
    db, key, mail = pair.one, "route:chat:c", pair.other.mail
    arrival, seq = steps.came(db, "c"), db.append_message("c", role="user", content="said c", uid="inbox:far:c").seq
    db.mail.begin_inbound(db.mail.acquire_chat_lease(key, 300.0, "me"), arrival.id, "c")
    posted = db.mail.post(steps.outgoing("c", "a question")).id
    held = db.mail.acquire_chat_lease(key, 300.0, "me")
    calls: dict[str, Callable[[], object]] = {
        "begin": lambda: mail.begin_inbound(held, arrival.id, "c"),
        "settle": lambda: steps.answer(pair.other, held, arrival.id, seq),
        "send": lambda: mail.begin_sending(held, posted),
    }
    outcome = pair.meanwhile(lambda tx: chat_leases.acquire(tx, key, leases.current_holder("me"), 300.0), calls[call])
    assert isinstance(outcome, errors.LeaseLost)


def order_count(actors: list[interleavings.Actor]) -> int:
    """Return the number of orders of the actors, if exchanging the two equal compactors makes no difference."""
    counts = [len(actor.actions) for actor in actors]
    orders = math.factorial(sum(counts)) // math.prod(math.factorial(count) for count in counts)
    return orders // (2 if interleavings.TWO in actors else 1)
