"""Compactions by agents in processes: one continuation, nothing lost, whoever dies when."""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast import AsyncSessionDB
from holdfast.store.db import SessionDB
from tests.faults import compacting, turns
from tests.faults import zygote as zygotes

OPERATIONS = ("acquire", "budget", "commit", "release")
ROUNDS = 12


def test_of_many_processes_one_compacts_and_the_others_keep_what_they_had(zygote: zygotes.Zygote, place: Path) -> None:
    path = place / "store.db"
    for round_ in range(6):
        conversation = f"talk{round_}"
        with SessionDB(path) as db:
            db.create_session(conversation, source="fault")
            compacting.fill(db, conversation, 30)
        outcomes = zygote.crowd(compacting.compact, path, {"conversation": conversation}, 4)
        values = [outcome.value for outcome in outcomes]
        winners = [value for value in values if value["outcome"] == "compacted"]
        with SessionDB(path) as db:
            assert len(winners) == 1, outcomes
            assert winners[0]["session"] == db.head(conversation).id
            assert len(db.sessions(conversation)) == 2
            for value in values:
                if value not in winners:
                    assert value["outcome"] in ("busy", "nothing_to_do", "cooling_down"), value
                    assert value["kept"]
            assert db.get_compression_lock_holder(conversation) is None
            tail = [message.seq for message in db.context(conversation) if not message.uid.startswith("summary:")]
            assert tail[-6:] == list(range(55, 61))
            assert db.admin.fsck().ok


def test_compactors_and_appenders_at_once_lose_nothing(zygote: zygotes.Zygote, place: Path) -> None:
    path = place / "store.db"
    with SessionDB(path) as db:
        db.create_session("talk", source="fault")
        compacting.fill(db, "talk", 30)
    said: list[str] = []
    for round_ in range(ROUNDS):
        args = {"conversation": "talk", "force": True, "round": round_, "appends": 5}
        outcomes = zygote.crowd(compacting.crowd, path, args, 16)
        assert all(outcome.error is None for outcome in outcomes), outcomes
        said += [f"{round_}:{index}:{number}" for index in range(1, 16, 2) for number in range(5)]
        with SessionDB(path) as db:
            assert compacting.wrongs(db, "talk", said) == []
            compacting.fill(db, "talk", 6, begin=100 + 20 * round_)
    with SessionDB(path) as db:
        logged = [message.uid for message in db.transcript("talk")]
        assert set(said) <= set(logged)
        assert len(set(logged)) == len(logged)
        sessions = db.sessions("talk")
        assert len(sessions) > 3
        assert all(len(db.continuations(each.id)) <= 1 for each in sessions)
        assert turns.invalid(db.context("talk")) == []
        assert db.admin.fsck().ok


def test_killed_at_any_point_of_a_compaction_the_next_one_goes_on(zygote: zygotes.Zygote, place: Path) -> None:
    path = place / "counted.db"
    with SessionDB(path) as db:
        db.create_session("talk", source="fault")
        compacting.fill(db, "talk", 30)
    counted = zygote.run(compacting.compact, path, {"conversation": "talk"}, points=OPERATIONS)
    assert counted.value["outcome"] == "compacted", counted
    for at in range(len(counted.reached)):
        path = place / f"{at}.db"
        with SessionDB(path) as db:
            db.create_session("talk", source="fault")
            compacting.fill(db, "talk", 30)
            log = [message.uid for message in db.transcript("talk")]
        killed = zygote.run(compacting.compact, path, {"conversation": "talk"}, points=OPERATIONS, at=at)
        assert killed.state == "killed", killed
        with SessionDB(path) as db:
            sessions = db.sessions("talk")
            assert len(sessions) in (1, 2), at
            assert [message.uid for message in db.transcript("talk")] == log
        again = zygote.run(compacting.compact, path, {"conversation": "talk", "force": True})
        assert again.value["outcome"] in ("compacted", "nothing_to_do"), (at, again)
        with SessionDB(path) as db:
            # A forced compaction is made again after one that was committed.
            assert len(db.sessions("talk")) == len(sessions) + (again.value["outcome"] == "compacted") >= 2, at
            assert db.append_message("talk", role="user", content="next").seq == len(log) + 1
            assert db.admin.fsck().ok


def test_after_a_restart_the_conversation_goes_on_compacted_and_does_not_compact_again(place: Path) -> None:
    path = place / "store.db"
    with SessionDB(path) as db:
        db.create_session("talk", source="fault")
        compacting.fill(db, "talk", 30)

    async def once(text: str) -> tuple[str, int]:
        async with AsyncSessionDB(SessionDB(path)) as db:
            one = compacting.agent(db, "talk")
            result = await one.run_conversation(text)
            await one.close()
            assert result.completed
            return result.session_id, len(await db.sessions("talk"))

    async def first() -> None:
        async with AsyncSessionDB(SessionDB(path)) as db:
            made = await compacting.agent(db, "talk").compress_context()
            assert made.outcome == "compacted"

    asyncio.run(first())
    for number in range(3):
        session, count = asyncio.run(once(f"Go on {number}"))
        assert count == 2
        with SessionDB(path) as db:
            assert session == db.head("talk").id
