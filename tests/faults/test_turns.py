"""Turns under faults: killed at any point, stopped past their lease, many processes at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast import content_parts, errors, types
from holdfast.store.db import SessionDB
from tests.faults import turns
from tests.faults import zygote as zygotes

KILLS = int(os.environ.get("HOLDFAST_KILLS") or 6)
ROUNDS = 2  # in a conversation that begins, and in one that has a past
PARTS = 4


def points_of(running: zygotes.Zygote, path: Path) -> int:
    outcome = running.run(turns.talk, path, {"conversation": "counted", "uid": "u"}, points=turns.OPERATIONS)
    assert outcome.state == "exited", outcome
    assert outcome.value["answer"] == turns.ANSWER
    return len(outcome.reached)


def settled(path: Path, conversation: str, where: str) -> None:
    """The next start: a history every provider accepts, the message in it once, and the turn can be taken."""
    with SessionDB(path) as db:
        known = db.get_session(conversation) is not None
        if known:
            assert turns.invalid(db.context(conversation)) == [], where
            assert [each.uid for each in db.transcript(conversation)].count("u") <= 1, where
        result = turns.take(db, conversation, "u")  # closes the store
    assert (result.exit_reason, result.final_response) == ("completed", turns.ANSWER), where
    with SessionDB(path) as db:
        log = db.transcript(conversation)
        assert [each.uid for each in log].count("u") == 1, where
        assert turns.invalid(db.context(conversation)) == [], where
        assert content_parts.text(log[-1].content) == turns.ANSWER, where
        assert db.leases() == [], where
        assert db.admin.fsck().ok, where


@pytest.mark.parametrize("part", range(PARTS))
def test_killed_at_any_point_of_a_turn_the_next_start_goes_on(part: int, zygote: zygotes.Zygote, place: Path) -> None:
    count = points_of(zygote, place / "counted.db")
    assert count > 40
    for at in range(part, count, PARTS):
        path = place / f"{at}.db"
        for round_ in range(ROUNDS):
            conversation = f"talk{round_}"
            args = {"conversation": conversation, "uid": "u"}
            if round_ % 2:  # a conversation that has a past
                with SessionDB(path) as db:
                    db.append_message(
                        conversation, role="user", content="Hello.", create=types.NewConversation(source="test")
                    )
                    db.append_message(conversation, role="assistant", content="Good day.")
            outcome = zygote.run(turns.talk, path, args, points=turns.OPERATIONS, at=at)
            if outcome.state == "exited":
                continue  # with a past there is no birth: fewer points
            assert outcome.state == "killed", outcome
            settled(path, conversation, f"killed at point {at}, round {round_}")


@pytest.mark.parametrize("where", ["calling", "working", "saying"])
def test_killed_while_the_model_speaks_or_a_tool_works_the_next_start_goes_on(
    zygote: zygotes.Zygote, place: Path, where: str
) -> None:
    path = place / "store.db"
    for round_ in range(KILLS):
        args = {"conversation": f"talk{round_}", "uid": "u", "die_while": where}
        assert zygote.run(turns.talk, path, args).state == "killed"
        settled(path, f"talk{round_}", f"{where}, round {round_}")


def test_processes_that_talk_at_once_take_turns_and_nothing_is_lost(zygote: zygotes.Zygote, place: Path) -> None:
    path, count, each = place / "store.db", 4, 12
    with SessionDB(path) as db:
        db.append_message("talk", role="user", content="Hello.", create=types.NewConversation(source="test"))
        db.append_message("talk", role="assistant", content="Good day.")
    outcomes = zygote.crowd(turns.chat, path, {"conversation": "talk", "turns": each}, count)
    for index, outcome in enumerate(outcomes):
        assert outcome.value == [f"re {index}:{number}" for number in range(each)], outcome
    with SessionDB(path) as db:
        log = db.transcript("talk")[2:]
        assert len(log) == 2 * count * each
        for question, answer in zip(log[::2], log[1::2], strict=True):
            assert (question.role, answer.role) == ("user", "assistant")
            assert content_parts.text(answer.content) == f"re {content_parts.text(question.content)}"
        assert len({message.uid for message in log}) == len(log)
        assert db.leases() == []
        assert db.admin.fsck().ok


def test_a_process_stopped_in_mid_turn_past_its_lease_cannot_write_afterwards(
    zygote: zygotes.Zygote, place: Path
) -> None:
    clock = zygotes.Clock(str(place / "clock"), 1_790_000_000.0)
    count = points_of(zygote, place / "counted.db")
    overtaken = 0
    for at in range(count):
        path = place / f"{at}.db"
        with SessionDB(path, clock=clock) as db:
            db.append_message("talk", role="user", content="Hello.", create=types.NewConversation(source="test"))
            db.append_message("talk", role="assistant", content="Good day.")
        args = {"conversation": "talk", "uid": "slow"}
        order = {"points": turns.OPERATIONS, "at": at, "fault": "stop", "clock": str(place / "clock")}
        outcome = zygote.run(turns.talk, path, args, **order)
        if outcome.state == "exited":
            continue
        # What a stopped process may hold is the line of writers: nobody can write until it is let go or dies.
        if holds_the_line(path, clock):
            zygote.end(outcome.pid)
            continue
        clock.set(clock() + 3600)
        result = turns.take(SessionDB(path, clock=clock), "talk", "quick")
        assert result.completed, at
        with SessionDB(path, clock=clock) as db:
            before = [message.uid for message in db.transcript("talk")]
            last = zygote.wait(outcome.pid, "SIGCONT")
            after = [message.uid for message in db.transcript("talk")]
            assert db.admin.fsck().ok
        assert last.state == "exited", last
        if last.value["exit"] == "lease_lost":
            assert before == after, f"stopped at point {at}: wrote after it was overtaken"
            overtaken += 1
        else:
            # It had not begun, or had ended: its turn is whole, before or behind the other's.
            assert last.value["exit"] == "completed", last
    assert overtaken >= 4, overtaken


def holds_the_line(path: Path, clock: zygotes.Clock) -> bool:
    with SessionDB(path, clock=clock, write_timeout=0.2) as db:
        try:
            db.admin.set_meta("probe", "x")
        except errors.StoreBusy:
            return True
    return False
