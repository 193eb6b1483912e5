"""A process killed at any point of any write leaves the state before it or the state after it.

Twenty kills at every named point of the steps that leases, compactions and messages live by, five at those of the
others (HOLDFAST_KILLS sets another number for all), and one before every write to the disk. Nothing is repaired in
between: the next process opens the store and goes on.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.store.db import SessionDB
from tests.faults import checker, kills, steps, zygote

KILLS = int(os.environ.get("HOLDFAST_KILLS") or 0)
OFTEN = {"append", "acquire", "renew", "release", "commit", "end"}


def kills_of(name: str) -> int:
    return KILLS or (20 if OFTEN & set(steps.STEPS[name].operations) else 5)


@pytest.mark.parametrize("name", steps.STEPS)
def test_kill_at_any_point_leaves_the_state_before_or_after(name: str, zygote: zygote.Zygote, place: Path) -> None:
    points = kills.course_of(name, place / "points.db").names
    assert {point.partition(".")[2] for point in points} >= {"queued", "begun", "committing", "committed"}
    assert kills.kill_at_every_point(zygote, place, name, kills_of(name)) == len(points) * kills_of(name)


@pytest.mark.parametrize("name", steps.STEPS)
def test_nothing_is_seen_by_others_before_the_commit(name: str, place: Path) -> None:
    assert kills.half_states(kills.course_of(name, place / "watched.db")) == []


@pytest.mark.parametrize("name", steps.STEPS)
def test_kill_between_any_two_writes_to_the_disk_is_all_or_nothing(
    name: str, zygote: zygote.Zygote, place: Path
) -> None:
    kills.kill_at_every_write(zygote, place, name)


def test_kill_between_the_two_calls_leaves_an_ended_conversation_that_accepts(
    zygote: zygote.Zygote, place: Path
) -> None:
    path = place / "store.db"
    with SessionDB(path) as db:
        args = {**steps.say(db, "p"), "step": "two_calls"}
    # The first point of the second call: the first has been committed, the second has not begun.
    outcome = zygote.run(steps.perform, path, args, points=("create",), at=0, fault="kill")
    assert outcome.state == "killed"
    with SessionDB(path) as db:
        assert db.head("p").end_reason == "compression"
        receipt = db.append_message("p", role="user", content="go on", uid="next")
        assert (receipt.resumed, receipt.moved_from) == (True, "p")
        assert len(db.continuations("p")) == 1
        assert checker.verify(db, [checker.Sent("after", "p", "next", "go on", receipt)]) == []
