"""Two gateways on one store: what comes in through both is one message, and what one leaves the other finishes."""

from __future__ import annotations

from pathlib import Path

from holdfast import errors
from holdfast.store.db import SessionDB
from tests.faults import gateway_stories, gateways
from tests.faults import zygote as zygotes
from tests.faults.test_gateway_kills import both, story_of
from tests.support import backends, postgres

TRIES = 4
NOW = 1_790_000_000.0
PAST_EVERY_CLAIM = 3600.0


@both
def test_of_two_at_once_one_is_killed_and_the_other_finishes_its_turns(
    backend: backends.Backend, zygote: zygotes.Zygote, place: Path
) -> None:
    story = story_of(zygote, backend, place, "pairs")
    killed = 0
    for step in gateways.POINTS:
        # The one that is to die may find that the other does all the work.
        killed += any(gateway_stories.kill_one_of_two(story, f"gateway.{step}", 1) for _ in range(TRIES))
        assert story.wrongs() == [], step
    assert killed >= len(gateways.POINTS) // 2, killed
    assert taken_over(story) > 0


def taken_over(story: gateway_stories.Story) -> int:
    """How many were begun by one and ended by another."""
    with SessionDB(story.target) as db:
        found = [db.mail.inbound_by_key(gateways.PLATFORM, each.key) for each in story.updates]
        return len([each for each in found if each is not None and each.attempts > 1])


@both
def test_one_that_was_stopped_past_its_claims_wakes_up_and_writes_nothing_stale(
    backend: backends.Backend, zygote: zygotes.Zygote, place: Path
) -> None:
    story, clock = story_of(zygote, backend, place, "stops"), zygotes.Clock(str(place / "clock"), NOW)
    slept = list[int]()
    for step in gateways.POINTS:
        tries = (overtaken(story, f"gateway.{step}", clock, str(place / "clock")) for _ in range(TRIES))
        slept += [next((pid for pid in tries if pid), 0)]
        assert story.wrongs() == [], step
    assert slept.count(0) < len(gateways.POINTS) // 2, slept


def overtaken(story: gateway_stories.Story, point: str, clock: zygotes.Clock, path: str) -> int:
    """One falls asleep at a point, for longer than any claim lasts; another does its work; and it wakes up.

    Its pid; 0 where it did not come there, or fell asleep with the pen in its hand, and nobody else could write.
    """
    story.say("First", gateways.COMMAND, "Second", names=("ann",))
    args = story.args(point, 1, signal="SIGSTOP")
    first = story.running.run(gateways.live, story.target, args, clock=path)
    clock.set(clock() + PAST_EVERY_CLAIM)
    free = first.state == "stopped" and not in_the_way(story.target, clock)
    if free:
        story.heard(story.running.run(gateways.live, story.target, args | {"point": ""}, clock=path))
    story.heard(story.running.wait(first.pid, "SIGCONT") if first.state == "stopped" else first)
    return first.pid if free else 0


def in_the_way(target: str, clock: zygotes.Clock) -> bool:
    """Whether one that is stopped holds what others need to write: it is in the middle of a transaction."""
    if target.startswith("postgresql:"):
        held = (
            "SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation"
            " WHERE l.mode IN ('RowShareLock', 'RowExclusiveLock') AND c.relnamespace = %s::regnamespace"
        )
        schema = target.rpartition("search_path%3D")[2]
        row = postgres.admin().execute(held, (schema,)).fetchone()
        return row is not None and row[0] > 0
    with SessionDB(target, clock=clock, write_timeout=0.1) as db:
        try:
            db.admin.set_meta("probe", "x")
        except errors.StoreBusy:
            return True
    return False
