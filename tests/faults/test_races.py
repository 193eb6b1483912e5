"""Eight processes, many rounds, every round from a barrier: exactly one wins, and nobody loses a message.

Twenty rounds where one writes at a time, eight where all do at once; `make chaos` plays thousands.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.store.db import SessionDB
from tests.faults import checker, races, steps
from tests.faults import zygote as zygotes
from tests.support import postgres

PROCESSES = 8
ROUNDS = {"sqlite": 20, "postgres": 8}


@pytest.fixture(params=list(ROUNDS))
def store(request: pytest.FixtureRequest, place: Path) -> str:
    return postgres.fresh() if request.param == "postgres" else str(place / "store.db")


class Race:
    """What every process returned in every round, and what all of them recorded."""

    def __init__(self, zygote: zygotes.Zygote, store: str, race: str, processes: int = PROCESSES) -> None:
        with SessionDB(store) as db:
            steps.say(db, "c", 4)
        self.count = ROUNDS[db.driver.name]
        outcomes = zygote.crowd(races.run, store, {"race": race, "rounds": self.count}, processes)
        assert [outcome.error for outcome in outcomes] == [None] * processes
        self.rounds: list[list[Any]] = [list(results) for results in zip(*(o.value for o in outcomes), strict=True)]
        self.history = zygotes.records(outcomes)
        assert len(self.rounds) == self.count

    def granted(self) -> int:
        return sum(isinstance(record, checker.Granted) for record in self.history)

    def summarized(self) -> int:
        return sum(isinstance(record, checker.Summarized) for record in self.history)


def test_compactors_and_appenders_share_one_conversation(zygote: zygotes.Zygote, store: str) -> None:
    race = Race(zygote, store, "everybody", 2 * PROCESSES)
    with SessionDB(store) as db:
        assert checker.verify(db, race.history) == []
        done = sum("done" in result for results in race.rounds for result in results)
        # Nobody but compactors changes the head, so whoever had the lease in time could commit.
        assert done == race.granted() == race.summarized() == len(db.sessions("c")) - 1 >= race.count
        assert db.conversation("c").last_seq == 4 + 2 * PROCESSES * race.count
        assert db.get_compression_lock_holder("c") is None


def test_one_of_all_compactors_gets_the_lease_and_only_its_summarizer_is_called(
    zygote: zygotes.Zygote, store: str
) -> None:
    race = Race(zygote, store, "one lease")
    assert [sorted(results) for results in race.rounds] == [["Busy"] * (PROCESSES - 1) + ["done"]] * race.count
    assert race.granted() == race.summarized() == race.count
    with SessionDB(store) as db:
        assert len(db.sessions("c")) == race.count + 1
        assert checker.verify(db, race.history) == []


def test_one_of_all_compactors_wins_without_any_lease(zygote: zygotes.Zygote, store: str) -> None:
    race = Race(zygote, store, "no leases")
    assert [sorted(results) for results in race.rounds] == [["Superseded"] * (PROCESSES - 1) + ["done"]] * race.count
    with SessionDB(store) as db:
        assert len(db.sessions("c")) == race.count + 1
        assert checker.verify(db, race.history) == []


def test_two_call_way_gives_one_end_and_one_continuation(zygote: zygotes.Zygote, store: str) -> None:
    race = Race(zygote, store, "two calls")
    with SessionDB(store) as db:
        for number, results in enumerate(race.rounds):
            (continuation,) = db.continuations(f"c{number}")
            assert [ended for ended, _ in results].count(True) == 1
            others = [made for _, made in results if made != continuation.id]
            assert others in (
                [["ForkRefused", continuation.id]] * (PROCESSES - 1),
                # A message that came between the two calls opened the continuation.
                [["ForkRefused", continuation.id]] * PROCESSES,
            )
        assert checker.verify(db, race.history) == []


def test_racing_resumes_and_messages_share_one_continuation(zygote: zygotes.Zygote, store: str) -> None:
    race = Race(zygote, store, "resumes")
    with SessionDB(store) as db:
        for number, results in enumerate(race.rounds):
            assert [session.id for session in db.continuations(f"c{number}")] == [results[0]]
            assert set(results) == {results[0]}
        assert checker.verify(db, race.history) == []


def test_first_message_of_a_chat_begins_one_conversation(zygote: zygotes.Zygote, store: str) -> None:
    race = Race(zygote, store, "births")
    with SessionDB(store) as db:
        for number, results in enumerate(race.rounds):
            (winner,) = [result for result in results if isinstance(result, str)]
            assert [result for result in results if result != winner] == [["RouteMoved", winner]] * (PROCESSES - 1)
            assert db.route(f"chat:{number}").conversation_id == winner
            born = [db.get_session(f"c{number}-{index}") for index in range(PROCESSES)]
            assert [session.id for session in born if session] == [winner]
        assert checker.verify(db, race.history) == []


def test_conversation_born_by_all_at_once_has_everybodys_message(zygote: zygotes.Zygote, store: str) -> None:
    race = Race(zygote, store, "same birth")
    assert [sorted(results) for results in race.rounds] == [list(range(1, PROCESSES + 1))] * race.count
    with SessionDB(store) as db:
        assert checker.verify(db, race.history) == []


def test_same_uid_sent_by_all_at_once_is_stored_once(zygote: zygotes.Zygote, store: str) -> None:
    race = Race(zygote, store, "same uid")
    for number, results in enumerate(race.rounds):
        assert {seq for seq, _ in results} == {5 + number}
        assert [duplicate for _, duplicate in results].count(False) == 1
    with SessionDB(store) as db:
        assert checker.verify(db, race.history) == []


def test_title_is_given_once(zygote: zygotes.Zygote, store: str) -> None:
    race = Race(zygote, store, "titles")
    with SessionDB(store) as db:
        for number, results in enumerate(race.rounds):
            holder = db.resolve(f"title {number}").conversation_id
            assert results.count(f"title {number}") == 1
            assert results.count(["TitleTaken", holder]) == PROCESSES - 1
        assert checker.verify(db, race.history) == []


def test_route_is_bound_by_one_of_those_who_saw_the_same_version(zygote: zygotes.Zygote, store: str) -> None:
    race = Race(zygote, store, "routes")
    for results in race.rounds:
        (winner,) = [result for result in results if isinstance(result, str)]
        assert results.count(["RouteMoved", winner]) == PROCESSES - 1
    with SessionDB(store) as db:
        assert db.route("chat").version == race.count
        assert checker.verify(db, race.history) == []


def test_one_of_all_spenders_wins_each_version_though_they_write_the_same(zygote: zygotes.Zygote, store: str) -> None:
    race = Race(zygote, store, "budgets")
    for number, results in enumerate(race.rounds):
        assert sorted(results) == [[number, False]] * (PROCESSES - 1) + [[number, True]]
    with SessionDB(store) as db:
        assert db.budget("c") == (race.count, {"rounds": race.count})
        assert checker.verify(db, race.history) == []


def test_one_of_all_watchers_tells_of_a_process_and_there_is_one_notice(zygote: zygotes.Zygote, store: str) -> None:
    race = Race(zygote, store, "ends")
    with SessionDB(store) as db:
        notices = {each.key: each.text for each in db.mail.inbox_entries("c", limit=1_000)}
        assert len(notices) == len(db.mail.inbox_entries(limit=1_000)) == race.count
        for number, results in enumerate(race.rounds):
            assert sorted(results) == [False] * (PROCESSES - 1) + [True]
            assert notices[f"process:p{number}"] == f"told by {results.index(True)}"
        # All have the same start time, so their order is not that of their numbers.
        codes = {each.id: each.exit_code for each in db.processes.all("c")}
        assert codes == {f"p{number}": results.index(True) for number, results in enumerate(race.rounds)}
        assert checker.verify(db, race.history) == []


def test_what_comes_in_by_all_at_once_is_one_and_is_settled_once(zygote: zygotes.Zygote, store: str) -> None:
    race = Race(zygote, store, "arrivals")
    with SessionDB(store) as db:
        assert db.mail.inbox_entries() == []
        for number, results in enumerate(race.rounds):
            assert len({id_ for id_, _ in results}) == 1
            (winner,) = [index for index, (_, first) in enumerate(results) if first]
            assert db.mail.add_inbox_entry("c", f"k{number}", "came in").outcome == f"settled by {winner}"
        assert checker.verify(db, race.history) == []


def test_same_fact_and_same_rule_of_all_at_once_are_one(zygote: zygotes.Zygote, store: str) -> None:
    race = Race(zygote, store, "facts")
    assert all(len({tuple(result) for result in results}) == 1 for results in race.rounds)
    with SessionDB(store) as db:
        assert len(db.memory.all("o")) == len(db.permissions.grants("o", "c")) == race.count
        assert checker.verify(db, race.history) == []


def test_deletion_and_branch_exclude_each_other(zygote: zygotes.Zygote, store: str) -> None:
    race = Race(zygote, store, "deletion")
    with SessionDB(store) as db:
        for number, (deleted, branched, *_) in enumerate(race.rounds):
            assert (deleted, branched) in (("done", "ConversationDeleted"), ("HasBranches", "done"))
            assert steps.deleted(db, f"c{number}") == (deleted == "done")
            assert (db.get_session(f"c{number}-b") is None) == (deleted == "done")
        assert checker.verify(db) == []


def test_stores_opened_and_closed_by_all_at_once_accept_every_message(zygote: zygotes.Zygote, place: Path) -> None:
    rounds = ROUNDS["sqlite"]
    outcomes = zygote.crowd(races.come_and_go, place / "store.db", {"rounds": rounds}, PROCESSES)
    assert [outcome.error for outcome in outcomes] == [None] * PROCESSES
    for number in range(rounds):
        with SessionDB(f"{place / 'store.db'}.{number}") as db:
            assert len(db.transcript("c")) == PROCESSES * 3
            assert checker.verify(db) == []
