"""A process killed in the middle of an import leaves whole conversations; the next import brings the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.store.db import SessionDB
from tests.faults import importing, zygote

KILLS = 20


@pytest.fixture
def text() -> str:
    with SessionDB(":memory:") as db:
        importing.fill(db)
        return importing.exported(db)


@pytest.fixture
def alone(text: str) -> dict[str, str]:
    """Each conversation as it must be found, if it is found."""
    with SessionDB(":memory:") as db:
        db.import_from(text.splitlines())
        return {name: importing.exported(db, name) for name in ("talk", "twig", "alone")}


def test_kill_anywhere_in_an_import_leaves_whole_conversations(
    zygote: zygote.Zygote, place: Path, text: str, alone: dict[str, str]
) -> None:
    points = zygote.run(importing.take_in, place / "watched.db", {"text": text}, points=("import",)).reached
    assert sum(point == "import.committed" for point in points) == 3
    assert {"import.import_message", "import.import_compaction", "import.hide_shown"} <= set(points)
    found = set()
    for kill in range(KILLS):
        at = kill * (len(points) - 1) // (KILLS - 1)
        path = place / f"{kill}.db"
        outcome = zygote.run(importing.take_in, path, {"text": text}, points=("import",), at=at, fault="kill")
        assert outcome.state == "killed"
        with SessionDB(path) as db:
            here = [session.conversation_id for session in db.list_sessions()]
            assert {name: importing.exported(db, name) for name in here}.items() <= alone.items(), points[at]
            assert len(here) == points[: at + 1].count("import.committed")
            assert db.fsck().ok
            report = db.import_from(text.splitlines())
            assert report.ok
            assert sorted(report.ids("already_there")) == sorted(here)
            assert importing.exported(db) == text
            assert db.fsck().ok
        found.add(len(here))
    assert found == {0, 1, 2, 3}
