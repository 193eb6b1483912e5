"""A client of PostgreSQL killed at any point of any write leaves the state before it or the state after it.

The server undoes what the dead did not commit, and lets go of what they had locked. Twenty kills at every named point
of appends, leases, compactions and ends, one at those of the other steps (HOLDFAST_KILLS sets another
number for all); and clients that do anything, killed at any time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from holdfast import SessionDB
from holdfast.store.postgres import statements
from tests.faults import kills, steps, storms, zygote
from tests.faults.test_kills import KILLS
from tests.support import postgres

# One step for each way to go about it; the others of `steps` are killed less often.
OFTEN = {"append", "acquire", "renew", "commit", "end"}


def kills_of(name: str) -> int:
    return KILLS or (20 if name in OFTEN else 1)


@pytest.fixture(scope="module")
def watched() -> Iterator[kills.Watched]:
    """All steps share a store: to open one for each takes longer than to kill all who write to it."""
    with kills.watching(postgres.kept()) as store:
        yield store


@pytest.mark.parametrize("name", steps.STEPS)
def test_kill_at_any_point_leaves_the_state_before_or_after(
    name: str, zygote: zygote.Zygote, watched: kills.Watched
) -> None:
    # An append under a lease is one statement, which has three points.
    fewest = 3 if name == "append_fenced" else 4
    assert kills.kill_clients_at_every_point(zygote, watched, name, kills_of(name)) >= fewest * kills_of(name)


@pytest.mark.parametrize("name", steps.STEPS)
def test_points_do_not_change_the_round_trips(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kills exercise the production path, in which COMMIT is sent with the last statements."""
    sent, points, execute = list[list[str]](), list[str](), statements.StatementExecutor.execute

    def record(executor: statements.StatementExecutor, commands: Sequence[statements.Command]) -> list[Any]:
        sent.append([command if isinstance(command, str) else command[0] for command in commands])
        return execute(executor, commands)

    def run(c: str) -> list[list[str]]:
        args = steps.STEPS[name].prepare(db, c)
        with SessionDB(db.driver.target) as client:
            sent.clear()
            steps.STEPS[name].run(client, args)
            return list(sent)

    monkeypatch.setattr(statements.StatementExecutor, "execute", record)
    with SessionDB(postgres.fresh()) as db:
        production = run("production")
        with kills.hooked(points.append):
            assert run("watched") == production
    commits = [each for each in production if each[-1] == "COMMIT"]
    assert [point.partition(".")[2] for point in points].count("committed") >= max(1, len(commits))
    if name in ("acquire", "append_batch"):
        assert len(commits[-1]) > 1


@pytest.mark.parametrize("name", sorted(OFTEN))
def test_nothing_is_seen_by_others_before_the_commit(name: str) -> None:
    assert kills.half_states(kills.course_of(name, postgres.fresh())) == []


def test_clients_killed_at_any_time_lose_nothing_and_hold_nothing(zygote: zygote.Zygote) -> None:
    chance = random.Random("killed at any time")
    assert storms.kill_at_any_time(zygote, postgres.fresh(), 8, chance) == []
