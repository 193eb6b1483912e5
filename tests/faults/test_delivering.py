"""The end of a process is told and answered once, wherever the program dies and however many programs there are."""

from __future__ import annotations

from pathlib import Path

from holdfast.store.db import SessionDB
from tests.faults import delivering
from tests.faults import zygote as zygotes


def test_killed_at_any_point_between_the_end_and_its_outcome_the_next_start_delivers_it_once(
    zygote: zygotes.Zygote, place: Path
) -> None:
    with SessionDB(place / "counted.db") as db:
        delivering.prepare(db, "talk", "p")
    args = {"conversation": "talk", "process": "p"}
    counted = zygote.run(delivering.deliver, place / "counted.db", args, points=delivering.OPERATIONS)
    assert counted.value is True, counted
    named = set(counted.reached)
    # The row and its notice, the message, and what became of it: each a place to die at, and between any two of them.
    assert {"process.process_end", "process.committed", "append.committed", "inbox.inbox_settle"} <= named
    for at, point in enumerate(counted.reached):
        path = place / f"{at}.db"
        with SessionDB(path) as db:
            delivering.prepare(db, "talk", "p")
        killed = zygote.run(delivering.deliver, path, args, points=delivering.OPERATIONS, at=at)
        assert killed.state == "killed", (point, killed)
        again = zygote.run(delivering.deliver, path, args)
        assert again.state == "exited", (point, again)
        assert again.error is None, (point, again)
        with SessionDB(path) as db:
            assert delivering.wrongs(db, "talk") == [], point


def test_programs_that_see_the_end_at_once_tell_and_answer_it_once(zygote: zygotes.Zygote, place: Path) -> None:
    path = place / "store.db"
    for round_ in range(12):
        args = {"conversation": f"talk{round_}", "process": f"p{round_}"}
        with SessionDB(path) as db:
            delivering.prepare(db, args["conversation"], args["process"])
        outcomes = zygote.crowd(delivering.deliver, path, args, 4)
        assert [outcome.error for outcome in outcomes] == [None] * 4, outcomes
        assert sorted(bool(outcome.value) for outcome in outcomes) == [False] * 3 + [True]
        with SessionDB(path) as db:
            assert delivering.wrongs(db, args["conversation"]) == []
