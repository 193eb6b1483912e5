"""Eight processes race from a barrier in many rounds: exactly one wins, and no message is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.store.db import SessionDB
from tests.faults import checker, races, steps
from tests.faults import zygote as zygotes
from tests.support import postgres

PROCESSES = 8
# Only one process at a time writes to a SQLite store; `make chaos` plays thousands of rounds.
ROUNDS = {"sqlite": 20, "postgres": 8}


@pytest.mark.parametrize("dialect", ROUNDS)
@pytest.mark.parametrize("name", races.RACES)
def test_exactly_one_process_wins_and_nothing_is_lost(
    name: str, dialect: str, zygote: zygotes.Zygote, place: Path
) -> None:
    store = postgres.fresh() if dialect == "postgres" else str(place / "store.db")
    with SessionDB(store) as db:
        steps.begin(db, "c", 4)
    outcomes = zygote.run_all(races.run, store, {"race": name, "rounds": ROUNDS[dialect]}, PROCESSES)
    assert [outcome.error for outcome in outcomes] == [None] * PROCESSES
    history = zygotes.records(outcomes)
    with SessionDB(store) as db:
        for number, results in enumerate(zip(*(outcome.value for outcome in outcomes), strict=True)):
            races.RACES[name].check(db, number, list(results))
        assert checker.verify(db, history) == []
        # A summarizer is called only under a lease, and its summary is committed.
        granted, called = ([each for each in history if isinstance(each, kind)] for kind in KINDS)
        assert len(called) == len(granted)
        if granted:
            assert len(db.sessions("c")) - 1 == len(granted) >= ROUNDS[dialect]
            assert db.get_compression_lock_holder("c") is None


KINDS = (checker.Granted, checker.Summarized)
