"""What children do on a disk that is full: write until it is, look around, and go on when there is room."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Callable
from typing import Any

import apsw

from holdfast import errors
from holdfast.store.db import SessionDB
from tests.faults import disk, steps, workers, zygote

LONG = "x" * 3000


def step_on_full_disk(stage: zygote.Stage) -> dict[str, Any]:
    """One step while writes fail from a given one on; then, with room again, the same step once more."""
    shim, c = disk.Disk(), stage.args["id"]
    step = steps.STEPS[stage.args["step"]]
    with stage.open() as db:
        shim.arm(stage.args["at"], stage.args["how"])
        error = _failure(lambda: step.run(db, stage.args))
        touches, while_full = shim.count, steps.observe(db, c)
        shim.mend()
        if step.again or while_full != stage.args["done"]:
            step.run(db, stage.args)
        after = steps.observe(db, c)
        workers.send(stage, db, c, f"{c}:next", "there is room again")
    return {"error": error, "touches": touches, "while_full": while_full, "after": after}


def create_on_full_disk(stage: zygote.Stage) -> dict[str, Any]:
    """A store's first creation while writes fail from a given one on; then again."""
    shim = disk.Disk()
    shim.arm(stage.args["at"], stage.args["how"])
    error = _failure(lambda: _closed(stage.open()))
    touches = shim.count
    shim.mend()
    with stage.open() as db:
        steps.say(db, "c", 1)
    return {"error": error, "touches": touches}


def close_on_full_disk(stage: zygote.Stage) -> dict[str, Any]:
    """The last to close the store moves the log into the database; here it cannot."""
    shim = disk.Disk()
    db = stage.open()
    for number in range(8):
        workers.send(stage, db, "c", f"last {number}", "said just before the end " * 150)
    shim.arm(stage.args["at"], stage.args["how"])
    _closed(db)
    return {"error": None, "touches": shim.count}


def close_without_room(stage: zygote.Stage) -> None:
    """The same on a file system that is really full."""
    with stage.open() as db:
        for number in range(8):
            workers.send(stage, db, "c", f"last {number}", "said just before the end")
        with open(stage.args["ballast"], "wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 512):
                pass


def open_without_room(stage: zygote.Stage) -> dict[str, Any]:
    """A store that is there, opened to say something where nothing can be written any more; then with room."""
    shim = disk.Disk() if "at" in stage.args else None
    if shim is not None:
        shim.arm(stage.args["at"], stage.args["how"])
    else:
        with open(stage.args["ballast"], "wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 512):
                pass
    error = _failure(lambda: _opened_and_said(stage))
    folder = os.path.dirname(stage.path)
    beside = [name for name in os.listdir(folder) if name.startswith(".holdfast-")]
    _make_room(stage, 0, shim)
    with stage.open() as db:
        workers.send(stage, db, "c", "later", "there is room again")
    return {"error": error, "beside": beside}


def _opened_and_said(stage: zygote.Stage) -> None:
    with stage.open() as db:
        _say(db, 1)


def append_until_full(stage: zygote.Stage) -> dict[str, Any]:
    """A real file system, a real limit, or a layer that is full; long messages until one is refused, then room."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    shim = disk.Disk() if "at" in stage.args else None
    number = 0
    with stage.open() as db:
        if "limit" in stage.args:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (stage.args["limit"], hard))
        if shim is not None:
            shim.arm(stage.args["at"], stage.args["how"])
        while _said(stage, db, number := number + 1):
            pass
        error = _failure(lambda: _say(db, stage.args.get("times", 1)))
        readable = len(db.transcript("c"))
        _make_room(stage, hard, shim)
        for later in range(3):
            workers.send(stage, db, "c", f"later {later}", "there is room again")
    return {"error": error, "readable": readable}


def _closed(db: SessionDB) -> None:
    # What the faulty layer raises comes up through apsw even where SQLite itself goes on, as it does here.
    with contextlib.suppress(apsw.Error):
        db.close()


def _said(stage: zygote.Stage, db: SessionDB, number: int) -> bool:
    # The bulk is beside the content, which is recorded in a file the limit holds for as well.
    bulk = [{"id": "bulk", "name": "none", "arguments": LONG * stage.args.get("times", 1)}]
    return workers.send(stage, db, "c", f"long {number}", "long", tool_calls=bulk) is not None


def _say(db: SessionDB, times: int) -> None:
    db.append_message("c", role="user", content=LONG * times)


def _make_room(stage: zygote.Stage, hard: int, shim: disk.Disk | None) -> None:
    if shim is not None:
        shim.mend()
    elif "limit" in stage.args:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    else:
        os.unlink(stage.args["ballast"])


def _failure(call: Callable[[], Any]) -> str | None:
    """The name of the typed error; any other goes up and fails the test."""
    try:
        call()
    except errors.StoreError as error:
        return type(error).__name__
    return None
