"""Processes that are stopped (a laptop closed, a container paused) and later go on: an expired lease is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import errors
from holdfast.store.db import SessionDB
from tests.faults import checker, kill_points, load, steps
from tests.faults import zygote as zygotes

BETWEEN_CALLS = ["compact.acquired", "compact.read", "compact.summarized"]
IN_COMMIT = ["queued", "begun", "session_end", "session_insert", "compaction_insert", "conversation_update"]
IN_COMMIT += ["lease_delete", "committing", "committed"]
IN_APPEND = ["queued", "begun", "message_insert", "committing", "committed"]
TTL = 30.0
IMPATIENT = 0.1


class Scene:
    """A store with one conversation, a shared clock, and the zygote."""

    def __init__(self, place: Path, zygote: zygotes.Zygote) -> None:
        self.path = place / "store.db"
        self.clock = zygotes.Clock(str(place / "clock"), 1_000.0)
        self.how = {"clock": str(place / "clock")}
        self.zygote = zygote
        self.db = SessionDB(self.path, clock=self.clock, write_timeout=IMPATIENT)
        steps.begin(self.db, "c")

    def stopped(self, task: zygotes.Task, name: str, point: str) -> int:
        """A child stopped at a point; its pid."""
        operation = point.partition(".")[0]
        outcome = self.zygote.run(
            task, self.path, {"id": "c", "name": name}, points=(operation,), at=point, fault=signal.SIGSTOP, **self.how
        )
        assert outcome.state == "stopped", outcome
        return outcome.pid

    def run(self, task: zygotes.Task, name: str) -> zygotes.Outcome:
        return self.zygote.run(task, self.path, {"id": "c", "name": name}, **self.how)

    def begin(self, task: zygotes.Task, name: str) -> int:
        return self.zygote.start(task, self.path, {"id": "c", "name": name}, **self.how)

    def pass_expiry(self) -> None:
        self.clock.set(self.clock() + TTL + 1)

    def settled(self, *outcomes: zygotes.Outcome) -> None:
        """Nothing is broken, and the next message is accepted."""
        history = zygotes.records(outcomes)
        receipt = self.db.append_message("c", role="user", content="next", uid="next")
        history.append(checker.Sent("after", "c", "next", "next", receipt))
        assert checker.verify(self.db, history) == []


@pytest.fixture
def scene(place: Path, zygote: zygotes.Zygote) -> Iterator[Scene]:
    made = Scene(place, zygote)
    yield made
    made.db.close()
    made.clock.close()


def test_listed_points_are_complete(place: Path) -> None:
    assert kill_points.course_of("commit", place / "c.db").names == [f"commit.{stage}" for stage in IN_COMMIT]
    assert kill_points.course_of("append", place / "a.db").names == [f"append.{stage}" for stage in IN_APPEND]


@pytest.mark.parametrize("overtaken", [True, False])
@pytest.mark.parametrize("point", BETWEEN_CALLS)
def test_holder_stopped_past_its_expiry_cannot_commit(point: str, overtaken: bool, scene: Scene) -> None:
    pid = scene.stopped(load.compact, "slow", point)
    scene.pass_expiry()
    others = [scene.run(load.compact, "other")] if overtaken else []
    assert [other.value for other in others] == ["done"] * overtaken
    before = steps.observe(scene.db, "c")
    slow = scene.zygote.wait(pid, signal.SIGCONT)
    assert (slow.value, steps.observe(scene.db, "c")) == ("LeaseLost", before)
    scene.settled(slow, *others)


@pytest.mark.parametrize("stage", IN_COMMIT)
def test_holder_stopped_inside_its_commit_commits_or_loses_never_both(stage: str, scene: Scene) -> None:
    pid = scene.stopped(load.compact, "slow", f"commit.{stage}")
    scene.pass_expiry()
    # It waits in the queue behind the stopped one.
    other_pid = scene.begin(load.compact, "other")
    slow, other = scene.zygote.wait(pid, signal.SIGCONT), scene.zygote.wait(other_pid)
    assert slow.value == ("LeaseLost" if stage in ("queued", "begun") else "done")
    assert other.value == "done"
    assert len(scene.db.compactions("c")) == (1 if slow.value == "LeaseLost" else 2)
    scene.settled(slow, other)


@pytest.mark.parametrize("point", ["turn.began", "append.queued", "append.begun"])
def test_turn_stopped_past_its_expiry_cannot_write(point: str, scene: Scene) -> None:
    pid = scene.stopped(load.turn, "slow", point)
    scene.pass_expiry()
    other = None
    if point == "turn.began":
        other = scene.run(load.turn, "other")
        assert other.value == 5
    slow = scene.zygote.wait(pid, signal.SIGCONT)
    assert slow.value is None
    assert "c:slow" not in {message.uid for message in scene.db.transcript("c")}
    assert [record.refused for record in slow.records if isinstance(record, checker.Sent)][-1] == "LeaseLost"
    scene.settled(slow, *([other] if other else []))


@pytest.mark.parametrize("ending", [signal.SIGCONT, signal.SIGKILL])
@pytest.mark.parametrize("stage", IN_APPEND)
def test_writers_wait_for_a_stopped_one_only_until_their_timeout(
    stage: str, ending: signal.Signals, scene: Scene
) -> None:
    pid = scene.stopped(load.write, "slow", f"append.{stage}")
    with pytest.raises(errors.StoreBusy):
        scene.db.append_message("c", role="user", content="too early", uid="early")
    # Reading needs no place in the queue.
    assert len(scene.db.transcript("c")) == (5 if stage == "committed" else 4)
    slow = scene.zygote.wait(pid, ending)
    assert slow.value == (5 if ending == signal.SIGCONT else None)
    later = scene.run(load.write, "later")
    assert later.value
    assert "early" not in {message.uid for message in scene.db.transcript("c")}
    scene.settled(slow, later)


def test_forked_child_does_not_keep_the_queue_place_of_its_dead_parent(scene: Scene) -> None:
    pid = scene.stopped(load.write_after_fork, "parent", "append.queued")
    dead = scene.zygote.wait(pid, signal.SIGKILL)
    child = dead.records[0]
    try:
        os.kill(child, 0)  # it lives
        scene.settled()
    finally:
        os.kill(child, 9)
