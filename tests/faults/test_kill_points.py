"""A process killed at any point of any write leaves the state before it or the state after it."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.store.db import SessionDB
from holdfast.store.postgres import statements
from tests.faults import checker, kill_points, load, steps, zygote
from tests.support import backends, postgres

OFTEN = {"append", "acquire", "renew", "commit", "end"}
KILLS_OFTEN, KILLS = 20, 1
# One of each way to write; `make chaos` kills before every write of all steps.
WRITES = ["append", "acquire", "commit", "end", "settle_inbound"]


def kills_of(name: str, point: str) -> int:
    return KILLS_OFTEN if first_steps().get(point) == name else KILLS


@functools.cache
def first_steps() -> dict[str, str]:
    """The first step that passes a point of the operations that are killed often."""
    found: dict[str, str] = {}
    for name in [name for name, step in steps.STEPS.items() if OFTEN & set(step.operations)]:
        for point in kill_points.known_course(name).names:
            if point.partition(".")[0] in OFTEN:
                found.setdefault(point, name)
    return found


@pytest.mark.parametrize("name", steps.STEPS)
def test_kill_leaves_the_state_before_or_after_on_sqlite(name: str, zygote: zygote.Zygote, place: Path) -> None:
    course = kill_points.known_course(name)
    assert {point.partition(".")[2] for point in course.names} >= {"queued", "begun", "committing", "committed"}
    assert kill_points.half_states(course) == []
    # A renewal moves only the expiry, which is a time and so not part of the observed state.
    assert course.states[0] != course.done or name == "renew"
    kill_points.kill_at_every_point(zygote, place, name, functools.partial(kills_of, name))


def test_points_of_frequent_kills_belong_to_all_their_operations() -> None:
    assert {point.partition(".")[0] for point in first_steps()} == OFTEN


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """One store for all steps: to open one for each takes longer than to kill all clients that write to it."""
    made = postgres.kept()
    # Some client has it open all the time.
    with SessionDB(made):
        yield made


@pytest.mark.parametrize("name", steps.STEPS)
def test_kill_leaves_the_state_before_or_after_on_postgresql(name: str, zygote: zygote.Zygote, address: str) -> None:
    kills = KILLS_OFTEN if name in OFTEN else KILLS
    course = kill_points.kill_clients_at_every_point(zygote, address, name, kills)
    # An append under a lease is one statement, which has three points.
    assert len(course.names) >= (3 if name == "append_fenced" else 4)


@pytest.mark.parametrize("name", ["append", "append_batch", "append_fenced", "acquire", "commit", "settle_inbound"])
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
        with kill_points.hooked(points.append):
            assert run("watched") == production
    commits = [each for each in production if each[-1] == "COMMIT"]
    assert [point.partition(".")[2] for point in points].count("committed") >= max(1, len(commits))
    if name in ("acquire", "append_batch"):
        assert len(commits[-1]) > 1


@pytest.mark.parametrize("name", WRITES)
def test_kill_before_any_write_to_the_disk_is_all_or_nothing(name: str, zygote: zygote.Zygote, place: Path) -> None:
    assert kill_points.kill_at_every_write(zygote, place, name) >= 3


def test_kill_between_the_two_calls_leaves_an_ended_conversation_that_accepts(
    zygote: zygote.Zygote, place: Path
) -> None:
    path = place / "store.db"
    with SessionDB(path) as db:
        args = {**steps.begin(db, "p"), "step": "two_calls"}
    # The first point of the second call: the first has been committed, the second has not begun.
    assert zygote.run(steps.perform, path, args, points=("create",), at=0).state == "killed"
    with SessionDB(path) as db:
        assert db.head("p").end_reason == "compression"
        receipt = db.append_message("p", role="user", content="go on", uid="next")
        assert (receipt.resumed, receipt.moved_from) == (True, "p")
        assert len(db.continuations("p")) == 1
        assert checker.verify(db, [checker.Sent("after", "p", "next", "go on", receipt)]) == []


@pytest.mark.parametrize("backend", backends.SHARED, ids=lambda backend: backend.name)
def test_clients_killed_at_any_time_lose_nothing_and_hold_nothing(
    backend: backends.Backend, zygote: zygote.Zygote, place: Path
) -> None:
    chance = random.Random("killed at any time")
    assert load.problems_after_kills(zygote, backend.target(place, "store"), 6, chance) == []
