"""A process killed anywhere in backup, restore, prune, deletion, scrub or salvage leaves the old or the new.

At every named point, and before every write to the disk of those that rewrite the store. Nothing is repaired
in between: the next process opens the store and goes on, and doing it again ends in the new state.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.store import salvage
from holdfast.store.db import SessionDB
from tests.faults import keeping
from tests.faults import zygote as zygotes

WRITES = 12


@pytest.fixture(scope="module")
def template() -> keeping.Template:
    with zygotes.folder() as folder:
        yield keeping.Template(Path(folder))


def run(zygote: zygotes.Zygote, folder: Path, act: str, **how: object) -> zygotes.Outcome:
    args = {"act": act, **({"disk": how.pop("disk")} if "disk" in how else {})}
    return zygote.run(keeping.perform, folder / "store.db", args, points=keeping.ACTS[act].operations, **how)


def between(before: dict, after: dict, found: dict) -> list[str]:
    """Which parts are neither what they were nor what they were to become."""
    return [part for part in found if found[part] not in (before[part], after[part])]


def settle(zygote: zygotes.Zygote, folder: Path, act: str, states: tuple[dict, dict], where: str) -> None:
    before, after = states
    found = keeping.look(folder)
    assert between(before, after, found) == [], where
    if act == "prune" and found["store"] != before["store"]:
        assert found["archive"] == after["archive"], f"{where}: removed without its archive"
    if (folder / "archive.jsonl").exists() and found["store"] == before["store"]:
        (folder / "archive.jsonl").unlink()  # whoever asks again names another; this test asks for the same
    if act != "prune" or found["store"] == before["store"]:
        again = run(zygote, folder, act)
        assert (again.state, again.error) == ("exited", None), where
        settled = keeping.look(folder)
        # A scheduled backup that was claimed by the dead is made when the claim has run out.
        assert {**settled, "due": 0} == {**after, "due": 0}, where
    if keeping.ACTS[act].removes:
        assert keeping.holding(folder, keeping.MARKER) == [], where
    if act != "backup_if_due":
        assert keeping.drafts(folder) == [], where
    keeping.next_message(folder)


def course(zygote: zygotes.Zygote, template: keeping.Template, act: str) -> tuple[list[str], tuple[dict, dict]]:
    folder = template.fresh()
    before = keeping.look(folder)
    done = run(zygote, folder, act)
    assert (done.state, done.error) == ("exited", None)
    after = keeping.look(folder)
    shutil.rmtree(folder)
    return list(done.reached), (before, after)


def chosen(points: Sequence[str]) -> list[tuple[int, str]]:
    """Each point where it is first reached and where it is last: between them the same happens to other rows."""
    first = {point: number for number, point in reversed(list(enumerate(points)))}
    last = {point: number for number, point in enumerate(points)}
    return [(number, points[number]) for number in sorted({*first.values(), *last.values()})]


@pytest.mark.parametrize("act", keeping.ACTS)
def test_kill_at_any_point_leaves_the_old_or_the_new(
    act: str, zygote: zygotes.Zygote, template: keeping.Template
) -> None:
    points, states = course(zygote, template, act)
    assert points
    for number, point in chosen(points):
        folder = template.fresh()
        killed = run(zygote, folder, act, at=number, fault="kill")
        assert killed.state == "killed", point
        settle(zygote, folder, act, states, f"{act} killed at {point}")
        shutil.rmtree(folder)


@pytest.mark.parametrize("act", ["backup", "restore", "delete", "prune"])
def test_kill_between_two_writes_to_the_disk_leaves_the_old_or_the_new(
    act: str, zygote: zygotes.Zygote, template: keeping.Template
) -> None:
    _, states = course(zygote, template, act)
    folder = template.fresh()
    touches = run(zygote, folder, act, disk={"at": None, "how": "kill"}).told[0]["touches"]
    shutil.rmtree(folder)
    assert touches > WRITES
    for number in range(0, touches, max(1, touches // WRITES)):
        folder = template.fresh()
        assert run(zygote, folder, act, disk={"at": number, "how": "kill"}).state == "killed"
        settle(zygote, folder, act, states, f"{act} killed at write {number} of {touches}")
        shutil.rmtree(folder)


def test_killed_salvage_leaves_no_store_or_a_sound_one(zygote: zygotes.Zygote, template: keeping.Template) -> None:
    done = zygote.run(keeping.perform_salvage, template.fresh() / "store.db", points=("salvage", "blob"), at=None)
    assert (done.state, done.error) == ("exited", None)
    for number, point in chosen(done.reached):
        folder = template.fresh()
        before = (folder / "store.db").read_bytes()
        killed = zygote.run(
            keeping.perform_salvage, folder / "store.db", points=("salvage", "blob"), at=number, fault="kill"
        )
        assert killed.state == "killed", point
        assert (folder / "store.db").read_bytes() == before, point
        if not os.path.exists(folder / "new.db"):
            salvage.run(str(folder / "store.db"), str(folder / "new.db"))
        with SessionDB(folder / "new.db") as new, SessionDB(folder / "store.db") as old:
            assert new.fsck().ok, point
            assert keeping.exported(new) == keeping.exported(old), point
        assert keeping.drafts(folder) == [], point
        shutil.rmtree(folder)


def test_scheduled_backup_of_a_dead_process_is_made_when_its_claim_ran_out(
    zygote: zygotes.Zygote, template: keeping.Template
) -> None:
    folder = template.fresh()
    killed = zygote.run(
        keeping.perform, folder / "store.db", {"act": "backup_if_due"}, points=("backup",), at=0, fault="kill"
    )
    assert killed.state == "killed"
    with SessionDB(folder / "store.db", clock=lambda: keeping.NOW + 86_400 + 60) as db:
        assert db.backup_if_due(folder / "due", 24) is None
    with SessionDB(folder / "store.db", clock=lambda: keeping.NOW + 86_400 + 3_601) as db:
        assert db.backup_if_due(folder / "due", 24) is not None
    assert keeping.drafts(folder) == []
