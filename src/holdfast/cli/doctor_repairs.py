"""What `holdfast doctor --fix` can mend. Each repair says what it would do before anybody asks it to.

Nothing here touches a message: what is mended can be made again (the search index, triggers), would be done
by the next one who needs it (leases), or is left over (files of dead processes, unused room). A damaged log
is not mended in place: `holdfast salvage` reads what can be read into a new store. Until then nothing is moved
or cleared: what no longer hangs together can still be found where it lies.
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

# Worth writing the database anew for: so many bytes, and so large a part of it.
ROOM, PART = 64 * 1024 * 1024, 0.25
WHILE_DAMAGED = frozenset({"schema", "search"})


class Repair(NamedTuple):
    """Something that can be put right."""

    name: str
    would: str
    do: Callable[[store.SessionDB, Progress], str]


class Sick(NamedTuple):
    """What a store has that can be put right."""

    facts: dict[str, Any]
    faults: Sequence[SchemaFault]
    stale_leases: int
    leftovers: Sequence[str]
    unscrubbed: bool
    search: dict[str, Any]
    upkeep_due: bool
    damaged: bool


def offered(sick: Sick) -> Iterator[Repair]:
    """The repairs this store has use for; while it is damaged, only those that move nothing in its file."""
    return (repair for repair in _useful(sick) if not sick.damaged or repair.name in WHILE_DAMAGED)


def _useful(sick: Sick) -> Iterator[Repair]:
    altered = [f"the {fault.kind} {fault.name}" for fault in sick.faults if fault.repairable]
    if altered:
        yield Repair("schema", f"make {', '.join(altered)} again as declared", _repair_schema)
    if sick.stale_leases:
        yield Repair(
            "leases", f"free {safe_text.count(sick.stale_leases, 'lease')} nobody holds any more", _free_leases
        )
    if sick.leftovers:
        would = f"remove {safe_text.count(len(sick.leftovers), 'file')} that dead processes left half written"
        yield Repair("leftovers", would, _sweep)
    # Of a server this makes everybody wait: `holdfast db scrub` is for whoever means that.
    if sick.unscrubbed and not is_postgres(str(sick.facts["path"])):
        yield Repair("scrub", "clear the files of what was deleted and redacted", _scrub)
    if sick.search["errors"]:
        yield Repair("search", "throw the damaged search index away and make it again", _rebuild)
    elif sick.search["behind"]:
        would = f"index the {safe_text.count(sick.search['behind'], 'message')} that were written since the last search"
        yield Repair("search", would, _catch_up)
    if sick.upkeep_due:
        would = "end continuations nothing stands behind, and remove conversations that never had a message"
        yield Repair("upkeep", would, _upkeep)
    if room(sick.facts) >= ROOM and sick.facts["free_pages"] >= PART * sick.facts["pages"]:
        would = (
            f"write the database anew and give {safe_text.size(room(sick.facts))} back; others wait to write meanwhile"
        )
        yield Repair("room", would, _shrink)


def room(facts: dict[str, Any]) -> int:
    """Bytes of the database that hold nothing."""
    return int(facts.get("free_pages", 0) * facts.get("page_size", 0))


def leftovers(path: str) -> list[str]:
    """Files beside a store that processes were writing when they died."""
    return [each for folder in _folders(path) for each in atomic_file.find_abandoned(folder)]


def _folders(path: str) -> list[str]:
    return [folder for folder in (os.path.dirname(path), f"{path}.blobs") if os.path.isdir(folder)]


def _repair_schema(db: store.SessionDB, _: Progress) -> str:
    before = [fault for fault in db.admin.schema_faults() if fault.repairable]
    db.admin.repair_schema()
    return "made again: " + (", ".join(f"the {fault.kind} {fault.name}" for fault in before) or "nothing")


def _free_leases(db: store.SessionDB, _: Progress) -> str:
    return f"freed {safe_text.count(db.admin.free_stale_leases(), 'lease')}"


def _sweep(db: store.SessionDB, _: Progress) -> str:
    removed = sum(atomic_file.remove_abandoned(folder) for folder in _folders(str(db.admin.info()["path"])))
    return f"removed {safe_text.count(removed, 'file')} that dead processes left"


def _scrub(db: store.SessionDB, _: Progress) -> str:
    db.admin.scrub()
    return "cleared the files of what was deleted and redacted"


def _rebuild(db: store.SessionDB, progress: Progress) -> str:
    return f"made the search index again: {safe_text.count(db.admin.rebuild_search_index(progress), 'message')}"


def _catch_up(db: store.SessionDB, progress: Progress) -> str:
    return f"indexed {safe_text.count(db.admin.update_search_index(progress), 'message')}"


def _upkeep(db: store.SessionDB, _: Progress) -> str:
    done = db.admin.run_upkeep_once()
    ended, removed = done.get("orphans_ended", 0), done.get("ghosts_removed", 0)
    return f"ended {safe_text.count(ended, 'continuation')}, removed {safe_text.count(removed, 'empty conversation')}"


def _shrink(db: store.SessionDB, _: Progress) -> str:
    before = room(db.admin.info())
    db.admin.shrink()
    return f"gave {safe_text.size(before - room(db.admin.info()))} back to the disk"
