"""A process killed in the middle of an import leaves whole conversations; the next import brings the rest.

One killed in the middle of an export leaves the file from before or the new one, with the attachments it names.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from holdfast.store.blobs.files import BlobFiles
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
        db.admin.import_from(text.splitlines())
        return {name: importing.exported(db, name) for name in ("talk", "twig", "alone")}


def test_kill_anywhere_in_an_import_leaves_whole_conversations(
    zygote: zygote.Zygote, place: Path, text: str, alone: dict[str, str]
) -> None:
    points = zygote.run(importing.take_in, place / "watched.db", {"text": text}, points=("import",)).reached
    assert sum(point == "import.committed" for point in points) == 3
    assert {"import.import_message", "import.import_compaction", "import.hide_shown"} <= set(points)
    found = set()
    for at in spread(points):
        path = place / f"{at}.db"
        outcome = zygote.run(importing.take_in, path, {"text": text}, points=("import",), at=at, fault="kill")
        assert outcome.state == "killed"
        with SessionDB(path) as db:
            here = [session.conversation_id for session in db.list_sessions()]
            assert {name: importing.exported(db, name) for name in here}.items() <= alone.items(), points[at]
            assert len(here) == points[: at + 1].count("import.committed")
            assert db.admin.fsck().ok
            report = db.admin.import_from(text.splitlines())
            assert report.ok
            assert sorted(report.ids("already_there")) == sorted(here)
            assert importing.exported(db) == text
            assert db.admin.fsck().ok
        found.add(len(here))
    assert found == {0, 1, 2, 3}


def spread(points: list[str]) -> list[int]:
    """Some points, or all if they are few, from the first to the last."""
    return sorted({kill * (len(points) - 1) // (KILLS - 1) for kill in range(KILLS)})


def test_kill_anywhere_in_an_import_leaves_no_message_without_its_attachment(
    zygote: zygote.Zygote, place: Path
) -> None:
    file = place / "talk.jsonl"
    with SessionDB(place / "source.db") as db:
        importing.fill(db)
        importing.attach(db, "talk", b"one" * 9_000, b"two")
        importing.attach(db, "alone", b"three")
        db.admin.export_to(file)
    kinds, arguments = ("import", "blob"), {"file": str(file)}
    points = zygote.run(importing.take_in_file, place / "watched.db", arguments, points=kinds).reached
    assert {"blob.drafted", "blob.renamed", "blob.committed", "import.blob_known"} <= set(points)
    for at in spread(points):
        path = place / f"{at}.db"
        assert zygote.run(importing.take_in_file, path, arguments, points=kinds, at=at, fault="kill").state == "killed"
        with SessionDB(path) as db:
            assert db.admin.fsck().ok, points[at]
            report = db.admin.import_from(file)
            assert (report.ok, report.lost_blobs) == (True, ())
            assert importing.exported(db) == file.read_text("utf-8")
            assert db.admin.fsck().ok


def test_kill_anywhere_in_an_export_leaves_the_one_before_or_the_new_one(zygote: zygote.Zygote, place: Path) -> None:
    store, kinds = place / "store.db", ("export", "blob")
    with SessionDB(store) as db:
        importing.fill(db)
        importing.attach(db, "talk", b"one" * 9_000, b"two")
        db.admin.export_to(place / "old")
        db.redact("talk", 7)
        importing.attach(db, "alone", b"three")
        db.admin.export_to(place / "new")
    old, new = (importing.Export(place / name) for name in ("old", "new"))
    assert old.blobs.isdisjoint(new.blobs)

    def replacing(at: int) -> Path:
        file = place / f"{at}.jsonl"
        shutil.copy(place / "old", file)
        shutil.copytree(f"{place / 'old'}.blobs", f"{file}.blobs")
        return file

    points = zygote.run(importing.write_file, store, {"file": str(replacing(-1))}, points=kinds).reached
    assert {"blob.kept", "export.synced", "export.renamed", "export.kept"} <= set(points)
    found = set()
    for at in spread(points):
        file = replacing(at)
        outcome = zygote.run(importing.write_file, store, {"file": str(file)}, points=kinds, at=at, fault="kill")
        assert outcome.state == "killed"
        left = old if file.read_bytes() == old.text else new
        assert file.read_bytes() == left.text, points[at]
        assert all(BlobFiles(f"{file}.blobs").state(digest) == "sound" for digest in left.blobs), points[at]
        found.add(left is new)
        with SessionDB(store) as db:
            db.admin.export_to(file)
        assert importing.Export(file) == new
    assert found == {False, True}
