"""Two compactors, an appender and an ender come to a server in every order, each while others are not done.

All orders are played, with up to three who wait (`make chaos`: with none, one and two as well). Nobody is let in
before whoever has the lock has committed, and everybody answers as if it had come after that.
"""

from __future__ import annotations

from tests.faults import overlaps

ORDERS = 180  # of two steps, two steps, one and one
CROWD = 3


def test_every_order_of_calls_that_overlap_keeps_every_promise() -> None:
    with overlaps.stage() as stage:
        found = [problem for order in overlaps.orders() for problem in stage.play(order, CROWD)]
        print(f"{len(overlaps.orders())} schedules, each call while up to {CROWD} others were not done")
        assert found == []
        assert stage.db.admin.fsck().ok
    assert len(overlaps.orders()) == ORDERS
