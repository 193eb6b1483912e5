"""Gateways killed or stopped anywhere between receipt and delivery: the next one finishes, nothing is lost or twice."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from holdfast import content_parts, errors
from holdfast.store.db import SessionDB
from tests.faults import agent_processes, gateway_processes
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
    """Another gateway does its work meanwhile, if it was not stopped in a transaction, so that no other can write."""
    path, overtaken = str(place / "clock"), 0
    clock = zygotes.Clock(path, NOW)
    for step in gateway_processes.POINTS:
        story.add("First", gateway_processes.COMMAND, "Second", names=("ann",))
        args, task = story.args(), gateway_processes.run_gateway
        fault = {"points": gateway_processes.OPERATIONS, "at": f"gateway.{step}", "fault": signal.SIGSTOP}
        first = story.running.run(task, story.target, args, clock=path, **fault)
        clock.set(clock() + LONGER_THAN_LEASES)
        if first.state == "stopped" and not holds_locks(story.target, clock):
            story.collect(story.running.run(task, story.target, args, clock=path))
            overtaken += 1
        story.collect(story.running.wait(first.pid, signal.SIGCONT) if first.state == "stopped" else first)
        story.check()
    assert overtaken >= len(gateway_processes.POINTS) // 2


def holds_locks(target: str, clock: zygotes.Clock) -> bool:
    if target.startswith("postgresql:"):
        held = (
            "SELECT 1 FROM pg_locks l JOIN pg_class c ON c.oid = l.relation"
            " WHERE l.mode IN ('RowShareLock', 'RowExclusiveLock') AND c.relnamespace = %s::regnamespace"
        )
        schema = target.rpartition("search_path%3D")[2]
        return postgres.admin().execute(held, (schema,)).fetchone() is not None
    with SessionDB(target, clock=clock, write_timeout=0.1) as db:
        try:
            db.admin.set_meta("probe", "x")
        except errors.StoreBusy:
            return True
    return False


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
        assert agent_processes.compaction_problems(db, "talk") == []
        log = [(each.role, content_parts.text(each.content)) for each in db.transcript("talk")][2 * EXCHANGES :]
        assert log == gateway_processes.exchanges(story.updates)
        # Compacted once, in the same conversation, and its route was not bound anew.
        assert [each.end_reason for each in db.sessions("talk")] == ["compression", None]
        assert {db.snapshot(each.id).conversation_id for each in db.list_sessions()} == {"talk"}
        assert db.routes() == routes
        assert "In short." in (db.context("talk").summary or "")
