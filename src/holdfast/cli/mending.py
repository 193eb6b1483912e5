"""What `holdfast doctor --fix` can mend. Each repair says what it would do before anybody asks it to.

Nothing here touches a message: what is mended can be made again (the search index), would be done by the
next one who needs it (leases), or is left over (files nothing refers to). A damaged log is not mended in
place: `holdfast salvage` reads what can be read into a new store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from holdfast.cli import text
from holdfast.store import db as store

Progress = Callable[[int, int], None]


class Repair(NamedTuple):
    """Something that can be put right."""

    name: str
    would: str
    do: Callable[[store.SessionDB, Progress], str]


def offered(db: store.SessionDB, stale_leases: int) -> Iterator[Repair]:
    """The repairs this store has use for."""
    if stale_leases:
        yield Repair("leases", f"free {text.count(stale_leases, 'lease')} nobody holds any more", _free_leases)
    index = db.search_facts()
    if index["complaints"]:
        yield Repair("search", "throw the damaged search index away and make it again", _rebuild)
    elif index["behind"]:
        would = f"index the {text.count(index['behind'], 'message')} that were written since the last search"
        yield Repair("search", would, _catch_up)
    if db.meta("upkeep_done_at") is None:
        would = "end continuations nothing stands behind, and remove conversations that never had a message"
        yield Repair("upkeep", would, _upkeep)


def _free_leases(db: store.SessionDB, _: Progress) -> str:
    return f"freed {text.count(db.free_stale_leases(), 'lease')}"


def _rebuild(db: store.SessionDB, progress: Progress) -> str:
    return f"made the search index again: {text.count(db.rebuild_search(progress), 'message')}"


def _catch_up(db: store.SessionDB, progress: Progress) -> str:
    return f"indexed {text.count(db.index_search(progress), 'message')}"


def _upkeep(db: store.SessionDB, _: Progress) -> str:
    done = db.upkeep_once()
    ended, removed = done.get("orphans_ended", 0), done.get("ghosts_removed", 0)
    return f"ended {text.count(ended, 'continuation')}, removed {text.count(removed, 'empty conversation')}"
