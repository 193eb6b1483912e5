"""Gateways killed or stopped anywhere between receipt and delivery: the next one finishes, nothing is lost or twice."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from holdfast import content_parts
from holdfast.store.db import SessionDB
from tests.faults import agent_processes, gateway_processes, load
from tests.faults import zygote as zygotes
from tests.faults.gateway_processes import Story, Update
from tests.support import backends, postgres


@pytest.fixture(params=backends.SHARED, ids=lambda backend: backend.name)
def story(request: pytest.FixtureRequest, zygote: zygotes.Zygote, place: Path) -> Story:
    """Chats in an empty store; each test has its own random choices."""
    return Story(zygote, request.param.target(place, "store"), place / "sends", random.Random(request.node.name))


@pytest.mark.parametrize("step", gateway_processes.POINTS)
def test_next_gateway_finishes_after_a_kill_at_any_step(step: str, story: Story) -> None:
    assert gateway_processes.kill_at(story, f"gateway.{step}", 1, len(gateway_processes.NAMES)) == 1
    story.run()
    story.check()


def test_next_gateway_finishes_after_a_kill_at_any_point_of_the_store(story: Story) -> None:
    died = set(gateway_processes.kill_everywhere(story, 1))
    story.run()
    story.check()
    # Each operation is a transaction, with points before, within and behind it.
    stages = ("begun", "committing", "committed")
    assert died >= {f"{each}.{stage}" for each in gateway_processes.STORE_OPERATIONS for stage in stages}
    assert died >= {"arrive.arrival_insert", "settle.arrival_settle", "settle.reply_insert"}
    assert died >= {"settle.claim_release_settled", "append.route_insert", "delivered.outgoing_delivered"}


TRIES = 10
NOW = 1_790_000_000.0
LONGER_THAN_LEASES = 3600.0


def test_second_gateway_finishes_the_turns_of_a_killed_one(story: Story) -> None:
    killed = 0
    for step in gateway_processes.POINTS[::2]:
        # The one that is to die may find that the other does all the work.
        killed += any(gateway_processes.kill_first_gateway(story, f"gateway.{step}", 1) for _ in range(TRIES))
        story.check()
    assert killed >= 2


def test_gateway_stopped_past_its_leases_wakes_up_and_writes_nothing_stale(story: Story, place: Path) -> None:
    clock, overtaken = zygotes.Clock(str(place / "clock"), NOW), 0
    for step in gateway_processes.POINTS:
        overtaken += overtake(story, f"gateway.{step}", clock, str(place / "clock"))
        story.check()
    assert overtaken >= len(gateway_processes.POINTS) // 2


def overtake(story: Story, point: str, clock: zygotes.Clock, path: str) -> bool:
    """Stop a gateway at a point for longer than its leases last, let another do its work, and continue it.

    False where it did not come there, or was stopped in a transaction, so that no other could write.
    """
    story.add("First", gateway_processes.COMMAND, "Second", names=("ann",))
    args, fault = story.args(), {"points": gateway_processes.OPERATIONS, "at": point, "fault": signal.SIGSTOP}
    first = story.running.run(gateway_processes.run_gateway, story.target, args, clock=path, **fault)
    clock.set(clock() + LONGER_THAN_LEASES)
    free = first.state == "stopped" and not holds_locks(story.target, clock)
    if free:
        story.collect(story.running.run(gateway_processes.run_gateway, story.target, args, clock=path))
    story.collect(story.running.wait(first.pid, signal.SIGCONT) if first.state == "stopped" else first)
    return free


def holds_locks(target: str, clock: zygotes.Clock) -> bool:
    """Whether a stopped gateway is in the middle of a transaction, so that others cannot write."""
    if target.startswith("postgresql:"):
        held = (
            "SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation"
            " WHERE l.mode IN ('RowShareLock', 'RowExclusiveLock') AND c.relnamespace = %s::regnamespace"
        )
        schema = target.rpartition("search_path%3D")[2]
        row = postgres.admin().execute(held, (schema,)).fetchone()
        return row is not None and row[0] > 0
    return load.holds_writer_queue(target, clock)


CHAT = "ann0"
EXCHANGES = 60  # more than the window of a model has room for


@pytest.mark.parametrize(
    ("point", "first"),
    [("commit.committed", "/compact"), ("commit.committed", "What now?"), ("gateway.settled", "What now?")],
)
def test_next_gateway_goes_on_in_the_compacted_conversation_after_a_kill(point: str, first: str, story: Story) -> None:
    with SessionDB(story.target) as db:
        agent_processes.fill(db, "talk", EXCHANGES, owner=f"{gateway_processes.PLATFORM}:{CHAT}")
        db.bind_route(gateway_processes.route_of(CHAT), "talk", version=0)
        routes = db.routes()
    run, operations = gateway_processes.run_gateway, gateway_processes.OPERATIONS
    for text, at in ((first, point), ("Go on.", None)):
        story.updates.append(Update(CHAT, text, text))
        args = story.args(window=agent_processes.WINDOW)
        outcome = story.running.run(run, story.target, args, points=operations, at=at)
        assert outcome.state == ("killed" if at else "exited"), outcome
        story.collect(outcome)
    with SessionDB(story.target) as db:
        assert gateway_processes.open_work(db) == []
        assert agent_processes.compaction_problems(db, "talk", []) == []
        log = [(each.role, content_parts.text(each.content)) for each in db.transcript("talk")][2 * EXCHANGES :]
        assert log == gateway_processes.exchanges(story.updates)
        # Compacted once, in the same conversation, and its route was not bound anew.
        assert [each.end_reason for each in db.sessions("talk")] == ["compression", None]
        assert {db.snapshot(each.id).conversation_id for each in db.list_sessions()} == {"talk"}
        assert db.routes() == routes
        assert "In short." in (db.context("talk").summary or "")
