"""Work that is tried again and again, and each time the disk is full from another write on.

Every write, or every few of them; whole, torn in the middle of a page, not synced, or refused by a quota. What is
acknowledged is never lost, what failed is not there, and with room again the same work is done once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.store.db import SessionDB
from tests.faults import checker, fill, kill_points, steps, zygote

# Ways to be full, and the error it must be. SQLite has no word for a quota.
HOWS = {"full": "StoreFull", "torn": "StoreFull", "unsynced": "StoreError", "quota": "StoreFull"}
Errors = list[str | None]


def sweep(attempt: Callable[[int], dict[str, Any]], every: int = 1) -> Errors:
    """Fail at the first touch of the disk, at every so many-th after it, … until the work needs no more; the errors."""
    found: Errors = []
    while True:
        at = len(found) * every
        result = attempt(at)
        found.append(result["error"])
        if result["touches"] <= at:
            return found


def step(running: zygote.Zygote, place: Path, name: str, how: str, every: int = 1) -> Errors:
    """A step of `steps`. AssertionError tells what did harm."""
    course, work = kill_points.known_course(name), steps.STEPS[name]

    def attempt(at: int) -> dict[str, Any]:
        c = f"conversation{at:04d}"
        with SessionDB(place / f"{how}.db") as db:
            args = {**work.prepare(db, c), "step": name, "at": at, "how": how, "done": course.done}
        outcome = running.run(fill.step_on_full_disk, place / f"{how}.db", args)
        assert outcome.error is None, f"{name}, {how} at {at}: {outcome.error}"
        result: dict[str, Any] = outcome.value
        assert result["while_full"] in (_left(course, work, how) if result["error"] else {course.done}), at
        assert result["after"] == course.done, at
        with SessionDB(place / f"{how}.db") as db:
            erased = [checker.Erased(c)] if steps.deleted(db, c) else []
            # All share a store, and nothing is removed: after the last all of it is looked at.
            last = result["touches"] <= at
            assert checker.verify(db, [*outcome.history, *erased], also=[c], fsck=last) == [], at
        return result

    found = sweep(attempt, every)
    # The last one had room for everything; each of those before it, at its own place, had not.
    assert found[-1] is None
    assert HOWS[how] in found
    assert set(found) <= {HOWS[how], None}
    return found


def _left(course: kill_points.Course, work: steps.Step, how: str) -> set[str]:
    """The states that one which failed may leave."""
    if len(work.operations) > 1:
        return set(course.states)
    # What was written and could not be synced is there for now, and not acknowledged.
    return {course.states[0], *([course.done] if how == "unsynced" else [])}


def creation(running: zygote.Zygote, place: Path, how: str, every: int = 1) -> Errors:
    """A store's first creation."""

    def attempt(at: int) -> dict[str, Any]:
        path = place / f"{how} {at}.db"
        outcome = running.run(fill.create_on_full_disk, path, {"at": at, "how": how})
        assert outcome.error is None, f"{how} at {at}: {outcome.error}"
        with SessionDB(path) as db:
            assert checker.verify(db, also=["c"]) == []
        kill_points.remove(path)
        return dict(outcome.value)

    found = sweep(attempt, every)
    assert HOWS[how] in found
    return found
