"""A disk that is full at any write: a typed error, nothing acknowledged is lost, and on it goes with room.

Every write, and every sync, of each kind of work fails once, and all after it; whole, or torn in the middle
of a page. Of what is long or like the others it is every few, and of a store's creation every seventh. Then the same
with a file system that is really full, and with a real limit on the size of files.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.store.db import SessionDB
from tests.faults import checker, fill, fullness, kill_points, steps
from tests.faults import zygote as zygotes

CREATED = 7
WRITERS = [
    "append",
    "append_batch",
    "append_create",
    "append_resuming",
    "commit",
    "acquire",
    "hide",
    "redact",
    "settle_inbound",
]
# Each of these writes a row or two, as appends do: every second write does.
MAIL = ["arrive", "begin_next", "delivered", "send_failed", "post", "pair"]

# A write that is torn or not synced is tried with one of each kind: a row, many tables at once, content that goes.
# A deletion writes the most, and all of it in one way: there every third. `make chaos` tries all of all steps.
CASES = [
    *((name, "full", 1) for name in WRITERS),
    *((name, "full", 2) for name in MAIL),
    *((name, how, 1) for name in ("append", "commit", "redact") for how in ("torn", "unsynced")),
    *(("delete", how, 3) for how in ("full", "torn", "unsynced")),
    *((name, "quota", 1) for name in ("append", "commit")),
]


@pytest.mark.parametrize(("name", "how", "every"), CASES)
def test_step_on_a_full_disk_does_nothing_and_succeeds_with_room(
    name: str, how: str, every: int, zygote: zygotes.Zygote, place: Path
) -> None:
    assert len(fullness.step(zygote, place, name, how, every)) > 3


@pytest.mark.parametrize("how", fullness.HOWS)
def test_creation_on_a_full_disk_fails_and_succeeds_with_room(how: str, zygote: zygotes.Zygote, place: Path) -> None:
    assert len(fullness.creation(zygote, place, how, CREATED)) > 10


@pytest.mark.parametrize("how", ["full", "torn", "unsynced"])
def test_checkpoint_on_a_full_disk_loses_nothing(how: str, zygote: zygotes.Zygote, place: Path) -> None:
    def attempt(at: int) -> dict[str, Any]:
        path = place / f"{at}.db"
        with SessionDB(path) as db:
            steps.say(db, "c")
        outcome = zygote.run(fill.close_on_full_disk, path, {"at": at, "how": how})
        assert (outcome.error, outcome.value["error"]) == (None, None), f"{how} at {at}"
        with SessionDB(path) as db:
            assert len(db.transcript("c")) == 4 + 8
            assert checker.verify(db, outcome.history) == []
            assert db.append_message("c", role="user", content="next").seq == 13
        kill_points.remove(path)
        return dict(outcome.value)

    assert len(fullness.sweep(attempt)) > 10


# --- no pretence ---------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(place: Path) -> Iterator[Path | None]:
    """A file system of two megabytes; None where mounting one is not allowed: there the layer under SQLite is full."""
    point = place / "small"
    point.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", str(point)]
    mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
    yield point if mounted else None
    if mounted:
        subprocess.run(["umount", str(point)], check=True)


def test_file_system_that_is_full_says_so_and_goes_on_with_room(
    small_disk: Path | None, place: Path, zygote: zygotes.Zygote
) -> None:
    for number in range(16):
        path, ballast = (small_disk or place) / "store.db", (small_disk or place) / "ballast"
        with SessionDB(path) as db:
            steps.say(db, "c")
        if small_disk:
            ballast.write_bytes(b"x" * (1_400_000 + number * 4096))
        args = {"ballast": str(ballast)} if small_disk else {"at": 100 + number, "how": "full"}
        _held_up(zygote.run(fill.append_until_full, path, args), path, "StoreFull")
        kill_points.remove(path)


def test_store_closed_on_a_full_file_system_loses_nothing(
    small_disk: Path | None, place: Path, zygote: zygotes.Zygote
) -> None:
    path, ballast = (small_disk or place) / "store.db", (small_disk or place) / "ballast"
    with SessionDB(path) as db:
        steps.say(db, "c")
    if small_disk:
        outcome = zygote.run(fill.close_without_room, path, {"ballast": str(ballast)})
    else:
        outcome = zygote.run(fill.close_on_full_disk, path, {"at": 0, "how": "full"})
    assert outcome.error is None
    ballast.unlink(missing_ok=True)
    with SessionDB(path) as db:
        assert len(db.transcript("c")) == 4 + 8
        assert checker.verify(db, outcome.history) == []


def test_file_system_without_a_single_byte_left_is_said_to_be_full(
    small_disk: Path | None, place: Path, zygote: zygotes.Zygote
) -> None:
    path, ballast = (small_disk or place) / "store.db", (small_disk or place) / "ballast"
    with SessionDB(path) as db:
        steps.say(db, "c")
    args = {"ballast": str(ballast)} if small_disk else {"at": 0, "how": "quota"}
    outcome = zygote.run(fill.open_without_room, path, args)
    assert (outcome.error, outcome.value["error"]) == (None, "StoreFull")
    assert outcome.value["beside"] == []
    with SessionDB(path) as db:
        assert len(db.transcript("c")) == 4 + 1


def test_limit_on_the_size_of_files_says_so_and_goes_on_without(place: Path, zygote: zygotes.Zygote) -> None:
    for limit in range(300_000, 300_000 + 16 * 1030, 1030):
        path = place / f"{limit}.db"
        with SessionDB(path) as db:
            steps.say(db, "c")
        outcome = zygote.run(fill.append_until_full, path, {"limit": limit})
        _held_up(outcome, path, "StoreError")


def test_log_that_cannot_be_moved_into_the_database_is_kept(place: Path, zygote: zygotes.Zygote) -> None:
    """The database may not grow any more while the log beside it still may: checkpoints fail, appends do not."""
    path = place / "store.db"
    with SessionDB(path) as db:
        steps.say(db, "c")
        for number in range(100):
            db.append_message("c", role="user", content="y" * 60_000, uid=f"before {number}")
    size = path.stat().st_size
    with SessionDB(path) as db:
        steps.say(db, "other")
    outcome = zygote.run(fill.append_until_full, path, {"limit": size + 8192, "times": 20})
    # More than a thousand pages went into the log, so SQLite tried to move them.
    assert sum(isinstance(record, checker.Sent) for record in outcome.history) * 60_000 > 1000 * 4096
    _held_up(outcome, path, "StoreError", before=104)


def _held_up(outcome: zygotes.Outcome, path: Path, error: str, before: int = 4) -> None:
    assert (outcome.error, outcome.value["error"]) == (None, error)
    sent = [record for record in outcome.history if isinstance(record, checker.Sent) and record.receipt]
    with SessionDB(path) as db:
        assert outcome.value["readable"] == before + len(sent) - 3
        assert len(db.transcript("c")) == before + len(sent)
        assert checker.verify(db, outcome.history) == []
