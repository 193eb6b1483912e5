"""A process killed at any point of any write leaves the state before it or the state after it."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.store.db import SessionDB
from tests.faults import kill_points, load, steps, zygote
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


@pytest.mark.parametrize("name", WRITES)
def test_kill_before_any_write_to_the_disk_is_all_or_nothing(name: str, zygote: zygote.Zygote, place: Path) -> None:
    assert kill_points.kill_at_every_write(zygote, place, name) >= 3


@pytest.mark.parametrize("backend", backends.SHARED, ids=lambda backend: backend.name)
def test_clients_killed_at_any_time_lose_nothing_and_hold_nothing(
    backend: backends.Backend, zygote: zygote.Zygote, place: Path
) -> None:
    chance = random.Random("killed at any time")
    assert load.problems_after_kills(zygote, backend.target(place, "store"), 6, chance) == []
