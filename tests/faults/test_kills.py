"""A process killed at any point of any write leaves the state before it or the state after it.

Twenty kills at every named point of appends, leases, compactions and ends, two at those of the other steps
(HOLDFAST_KILLS sets another number for all; `make chaos` kills more often), and one before every write to the disk, of
the others before every fourth. A point that several steps pass is killed at twenty times in the first of them, and
twice in each of the others. Nothing is repaired in between: the next process opens the store and goes on.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from holdfast.store.db import SessionDB
from tests.faults import checker, kills, steps, zygote

KILLS = int(os.environ.get("HOLDFAST_KILLS") or 0)
OFTEN = {"append", "acquire", "renew", "commit", "end"}
# One of each way to write; `make chaos` takes all of all steps.
EVERY_WRITE = {"append", "acquire", "renew", "commit", "end", "settle_inbound"}


def kills_of(name: str, point: str) -> int:
    if point.partition(".")[0] not in OFTEN:
        return KILLS or 2
    return KILLS or (20 if first_steps()[point] == name else 2)


@functools.cache
def first_steps() -> dict[str, str]:
    """Of every point to be killed at often, the first step that passes it."""
    found: dict[str, str] = {}
    for name in [name for name, step in steps.STEPS.items() if OFTEN & set(step.operations)]:
        for point in kills.known_course(name).names:
            found.setdefault(point, name)
    return found


@pytest.mark.parametrize("name", steps.STEPS)
def test_kill_at_any_point_leaves_the_state_before_or_after(name: str, zygote: zygote.Zygote, place: Path) -> None:
    points = kills.known_course(name).names
    assert {point.partition(".")[2] for point in points} >= {"queued", "begun", "committing", "committed"}
    done = kills.kill_at_every_point(zygote, place, name, functools.partial(kills_of, name))
    assert done == {point: points.count(point) * kills_of(name, point) for point in points}


def test_every_point_to_be_killed_at_often_is_reached() -> None:
    assert {point.partition(".")[0] for point in first_steps()} >= OFTEN
    assert all(kills_of(name, point) >= 20 for point, name in first_steps().items() if point.partition(".")[0] in OFTEN)


# A renewal moves only the expiry, which is a time and so not part of the observed state.
@pytest.mark.parametrize("name", sorted(set(steps.STEPS) - {"renew"}))
def test_step_changes_the_observed_state(name: str) -> None:
    course = kills.known_course(name)
    assert course.states[0] != course.done


@pytest.mark.parametrize("name", steps.STEPS)
def test_nothing_is_seen_by_others_before_the_commit(name: str) -> None:
    assert kills.half_states(kills.known_course(name)) == []


@pytest.mark.parametrize("name", steps.STEPS)
def test_kill_between_any_two_writes_to_the_disk_is_all_or_nothing(
    name: str, zygote: zygote.Zygote, place: Path
) -> None:
    kills.kill_at_every_write(zygote, place, name, 1 if name in EVERY_WRITE else 4)


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
