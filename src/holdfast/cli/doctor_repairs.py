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


def list_repairs(
    facts: dict[str, Any],
    faults: Sequence[SchemaFault],
    stale_leases: int,
    leftovers: Sequence[str],
    unscrubbed: bool,
    search: dict[str, Any],
    upkeep_due: bool,
) -> Iterator[Repair]:
    """Yield the repairs that a store in this state needs."""
    count = safe_text.count
    altered = ", ".join(f"the {fault.kind} {fault.name}" for fault in faults if fault.repairable)
    if altered:

        def repair_schema(db: store.SessionDB, _: Progress) -> str:
            db.admin.repair_schema()
            return f"created again: {altered}"

        yield Repair("schema", f"create {altered} again as declared", repair_schema)
    if stale_leases:
        would = f"free {count(stale_leases, 'lease')} that no process holds any more"
        yield Repair("leases", would, lambda db, _: f"freed {count(db.admin.free_stale_leases(), 'lease')}")
    if leftovers:
        would = f"remove {count(len(leftovers), 'file')} left by processes that died"
        yield Repair("leftovers", would, _sweep)
    # On a server this blocks other clients: `holdfast db scrub` does it on request.
    if unscrubbed and not is_postgres(str(facts["path"])):
        yield Repair("scrub", "remove deleted and redacted text from the files", _scrub)
    if search["errors"]:
        yield Repair(
            "search",
            "rebuild the damaged search index",
            lambda db, progress: (
                f"rebuilt the search index: {count(db.admin.rebuild_search_index(progress), 'message')}"
            ),
        )
    elif search["behind"]:
        yield Repair(
            "search",
            f"index the {count(search['behind'], 'message')} written since the last search",
            lambda db, progress: f"indexed {count(db.admin.update_search_index(progress), 'message')}",
        )
    if upkeep_due:
        yield Repair("upkeep", "end orphaned continuations, and delete conversations without messages", _upkeep)
    free = free_bytes(facts)
    if free >= MIN_FREE_BYTES and facts["free_pages"] >= MIN_FREE_SHARE * facts["pages"]:
        size = safe_text.size(free)
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


def _sweep(db: store.SessionDB, _: Progress) -> str:
    removed = sum(atomic_file.remove_abandoned(folder) for folder in _folders(str(db.admin.info()["path"])))
    return f"removed {safe_text.count(removed, 'file')} left by processes that died"


def _scrub(db: store.SessionDB, _: Progress) -> str:
    db.admin.scrub()
    return "removed deleted and redacted text from the files"


def _upkeep(db: store.SessionDB, _: Progress) -> str:
    done = db.admin.run_upkeep_once()
    ended, removed = done.get("orphans_ended", 0), done.get("ghosts_removed", 0)
    return f"ended {safe_text.count(ended, 'continuation')}, deleted {safe_text.count(removed, 'empty conversation')}"


def _shrink(db: store.SessionDB, _: Progress) -> str:
    before = free_bytes(db.admin.info())
    db.admin.shrink()
    return f"freed {safe_text.size(before - free_bytes(db.admin.info()))} of disk space"
