"""Attachments in exports to a file: verified by their digest, and never a reason to lose a message."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import SessionDB, errors
from tests.support import backends, conversations
from tests.support.backends import AtPoint, MakeDb
from tests.support.conversations import Clock, attach, read_blob
from tests.support.hostile_exports import fresh, resealed, where
from tests.support.random_histories import exported, imported

PICTURE, SOUND = b"\x89PNG\0" * 1000, b"RIFF" * 500
HOUR = 3600.0


def begin_with_attachment(db: SessionDB, name: str = "talk", content: bytes = PICTURE) -> str:
    """Begin a conversation whose second message names an attachment; return its digest."""
    digest = db.blobs.put(content, "image/png").digest
    attach(db, conversations.begin(db, name, "look"), digest)
    return digest


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def blobs_of(path: Path) -> Path:
    return Path(f"{path}.blobs")


def contents_of(path: Path) -> list[bytes]:
    return sorted(files(blobs_of(path)).values())


@pytest.fixture
def export(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "talk.jsonl"


@pytest.fixture
def other(make_db: MakeDb) -> SessionDB:
    """The store that the export of another is imported into."""
    return make_db("other")


@pytest.fixture
def source(make_db: MakeDb) -> SessionDB:
    """The store that an export is made of."""
    return make_db()


def test_export_is_imported_exactly_with_its_attachments(source: SessionDB, other: SessionDB, export: Path) -> None:
    digests = {begin_with_attachment(source), begin_with_attachment(source, "more", SOUND)}
    report = source.admin.export_to(export)
    assert (set(report.blobs), report.blob_bytes, report.lost_blobs) == (digests, len(PICTURE + SOUND), ())
    came = other.admin.import_from(export)
    assert (came.ok, came.blobs, came.lost_blobs) == (True, 2, ())
    again = export.with_name("again.jsonl")
    other.admin.export_to(again)
    assert again.read_bytes() == export.read_bytes()
    assert files(blobs_of(again)) == files(blobs_of(export))
    assert contents_of(export) == sorted([PICTURE, SOUND])
    assert {other.blobs.get(digest).media_type for digest in digests} == {"image/png"}
    assert {read_blob(other, digest) for digest in digests} == {PICTURE, SOUND}
    kept = backends.shelved(other)
    with conversations.nothing_changes(other):
        repeated = other.admin.import_from(export)
    assert (repeated.ids("already_there"), repeated.blobs, repeated.lost_blobs) == (["talk", "more"], 0, ())
    assert backends.shelved(other) == kept


@backends.on_memory
def test_export_has_the_attachments_that_its_messages_name(db: SessionDB, export: Path) -> None:
    trunk, elsewhere = begin_with_attachment(db, "trunk"), begin_with_attachment(db, "other", SOUND)
    unused = db.blobs.put(b"unused").digest
    db.branch("trunk", branch_id="twig")
    mine = db.blobs.put(b"mine").digest
    attach(db, "twig", mine, trunk)
    conversations.say(db, "twig", f'{{"blob":"{unused}"}}')
    assert set(db.admin.export_to(export, ["twig"]).blobs) == {trunk, mine}
    assert contents_of(export) == sorted([PICTURE, b"mine"])
    assert elsewhere not in export.read_text("utf-8")
    lines = [json.loads(line) for line in export.read_text("utf-8").splitlines() if '"kind":"blob"' in line]
    assert lines[0] == {"kind": "blob", "digest": trunk, "size": len(PICTURE), "media_type": "image/png"}
    for path in export.parent.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)
    db.redact("other", 2)
    assert db.admin.export_to(export.with_name("without"), ["other"]).blobs == ()
    assert not blobs_of(export.with_name("without")).exists()


@pytest.mark.parametrize("state", ["sound", "missing", "damaged"])
def test_import_repairs_blobs_and_keeps_types(source: SessionDB, other: SessionDB, export: Path, state: str) -> None:
    digest = begin_with_attachment(source)
    source.admin.export_to(export)
    other.blobs.put(PICTURE, "image/webp")
    if state == "missing":
        backends.lose_blob(other, digest)
    elif state == "damaged":
        backends.rewrite_blob(other, digest, PICTURE[:-1] + b"?")
    assert other.admin.import_from(export).blobs == (state != "sound")
    assert (other.blobs.get(digest).media_type, read_blob(other, digest)) == ("image/webp", PICTURE)


def test_messages_are_imported_without_their_attachments(source: SessionDB, other: SessionDB, export: Path) -> None:
    backends.spoiled |= {source, other}
    lost, kept, unknown = begin_with_attachment(source), begin_with_attachment(source, "more", SOUND), "0" * 64
    attach(source, "talk", unknown)
    backends.lose_blob(source, lost)
    text = exported(source)
    report = imported(other, text)
    assert (report.ok, report.ids("imported"), set(report.lost_blobs)) == (
        True,
        ["talk", "more"],
        {lost, kept, unknown},
    )
    assert exported(other) == text
    assert set(source.admin.export_to(export).lost_blobs) == {lost, unknown}
    came = other.admin.import_from(export)
    assert (came.ids("already_there"), came.blobs, set(came.lost_blobs)) == (["talk", "more"], 1, {lost, unknown})
    assert read_blob(other, kept) == SOUND


def test_collection_during_an_import_takes_no_attachment_of_it(
    source: SessionDB, other: SessionDB, clock: Clock, export: Path, at_point: AtPoint
) -> None:
    digest = begin_with_attachment(source)
    source.admin.export_to(export)
    other.blobs.put(PICTURE)
    clock.advance(25 * HOUR)
    collected = []
    at_point(lambda point: collected.append(other.blobs.collect().blobs) if point == "import.queued" else None)
    other.admin.import_from(export)
    at_point(None)
    assert collected == [0]
    assert read_blob(other, digest) == PICTURE


def test_attachments_of_a_refused_conversation_are_not_written(
    source: SessionDB, other: SessionDB, export: Path, at_point: AtPoint
) -> None:
    conversations.begin(source, "trunk", "a")
    source.branch("trunk", branch_id="twig")
    attach(source, "twig", source.blobs.put(PICTURE).digest)
    source.admin.export_to(export)
    conversations.begin(other, "trunk", "something else")
    passed: list[str] = []
    at_point(passed.append)
    report = other.admin.import_from(export)
    at_point(None)
    assert passed == []
    assert [outcome.outcome for outcome in report.outcomes] == ["conflict", "refused"]
    assert (report.blobs, report.lost_blobs, backends.shelved(other)) == (0, (), {})


@pytest.mark.parametrize("deleted_before", [False, True])
def test_attachments_of_a_conversation_refused_while_writing_are_collected(
    source: SessionDB, other: SessionDB, export: Path, at_point: AtPoint, clock: Clock, deleted_before: bool
) -> None:
    backends.spoiled.add(source)
    begin_with_attachment(source)
    shared = source.blobs.put(b"shared").digest
    attach(source, "talk", "0" * 64, shared, source.blobs.put(SOUND).digest)
    attach(source, conversations.begin(source, "accepted", "look"), shared)
    source.admin.export_to(export)
    if deleted_before:
        begin_with_attachment(other, "earlier")
        other.delete_conversation("earlier")

    def take_the_id(point: str) -> None:
        if point == "import.queued":
            at_point(None)
            conversations.begin(other, "talk", "mine")
            clock.advance(1)
            other.blobs.put(SOUND)

    at_point(take_the_id)
    report = other.admin.import_from(export)
    assert (report.ids("imported"), report.ids("conflict"), report.lost_blobs) == (["accepted"], ["talk"], ())
    assert other.blobs.collect().blobs == 0
    assert {b"shared", SOUND} <= set(backends.shelved(other).values()), "what others name or put stays"
    clock.advance(25 * HOUR)
    assert other.blobs.collect().blobs == 2
    assert list(backends.shelved(other)) == [shared]


def _replace_by(make: Callable[[Path], object]) -> Callable[[Path, Path], None]:
    def harm(file: Path, _: Path) -> None:
        file.unlink()
        make(file)

    return harm


def _link(file: Path, elsewhere: Path) -> None:
    file.rename(elsewhere / "content")
    file.symlink_to(elsewhere / "content")


def _link_folder(file: Path, elsewhere: Path) -> None:
    file.parent.rename(elsewhere / "folder")
    file.parent.symlink_to(elsewhere / "folder")


def _make_huge(file: Path) -> None:
    with file.open("wb") as sparse:
        sparse.truncate(2**40)


HARM: dict[str, Callable[[Path, Path], None]] = {
    "other content": _replace_by(lambda file: file.write_bytes(PICTURE[:-1] + b"?")),
    "a file larger than the disk": _replace_by(_make_huge),
    "a pipe without a writer": _replace_by(os.mkfifo),
    "a folder": _replace_by(Path.mkdir),
    "a link to the content": _link,
    "a link to its folder": _link_folder,
    "nothing": _replace_by(lambda _: None),
}


@pytest.mark.parametrize("what", HARM)
@backends.on_memory
def test_attachment_is_read_from_its_regular_file_only(db: SessionDB, export: Path, tmp_path: Path, what: str) -> None:
    backends.spoiled.add(db)
    with fresh() as made:
        digest = begin_with_attachment(made)
        made.admin.export_to(export)
    HARM[what](next(path for path in blobs_of(export).rglob("*") if path.is_file()), tmp_path)
    report = db.admin.import_from(export)
    assert (report.ids("imported"), report.blobs, report.lost_blobs) == (["talk"], 0, (digest,))
    assert backends.shelved(db) == {}


def _set(**values: Any) -> Callable[[list[Any], int], None]:
    return lambda objs, place: objs[place].update(values)


LINES: dict[str, Callable[[list[Any], int], None]] = {
    "a path": _set(digest="../../../../etc/passwd"),
    "a path as long as a digest": _set(digest=("../" * 22)[:64]),
    "a digest and more": _set(digest="a" * 64 + "\n"),
    "a digest without a message": _set(digest="a" * 64),
    "a negative size": _set(size=-1),
    "a size without a media type": lambda objs, place: objs[place].pop("media_type") and None,
    "an invalid media type": _set(media_type="image\n"),
    "an additional field": _set(path="/etc/passwd"),
    "a line before its message": lambda objs, place: objs.insert(where(objs, "message"), objs.pop(place)),
}


def export_with_line(change: Callable[[list[Any], int], None]) -> str:
    with fresh() as db:
        begin_with_attachment(db)
        objs = [json.loads(line) for line in exported(db).splitlines()]
    change(objs, where(objs, "blob"))
    return resealed(objs)


@pytest.mark.parametrize("what", LINES)
@backends.on_memory
def test_hostile_line_is_refused_with_its_conversation(db: SessionDB, what: str) -> None:
    report = imported(db, export_with_line(LINES[what]))
    assert report.ids("imported") == []
    assert isinstance(report.outcomes[0].error, errors.ImportInvalid)
    assert db.list_sessions() == []
    assert db.blobs.put(b"next").size == 4


@backends.on_memory
def test_attachment_of_another_size_than_declared_is_not_imported(db: SessionDB, export: Path) -> None:
    backends.spoiled.add(db)
    with fresh() as made:
        digest = begin_with_attachment(made)
        made.admin.export_to(export)
    export.write_text(export_with_line(_set(size=7)), "utf-8")
    assert db.admin.import_from(export).lost_blobs == (digest,)
    db.blobs.put(PICTURE)
    assert db.blobs.get(digest).size == len(PICTURE)


@backends.on_memory
def test_export_replaces_its_own_attachments_only(db: SessionDB, export: Path) -> None:
    digest = begin_with_attachment(db)
    db.admin.export_to(export)
    (blobs_of(export) / "mine").write_text("of the user")
    db.redact("talk", 2)
    begin_with_attachment(db, "more", SOUND)
    db.admin.export_to(export)
    assert contents_of(export) == sorted([SOUND, b"of the user"])
    assert digest not in export.read_text("utf-8")
    export.rename(export.with_name("moved"))
    db.delete_conversation("more")
    begin_with_attachment(db, "again")
    db.admin.export_to(export)
    assert contents_of(export) == sorted([PICTURE, SOUND, b"of the user"])


@backends.on_memory
def test_failed_export_keeps_the_one_before(db: SessionDB, export: Path) -> None:
    begin_with_attachment(db)
    conversations.begin(db, "c", "one", "two", "three")
    db.admin.export_to(export)
    before = files(export.parent)
    begin_with_attachment(db, "more", SOUND)
    backends.damage(db, "a text was changed")
    with pytest.raises(errors.StoreCorrupt):
        db.admin.export_to(export)
    assert files(export.parent) == before


@backends.on_memory
def test_invalid_path_is_refused(db: SessionDB, export: Path) -> None:
    for call in (db.admin.export_to, db.admin.export_pages, db.admin.import_from):
        with pytest.raises(errors.InvalidArgument):
            call(Path("a\0b"))
    for call in (db.admin.export_to, db.admin.import_from):
        for path in (export.parent / "none" / "x", export.parent):
            with pytest.raises(errors.StoreUnusable, match="cannot be read or written"):
                call(path)


@pytest.mark.parametrize("form", ["markdown", "html"])
@backends.on_memory
def test_pages_name_attachments_and_link_to_nothing(db: SessionDB, export: Path, form: Any) -> None:
    backends.spoiled.add(db)
    digest = begin_with_attachment(db)
    attach(db, "talk", "0" * 64)
    out = io.StringIO()
    db.admin.export_pages(out, form=form)
    assert f"image: attachment {digest[:12]}, image/png, 5,000 bytes" in out.getvalue().replace("\\", "")
    assert f"attachment {'0' * 12}, unknown" in out.getvalue().replace("\\", "")
    assert "href" not in out.getvalue()
    db.admin.export_pages(export, form=form)
    assert (export.read_text("utf-8"), os.listdir(export.parent)) == (out.getvalue(), [export.name])
