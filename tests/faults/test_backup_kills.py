"""A process killed anywhere in backup, restore, prune, deletion, scrub, import or salvage leaves the old or the new.

Two kills at every named point (HOLDFAST_KILLS sets another number; `make chaos` kills more often), some before writes
to the disk, some at any time. Nothing is repaired in between: the next process opens the store and goes on, and doing
it again ends in the new state.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.store.db import SessionDB
from tests.faults import deaths, keeping, mutants
from tests.faults import zygote as zygotes

KILLS_AT_POINT = int(os.environ.get("HOLDFAST_KILLS") or 2)
KILLS_AT_ANY_TIME = int(os.environ.get("HOLDFAST_KILLS") or 3)
SEEDS = range(5)
WRITES = 6
# Points that are there for a reason: an act that no longer passes them is not tested any more.
POINTS = {
    "backup": {"backup.pages", "backup.finished", "blob.renamed", "backup.synced", "backup.renamed"},
    "backup_if_due": {"claim.committed", "backup.renamed", "claim.meta_delete"},
    "restore": {"restore.pages", "restore.copied", "restore.finished", "blob.renamed"},
    "prune": {"prune.verified", "prune.renamed", "prune.erase_messages", "prune.committed", "forget.committed"},
    "delete": {"delete.committed", "forget.committed", "collect.committed", "scrub.done"},
    "redact": {"redact.message_redact", "redact.committed", "forget.committed", "scrub.done"},
    "shrink": {"shrink.begun", "shrink.rewritten"},
    "collect": {"collect.read", "collect.blob_delete", "collect.committed"},
    "put": {"blob.drafted", "blob.renamed", "blob.committed"},
    "export": {"blob.renamed", "export.synced", "export.renamed", "export.kept"},
    "import": {"blob.renamed", "import.import_message", "import.import_compaction", "import.committed"},
    "salvage": {"salvage.import_message", "salvage.synced", "salvage.renamed", "blob.renamed"},
}
# Where a kill shows what the careless ones do.
TELLING = (".half", ".synced", ".compaction_redact")


@pytest.fixture(scope="module")
def stock(zygote: zygotes.Zygote) -> Iterator[deaths.Stock]:
    with zygotes.folder() as folder:
        yield deaths.Stock(zygote, Path(folder), SEEDS)


@pytest.mark.parametrize("act", keeping.ACTS)
def test_kill_at_any_point_leaves_the_old_or_the_new(act: str, stock: deaths.Stock) -> None:
    done = deaths.kill_at_every_point(stock, act, lambda _: KILLS_AT_POINT, random.Random(act))
    assert set(done) >= POINTS[act]
    assert done == dict.fromkeys(done, KILLS_AT_POINT)


@pytest.mark.parametrize("act", keeping.ACTS)
def test_kill_at_any_time_leaves_the_old_or_the_new(act: str, stock: deaths.Stock) -> None:
    assert deaths.kill_at_any_time(stock, act, KILLS_AT_ANY_TIME, random.Random(act))["killed"] > 0


@pytest.mark.parametrize("act", ["backup", "restore", "prune", "delete", "redact", "shrink", "import", "salvage"])
def test_kill_between_two_writes_to_the_disk_leaves_the_old_or_the_new(act: str, stock: deaths.Stock) -> None:
    assert deaths.kill_between_writes(stock, act, WRITES) >= WRITES


@pytest.mark.parametrize("name", mutants.CARELESS)
def test_careless_store_is_noticed_by_a_kill(name: str, zygote: zygotes.Zygote, place: Path) -> None:
    stock = deaths.Stock(zygote, place, range(2), name)
    act = mutants.CARELESS[name].scene
    assert stock.courses(act), "without a kill it is done well"
    with pytest.raises(AssertionError, match="killed at"):
        deaths.kill_at_every_point(stock, act, lambda _: 8, random.Random(name), TELLING)


def test_scheduled_backup_of_a_dead_process_is_made_when_its_claim_ran_out(
    zygote: zygotes.Zygote, stock: deaths.Stock
) -> None:
    folder = stock.courses("backup_if_due")[0].template.fresh()
    killed = zygote.run(
        keeping.perform, folder / "store.db", {"act": "backup_if_due"}, points=("backup",), at=0, fault="kill"
    )
    assert killed.state == "killed"
    with SessionDB(folder / "store.db", clock=lambda: keeping.NOW + 86_400 + 60) as db:
        assert db.admin.backup_if_due(folder / "due", 24) is None
    with SessionDB(folder / "store.db", clock=lambda: keeping.NOW + 86_400 + 3_601) as db:
        assert db.admin.backup_if_due(folder / "due", 24) is not None
    assert keeping.drafts(folder) == []
