"""Work on a disk that is full from some write on: whole, torn in the middle of a page, not synced, or over a quota."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from holdfast import errors
from holdfast.store.db import SessionDB
from tests.faults import checker, kill_points, load, steps, zygote
from tests.support import faulty_disk

LONG = "x" * 3000
# Ways to be full, and the error it must be. SQLite has no word for a quota.
HOWS = {"full": "StoreFull", "torn": "StoreFull", "unsynced": "StoreError", "quota": "StoreFull"}
Errors = list[str | None]


def step_on_full_disk(stage: zygote.Stage) -> dict[str, Any]:
    """One step while writes fail from a given one on; then, with room again, the same step once more."""
    shim, c = faulty_disk.Disk(), stage.args["id"]
    step = steps.STEPS[stage.args["step"]]
    with stage.open() as db:
        shim.arm(stage.args["at"], stage.args["how"])
        error = _failure(lambda: step.run(db, stage.args))
        touches, while_full = shim.count, steps.observe(db, c)
        shim.repair()
        if step.again or while_full != stage.args["done"]:
            step.run(db, stage.args)
        after = steps.observe(db, c)
        load.send(stage, db, c, f"{c}:next", "there is room again")
    return {"error": error, "touches": touches, "while_full": while_full, "after": after}


def create_on_full_disk(stage: zygote.Stage) -> dict[str, Any]:
    """A store's first creation while writes fail from a given one on; then again."""
    shim = faulty_disk.Disk()
    shim.arm(stage.args["at"], stage.args["how"])
    error = _failure(lambda: _closed(stage.open()))
    touches = shim.count
    shim.repair()
    with stage.open() as db:
        steps.begin(db, "c", 1)
    return {"error": error, "touches": touches}


def close_on_full_disk(stage: zygote.Stage) -> dict[str, Any]:
    """The last to close the store moves the log into the database; here it cannot."""
    shim = faulty_disk.Disk()
    db = stage.open()
    for number in range(8):
        load.send(stage, db, "c", f"last {number}", "said just before the end " * 150)
    shim.arm(stage.args["at"], stage.args["how"])
    _closed(db)
    return {"error": None, "touches": shim.count}


def append_until_full(stage: zygote.Stage) -> dict[str, Any]:
    """A real file system, a real limit, or a layer that is full; long messages until one is refused, then room."""
    args, hard = stage.args, resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    shim, times = faulty_disk.Disk() if "at" in args else None, args.get("times", 1)
    # The bulk is not in the content, which is recorded in a file that the limit applies to as well.
    bulk = [{"id": "bulk", "name": "none", "arguments": LONG * times}]
    with stage.open() as db:
        if "limit" in args:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (args["limit"], hard))
        if shim is not None:
            shim.arm(args["at"], args["how"])
        for number in itertools.count():
            if load.send(stage, db, "c", f"long {number}", "long", tool_calls=bulk) is None:
                break
        error = _failure(lambda: db.append_message("c", role="user", content=LONG * times))
        readable = len(db.transcript("c"))
        if shim is not None:
            shim.repair()
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        if "ballast" in args:
            os.unlink(args["ballast"])
        for later in range(3):
            load.send(stage, db, "c", f"later {later}", "there is room again")
    return {"error": error, "readable": readable}


def _closed(db: SessionDB) -> None:
    # What the faulty layer raises comes up through apsw even where SQLite itself goes on, as it does here.
    with contextlib.suppress(apsw.Error):
        db.close()


def _failure(call: Callable[[], Any]) -> str | None:
    """The name of the typed error; any other goes up and fails the test."""
    try:
        call()
    except errors.StoreError as error:
        return type(error).__name__
    return None


def sweep(attempt: Callable[[int], dict[str, Any]], every: int = 1) -> Errors:
    """Fail at the first disk access, at every n-th after it, … until the work needs no more; return the errors."""
    found: Errors = []
    while True:
        at = len(found) * every
        result = attempt(at)
        found.append(result["error"])
        if result["touches"] <= at:
            return found


def sweep_step(running: zygote.Zygote, place: Path, name: str, how: str, every: int = 1) -> Errors:
    """Run a step of `steps` and assert that it did no harm."""
    course, work = kill_points.known_course(name), steps.STEPS[name]
    # What was written and could not be synced is there for now, and not acknowledged.
    left = {course.states[0], *([course.done] if how == "unsynced" else [])}
    if len(work.operations) > 1:
        left = set(course.states)

    def attempt(at: int) -> dict[str, Any]:
        c = f"conversation{at:04d}"
        with SessionDB(place / f"{how}.db") as db:
            args = {**work.prepare(db, c), "step": name, "at": at, "how": how, "done": course.done}
        outcome = running.run(step_on_full_disk, place / f"{how}.db", args)
        assert outcome.error is None, f"{name}, {how} at {at}: {outcome.error}"
        result: dict[str, Any] = outcome.value
        assert result["while_full"] in (left if result["error"] else {course.done}), at
        assert result["after"] == course.done, at
        with SessionDB(place / f"{how}.db") as db:
            erased = [checker.Erased(c)] if steps.deleted(db, c) else []
            # All share a store, and nothing is removed: after the last all of it is looked at.
            last = result["touches"] <= at
            assert checker.verify(db, [*outcome.records, *erased], also=[c], fsck=last) == [], at
        return result

    found = sweep(attempt, every)
    # The last one had room for everything; each of those before it, at its own place, had not.
    assert found[-1] is None
    assert HOWS[how] in found
    assert set(found) <= {HOWS[how], None}
    return found


def sweep_creation(running: zygote.Zygote, place: Path, how: str, every: int = 1) -> Errors:
    """A store's first creation."""

    def attempt(at: int) -> dict[str, Any]:
        path = place / f"{how} {at}.db"
        outcome = running.run(create_on_full_disk, path, {"at": at, "how": how})
        assert outcome.error is None, f"{how} at {at}: {outcome.error}"
        with SessionDB(path) as db:
            assert checker.verify(db, also=["c"]) == []
        kill_points.remove(path)
        return dict(outcome.value)

    found = sweep(attempt, every)
    assert HOWS[how] in found
    return found
