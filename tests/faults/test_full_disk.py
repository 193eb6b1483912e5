"""A full disk is a typed error at any write: nothing acknowledged is lost, and the work succeeds with room."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.store.db import SessionDB
from tests.faults import checker, disk_faults, kill_points, steps
from tests.faults import zygote as zygotes

# Every so many-th write fails, and all after it. One step of each kind: a row, many tables at once, content that goes;
# `make chaos` tries every write of all steps.
CASES = [
    *((name, "full", 1) for name in ("append", "append_create", "commit", "settle_inbound")),
    *((name, "full", 3) for name in ("acquire", "hide", "redact", "delete", "arrive", "begin_next", "pair")),
    *((name, how, 2) for name in ("append", "commit") for how in ("torn", "unsynced", "quota")),
]


@pytest.mark.parametrize(("name", "how", "every"), CASES)
def test_step_on_a_full_disk_does_nothing_and_succeeds_with_room(
    name: str, how: str, every: int, zygote: zygotes.Zygote, place: Path
) -> None:
    assert len(disk_faults.sweep_step(zygote, place, name, how, every)) > 2


@pytest.mark.parametrize("how", disk_faults.HOWS)
def test_creation_on_a_full_disk_fails_and_succeeds_with_room(how: str, zygote: zygotes.Zygote, place: Path) -> None:
    assert len(disk_faults.sweep_creation(zygote, place, how, every=20)) > 4


@pytest.mark.parametrize("how", ["full", "torn", "unsynced"])
def test_checkpoint_on_a_full_disk_loses_nothing(how: str, zygote: zygotes.Zygote, place: Path) -> None:
    def attempt(at: int) -> dict[str, Any]:
        path = begin(place / f"{at}.db")
        outcome = zygote.run(disk_faults.close_on_full_disk, path, {"at": at, "how": how})
        assert (outcome.error, outcome.value["error"]) == (None, None), outcome
        with SessionDB(path) as db:
            assert len(db.transcript("c")) == 4 + 8
            assert checker.verify(db, outcome.records) == []
            assert db.append_message("c", role="user", content="next").seq == 13
        kill_points.remove(path)
        return dict(outcome.value)

    assert len(disk_faults.sweep(attempt, every=2)) > 5


def begin(path: Path) -> Path:
    with SessionDB(path) as db:
        steps.begin(db, "c")
    return path


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


@pytest.mark.parametrize("kind", ["file system", "limit"])
def test_real_limit_is_reported_and_appends_go_on_without_it(
    kind: str, small_disk: Path | None, place: Path, zygote: zygotes.Zygote
) -> None:
    for number in range(0, 16, 4):
        path, ballast = begin((small_disk or place) / "store.db"), (small_disk or place) / "ballast"
        args: dict[str, Any] = {"at": 100 + number, "how": "full"}
        if kind == "limit":
            args = {"limit": 300_000 + number * 1030}
        elif small_disk:
            ballast.write_bytes(b"x" * (1_400_000 + number * 4096))
            args = {"ballast": str(ballast)}
        outcome = zygote.run(disk_faults.append_until_full, path, args)
        check_held_up(outcome, path, "StoreError" if kind == "limit" else "StoreFull")
        kill_points.remove(path)


def test_log_that_cannot_be_moved_into_the_database_is_kept(place: Path, zygote: zygotes.Zygote) -> None:
    """The database may not grow any more while its log still may: checkpoints fail, appends do not."""
    path = place / "store.db"
    with SessionDB(path) as db:
        steps.begin(db, "c")
        for number in range(100):
            db.append_message("c", role="user", content="y" * 60_000, uid=f"before {number}")
    size = path.stat().st_size
    with SessionDB(path) as db:
        steps.begin(db, "other")
    outcome = zygote.run(disk_faults.append_until_full, path, {"limit": size + 8192, "times": 20})
    # More than a thousand pages went into the log, so SQLite tried to move them.
    assert sum(isinstance(record, checker.Sent) for record in outcome.records) * 60_000 > 1000 * 4096
    check_held_up(outcome, path, "StoreError", before=104)


def check_held_up(outcome: zygotes.Outcome, path: Path, error: str, before: int = 4) -> None:
    assert (outcome.error, outcome.value["error"]) == (None, error)
    sent = [record for record in outcome.records if isinstance(record, checker.Sent) and record.receipt]
    with SessionDB(path) as db:
        assert outcome.value["readable"] == before + len(sent) - 3
        assert len(db.transcript("c")) == before + len(sent)
        assert checker.verify(db, outcome.records) == []
