"""A process killed in backup, restore, prune, deletion, scrub, import, salvage or copy leaves the old or the new."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.store.db import SessionDB
from tests.faults import forbidden_states, maintenance_kills
from tests.faults import zygote as zygotes
from tests.support import memory_folders, postgres

SEEDS = range(3)
WRITES = 4
COPY_KILLS = 5


@pytest.fixture(scope="module")
def histories(zygote: zygotes.Zygote) -> Iterator[list[maintenance_kills.History]]:
    with memory_folders.folder() as folder:
        yield [maintenance_kills.History(zygote, Path(folder), seed) for seed in SEEDS]


@pytest.mark.parametrize("act", maintenance_kills.ACTS)
def test_kill_at_any_point_leaves_the_old_or_the_new(act: str, histories: list[maintenance_kills.History]) -> None:
    points = maintenance_kills.kill_at_every_point(histories, act, 1, random.Random(act))
    operations = {point.partition(".")[0] for point in points}
    assert operations == set(maintenance_kills.ACTS[act].operations)
    assert len(points) >= 2 * len(operations)


@pytest.mark.parametrize("act", ["backup", "restore", "prune", "redact", "shrink", "import"])
def test_kill_before_a_write_to_the_disk_leaves_the_old_or_the_new(
    act: str, histories: list[maintenance_kills.History]
) -> None:
    assert maintenance_kills.kill_between_writes(histories[0], act, WRITES) >= WRITES


def test_scheduled_backup_of_a_dead_process_is_made_when_its_claim_ran_out(
    zygote: zygotes.Zygote, histories: list[maintenance_kills.History]
) -> None:
    now = maintenance_kills.NOW + 86_400
    with histories[0].fresh() as folder:
        path, args = folder / "store.db", {"act": "backup_if_due"}
        assert zygote.run(maintenance_kills.perform, path, args, points=("backup",), at=0).state == "killed"
        for later, is_made in ((60, False), (3_601, True)):
            with SessionDB(path, clock=lambda later=later: now + later) as db:
                assert (db.admin.backup_if_due(folder / "due", 24) is not None) == is_made
        assert list(folder.rglob("*.draft*")) == []


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_killed_copy_is_started_over_by_the_next_one(dialect: str, zygote: zygotes.Zygote, place: Path) -> None:
    def new_target(name: str) -> str:
        if dialect == "sqlite":
            return str(place / f"{name}.db")
        return postgres.with_schema(postgres.dsn(), postgres.empty_schema())

    source, kinds = str(place / "source.db"), ("copy", "blob")
    with SessionDB(source) as db:
        forbidden_states.populate(db)
        db.blobs.put(b"picture")
    args = {"source": source, "target": new_target("watched")}
    watched = zygote.run(maintenance_kills.copy, "", args, points=kinds)
    assert {"copy.import_compaction", "copy.copy_act", "copy.restore_counters"} <= set(watched.reached), watched
    with SessionDB(args["target"]) as db:
        wanted = maintenance_kills.exported(db)
    last, unfinished = len(watched.reached) - 1, 0
    for at in range(0, last + 1, last // (COPY_KILLS - 1)):
        args = {"source": source, "target": new_target(str(at))}
        assert zygote.run(maintenance_kills.copy, "", args, points=kinds, at=at).state == "killed"
        with SessionDB(source) as db, SessionDB(args["target"]) as other:
            unfinished += other.admin.is_unfinished_copy()
            assert db.admin.copy_to(other.admin).digest == watched.value
            assert maintenance_kills.exported(other) == wanted, watched.reached[at]
            assert other.admin.fsck().ok
    assert unfinished
