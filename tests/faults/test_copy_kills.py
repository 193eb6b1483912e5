"""A process killed in the middle of a copy: the next one starts over, and nothing is lost or there twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.store.db import SessionDB
from tests.faults import importing, moving, zygote
from tests.support import conversations, full_store, postgres

KILLS = 6


def in_file(place: Path, name: str) -> str:
    return str(place / f"{name}.db")


def on_server(place: Path, name: str) -> str:
    return postgres.with_schema(postgres.dsn(), postgres.empty_schema())


@pytest.mark.parametrize("make", [in_file, on_server])
def test_kill_anywhere_in_a_copy_and_the_next_one_ends_the_same(
    zygote: zygote.Zygote, place: Path, make: Callable[[Path, str], str]
) -> None:
    source, clock, kinds = in_file(place, "source"), conversations.Clock(), ("copy", "blob")
    with SessionDB(source, clock=clock) as db:
        full_store.fill(db, clock)
        importing.fill(db)
        wanted = full_store.dump(db)
    watched = zygote.run(moving.move, "", {"source": source, "target": make(place, "watched")}, points=kinds)
    assert {"copy.import_compaction", "copy.copy_act", "copy.restore_counters"} <= set(watched.reached)
    count = len(watched.reached)
    finished = set()
    for at in sorted({kill * (count - 1) // (KILLS - 1) for kill in range(KILLS)}):
        target = make(place, str(at))
        arguments = {"source": source, "target": target}
        assert zygote.run(moving.move, "", arguments, points=kinds, at=at, fault="kill").state == "killed"
        with SessionDB(source, clock=clock) as db, SessionDB(target, clock=clock) as other:
            finished.add(not other.admin.is_unfinished_copy())
            report = db.admin.copy_to(other.admin)
            assert report.digest == watched.value
            assert full_store.dump(other) == wanted, watched.reached[at]
            assert other.admin.fsck().ok
    assert False in finished
