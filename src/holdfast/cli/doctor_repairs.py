"""The repairs of `holdfast doctor --fix`. Each describes what it would do before it runs.

No repair changes a message. A damaged log is not repaired in place: `holdfast salvage` recovers it into a new store.
Until then, only repairs that move nothing in the file are offered, because salvage finds data by its position.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from holdfast import safe_text
from holdfast.store import db as store
from holdfast.store.backup import atomic_file
from holdfast.store.driver import SchemaFault, is_postgres

Progress = Callable[[int, int], None]

# The minimum free space, in bytes and as a share of the database, for which it is rewritten.
MIN_FREE_BYTES, MIN_FREE_SHARE = 64 * 1024 * 1024, 0.25
SAFE_WHILE_DAMAGED = frozenset({"schema", "search"})


class Repair(NamedTuple):
    name: str
    would: str
    run: Callable[[store.SessionDB, Progress], str]


class Condition(NamedTuple):
    """The state of a store that decides which repairs are offered."""

    facts: dict[str, Any]
    faults: Sequence[SchemaFault]
    stale_leases: int
    leftovers: Sequence[str]
    unscrubbed: bool
    search: dict[str, Any]
    upkeep_due: bool
    damaged: bool


def list_repairs(condition: Condition) -> Iterator[Repair]:
    """Yield the repairs that this store needs; for a damaged one, only those that move nothing in its file."""
    return (repair for repair in _needed(condition) if not condition.damaged or repair.name in SAFE_WHILE_DAMAGED)


def _needed(condition: Condition) -> Iterator[Repair]:
    altered = [f"the {fault.kind} {fault.name}" for fault in condition.faults if fault.repairable]
    if altered:
        yield Repair("schema", f"create {', '.join(altered)} again as declared", _repair_schema)
    if condition.stale_leases:
        yield Repair(
            "leases",
            f"free {safe_text.count(condition.stale_leases, 'lease')} that no process holds any more",
            _free_leases,
        )
    if condition.leftovers:
        would = f"remove {safe_text.count(len(condition.leftovers), 'file')} left by processes that died"
        yield Repair("leftovers", would, _sweep)
    # On a server this blocks other clients: `holdfast db scrub` does it on request.
    if condition.unscrubbed and not is_postgres(str(condition.facts["path"])):
        yield Repair("scrub", "remove deleted and redacted text from the files", _scrub)
    if condition.search["errors"]:
        yield Repair("search", "rebuild the damaged search index", _rebuild)
    elif condition.search["behind"]:
        would = f"index the {safe_text.count(condition.search['behind'], 'message')} written since the last search"
        yield Repair("search", would, _catch_up)
    if condition.upkeep_due:
        would = "end orphaned continuations, and delete conversations without messages"
        yield Repair("upkeep", would, _upkeep)
    if free_bytes(condition.facts) >= MIN_FREE_BYTES and (
        condition.facts["free_pages"] >= MIN_FREE_SHARE * condition.facts["pages"]
    ):
        size = safe_text.size(free_bytes(condition.facts))
        would = f"rewrite the database to free {size} of disk space; other processes wait to write meanwhile"
        yield Repair("room", would, _shrink)


def free_bytes(facts: dict[str, Any]) -> int:
    """Return the size of the unused pages."""
    return int(facts.get("free_pages", 0) * facts.get("page_size", 0))


def find_leftovers(path: str) -> list[str]:
    """Return the temporary files next to a store whose processes died."""
    return [each for folder in _folders(path) for each in atomic_file.find_abandoned(folder)]


def _folders(path: str) -> list[str]:
    return [folder for folder in (os.path.dirname(path), f"{path}.blobs") if os.path.isdir(folder)]


def _repair_schema(db: store.SessionDB, _: Progress) -> str:
    before = [fault for fault in db.admin.schema_faults() if fault.repairable]
    db.admin.repair_schema()
    return "created again: " + (", ".join(f"the {fault.kind} {fault.name}" for fault in before) or "nothing")


def _free_leases(db: store.SessionDB, _: Progress) -> str:
    return f"freed {safe_text.count(db.admin.free_stale_leases(), 'lease')}"


def _sweep(db: store.SessionDB, _: Progress) -> str:
    removed = sum(atomic_file.remove_abandoned(folder) for folder in _folders(str(db.admin.info()["path"])))
    return f"removed {safe_text.count(removed, 'file')} left by processes that died"


def _scrub(db: store.SessionDB, _: Progress) -> str:
    db.admin.scrub()
    return "removed deleted and redacted text from the files"


def _rebuild(db: store.SessionDB, progress: Progress) -> str:
    return f"rebuilt the search index: {safe_text.count(db.admin.rebuild_search_index(progress), 'message')}"


def _catch_up(db: store.SessionDB, progress: Progress) -> str:
    return f"indexed {safe_text.count(db.admin.update_search_index(progress), 'message')}"


def _upkeep(db: store.SessionDB, _: Progress) -> str:
    done = db.admin.run_upkeep_once()
    ended, removed = done.get("orphans_ended", 0), done.get("ghosts_removed", 0)
    return f"ended {safe_text.count(ended, 'continuation')}, deleted {safe_text.count(removed, 'empty conversation')}"


def _shrink(db: store.SessionDB, _: Progress) -> str:
    before = free_bytes(db.admin.info())
    db.admin.shrink()
    return f"freed {safe_text.size(before - free_bytes(db.admin.info()))} of disk space"
