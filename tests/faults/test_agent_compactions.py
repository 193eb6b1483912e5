"""Compactions by agents in several processes: few summarizer calls in all, one continuation, and nothing lost."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.compaction import policy
from holdfast.store.db import SessionDB
from tests.faults import agent_processes as agents
from tests.faults import zygote as zygotes

POLICY = policy.CompactionPolicy()


def begin_long(path: Path, conversation: str = "talk") -> None:
    with SessionDB(path) as db:
        db.create_session(conversation, source="fault")
        agents.fill(db, conversation, 30)


def test_exactly_one_process_compacts_and_the_others_keep_their_context(zygote: zygotes.Zygote, place: Path) -> None:
    path = place / "store.db"
    for round_ in range(3):
        conversation = f"talk{round_}"
        begin_long(path, conversation)
        values = [each.value for each in zygote.run_all(agents.compact, path, {"conversation": conversation}, 4)]
        (winner,) = [value for value in values if value["outcome"] == "compacted"]
        losers = [value for value in values if value is not winner]
        assert {value["outcome"] for value in losers} <= {"busy", "nothing_to_do", "cooling_down"}, values
        assert all(value["kept"] for value in losers)
        with SessionDB(path) as db:
            assert winner["session"] == db.head(conversation).id
            assert len(db.sessions(conversation)) == 2
            assert agents.compaction_problems(db, conversation) == []


def test_next_compaction_goes_on_after_a_kill_at_any_point(zygote: zygotes.Zygote, place: Path) -> None:
    begin_long(place / "counted.db")
    args, operations = {"conversation": "talk"}, agents.COMPACTION_OPERATIONS
    counted = zygote.run(agents.compact, place / "counted.db", args, points=operations)
    assert counted.value["outcome"] == "compacted", counted
    for at in range(len(counted.reached)):
        path = place / f"{at}.db"
        begin_long(path)
        killed = zygote.run(agents.compact, path, args, points=operations, at=at)
        assert killed.state == "killed", killed
        with SessionDB(path) as db:
            sessions = db.sessions("talk")
            assert (len(sessions) in (1, 2), len(db.transcript("talk"))) == (True, 60), at
        again = zygote.run(agents.compact, path, {**args, "force": True})
        assert again.value["outcome"] in ("compacted", "nothing_to_do"), (at, again)
        with SessionDB(path) as db:
            # A forced compaction is made again after one that was committed.
            assert len(db.sessions("talk")) == len(sessions) + (again.value["outcome"] == "compacted") >= 2, at
            assert db.append_message("talk", role="user", content="next").seq == 61
            assert db.admin.fsck().ok


def test_pause_grows_in_all_processes_with_every_kill_in_a_summary(zygote: zygotes.Zygote, place: Path) -> None:
    path, how = place / "store.db", {"clock": str(place / "clock")}
    args = {"conversation": "talk", "calls": str(place / "calls")}
    clock = zygotes.Clock(how["clock"], 1_000_000.0)
    begin_long(path)
    pauses = (*POLICY.cooldowns, POLICY.cooldowns[-1])
    for number, pause in enumerate(pauses, start=1):
        assert zygote.run(agents.compact, path, {**args, "dies": True}, **how).state == "killed"
        clock.set(clock() + pause - 1)
        refused = zygote.run_all(agents.compact, path, args, 2, **how)
        assert {outcome.value["outcome"] for outcome in refused} - {"busy"} == {"cooling_down"}, refused
        assert os.path.getsize(args["calls"]) == number
        clock.set(clock() + 2)
    # The summarizer fails again, and the extract needs none.
    outcomes = [outcome.value["outcome"] for outcome in zygote.run_all(agents.compact, path, args, 2, **how)]
    assert outcomes.count("compacted") == 1, outcomes
    assert os.path.getsize(args["calls"]) == len(pauses) + 1
    with SessionDB(path) as db:
        assert len(db.transcript("talk")) == 60
        assert agents.compaction_problems(db, "talk") == []
        assert len(db.sessions("talk")) == 2
