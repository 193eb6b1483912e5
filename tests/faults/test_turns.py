"""Turns and notices of processes that are killed at any point, and notices that several processes see."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import content_parts
from holdfast.store.db import SessionDB
from tests.faults import agent_processes as agents
from tests.faults import zygote as zygotes
from tests.support import conversations, messages

PARTS = 4


def count_points(running: zygotes.Zygote, path: Path) -> int:
    args = {"conversation": "counted", "uid": "u"}
    outcome = running.run(agents.take_turn, path, args, points=agents.TURN_OPERATIONS)
    assert outcome.value["answer"] == agents.ANSWER, outcome
    assert {"model.calls", "tool.works", "model.answers", "append.committed"} <= set(outcome.reached)
    return len(outcome.reached)


def check_next_start(path: Path, conversation: str, where: str) -> None:
    """A history every provider accepts, the message in it once, and the turn can be taken."""
    with SessionDB(path) as db:
        if db.get_session(conversation) is not None:
            assert messages.order_errors(db.context(conversation)) == [], where
            assert [each.uid for each in db.transcript(conversation)].count("u") <= 1, where
        result = agents.take(db, conversation, "u")  # closes the store
    assert (result.exit_reason, result.final_response) == ("completed", agents.ANSWER), where
    with SessionDB(path) as db:
        log = db.transcript(conversation)
        assert [each.uid for each in log].count("u") == 1, where
        assert messages.order_errors(db.context(conversation)) == [], where
        assert content_parts.text(log[-1].content) == agents.ANSWER, where
        assert db.leases() == [], where
        assert db.admin.fsck().ok, where


@pytest.mark.parametrize("part", range(PARTS))
def test_next_start_goes_on_after_a_kill_at_any_point_of_a_turn(part: int, zygote: zygotes.Zygote, place: Path) -> None:
    count = count_points(zygote, place / "counted.db")
    assert count > 40
    for at in range(part, count, PARTS):
        path, conversation = place / f"{at}.db", "talk"
        if at // PARTS % 2:
            with SessionDB(path) as db:
                agents.begin(db, conversation)
        args = {"conversation": conversation, "uid": "u"}
        outcome = zygote.run(agents.take_turn, path, args, points=agents.TURN_OPERATIONS, at=at)
        # A conversation with a past has fewer points: it is not created.
        assert outcome.state == "killed" or at // PARTS % 2, outcome
        check_next_start(path, conversation, f"killed at point {at}")


def begin_process(path: Path, conversation: str, name: str) -> dict[str, str]:
    with SessionDB(path) as db:
        agents.begin(db, conversation)
        db.processes.record_start(conversations.process(name, conversation))
    return {"conversation": conversation, "process": name}


def test_notice_is_delivered_once_after_a_kill_at_any_point(zygote: zygotes.Zygote, place: Path) -> None:
    operations = agents.NOTICE_OPERATIONS
    args = begin_process(place / "counted.db", "talk", "p")
    counted = zygote.run(agents.deliver_notice, place / "counted.db", args, points=operations)
    # The row and its notice, the message, and what became of it: each a place to die at, and between any two of them.
    assert {"process.process_end", "process.committed", "append.committed", "inbox.inbox_settle"} <= set(
        counted.reached
    )
    for at, point in enumerate(counted.reached):
        path = place / f"{at}.db"
        begin_process(path, "talk", "p")
        killed = zygote.run(agents.deliver_notice, path, args, points=operations, at=at)
        assert killed.state == "killed", (point, killed)
        again = zygote.run(agents.deliver_notice, path, args)
        assert (again.state, again.error) == ("exited", None), (point, again)
        with SessionDB(path) as db:
            assert agents.notice_problems(db, "talk") == [], point


def test_notice_of_a_process_that_several_programs_see_is_delivered_once(zygote: zygotes.Zygote, place: Path) -> None:
    path = place / "store.db"
    for round_ in range(4):
        args = begin_process(path, f"talk{round_}", f"p{round_}")
        outcomes = zygote.run_all(agents.deliver_notice, path, args, 4)
        assert [outcome.error for outcome in outcomes] == [None] * 4, outcomes
        assert sorted(bool(outcome.value) for outcome in outcomes) == [False] * 3 + [True]
        with SessionDB(path) as db:
            assert agents.notice_problems(db, args["conversation"]) == []
