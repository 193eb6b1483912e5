"""Attachments travel with an export that is a file: checked by their digest, never a reason to lose a message."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import SessionDB, errors
from tests.contract.conftest import MakeDb
from tests.support import backends, conversations
from tests.support.hostile_exports import fresh, resealed, where
from tests.support.random_histories import exported, imported

PICTURE, SOUND = b"\x89PNG\0" * 1000, b"RIFF" * 500
HOUR = 3600.0
AtPoint = Callable[[Callable[[str], None] | None], None]


def attach(db: SessionDB, session_id: str, *digests: str) -> None:
    db.append_message(session_id, role="user", content=[{"type": "file", "blob": digest} for digest in digests])


def talk(db: SessionDB, name: str = "talk", content: bytes = PICTURE) -> str:
    """A conversation whose second message names an attachment; its digest."""
    digest = db.blobs.put(content, "image/png").digest
    attach(db, conversations.begin(db, name, "look"), digest)
    return digest


def files(folder: Path) -> dict[str, bytes]:
    """All there is in a folder, by its path in there."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def blobs_of(path: Path) -> Path:
    return Path(f"{path}.blobs")


def content(db: SessionDB, digest: str) -> bytes:
    with db.blobs.open(digest) as file:
        return file.read()


@pytest.fixture
def export(tmp_path: Path) -> Path:
    return tmp_path / "out" / "talk.jsonl"


@pytest.fixture(autouse=True)
def _folder(export: Path) -> None:
    export.parent.mkdir()


# --- there and back ------------------------------------------------------------------------------------------


def test_an_export_comes_back_to_the_byte_with_its_attachments(make_db: MakeDb, export: Path) -> None:
    db, other, again = make_db(), make_db("other"), export.with_name("again.jsonl")
    digests = {talk(db), talk(db, "more", SOUND)}
    report = db.admin.export_to(export)
    assert (set(report.blobs), report.blob_bytes, report.lost_blobs) == (digests, len(PICTURE + SOUND), ())
    came = other.admin.import_from(export)
    assert (came.ok, came.blobs, came.lost_blobs) == (True, 2, ())
    other.admin.export_to(again)
    assert again.read_bytes() == export.read_bytes()
    assert files(blobs_of(again)) == files(blobs_of(export))
    assert sorted(files(blobs_of(export)).values()) == sorted([PICTURE, SOUND])
    assert {other.blobs.get(digest).media_type for digest in digests} == {"image/png"}
    assert {content(other, digest) for digest in digests} == {PICTURE, SOUND}


def test_lines_tell_digest_size_and_media_type(db: SessionDB) -> None:
    digest = talk(db)
    attach(db, "talk", digest)
    told = [json.loads(line) for line in exported(db).splitlines() if '"kind":"blob"' in line]
    assert told == [{"kind": "blob", "digest": digest, "size": len(PICTURE), "media_type": "image/png"}]


def test_importing_twice_is_importing_once(make_db: MakeDb, export: Path) -> None:
    db, other = make_db(), make_db("other")
    digest = talk(db)
    db.admin.export_to(export)
    other.admin.import_from(export)
    blob, kept = other.blobs.get(digest), backends.shelved(other)
    with conversations.nothing_changes(other):
        report = other.admin.import_from(export)
    assert (report.ids("already_there"), report.blobs, report.lost_blobs) == (["talk"], 0, ())
    assert (other.blobs.get(digest), backends.shelved(other)) == (blob, kept)


def test_an_export_without_attachments_has_no_folder(db: SessionDB, export: Path) -> None:
    conversations.begin(db, "talk", "one")
    db.blobs.put(PICTURE)
    db.admin.export_to(export)
    assert os.listdir(export.parent) == [export.name]


def test_only_what_the_exported_conversations_name_comes_along(db: SessionDB, export: Path) -> None:
    trunk, other = talk(db, "trunk"), talk(db, "other", SOUND)
    db.branch("trunk", branch_id="twig")
    mine = db.blobs.put(b"mine").digest
    attach(db, "twig", mine)
    assert set(db.admin.export_to(export, ["twig"]).blobs) == {trunk, mine}
    assert sorted(files(blobs_of(export)).values()) == sorted([PICTURE, b"mine"])
    assert other not in export.read_text("utf-8")


def test_what_a_redacted_message_named_does_not_come_along(db: SessionDB, export: Path) -> None:
    digest = talk(db)
    db.redact("talk", 2)
    assert db.admin.export_to(export).blobs == ()
    assert digest not in export.read_text("utf-8")
    assert not blobs_of(export).exists()


def test_text_that_looks_like_a_name_brings_nothing_along(db: SessionDB, export: Path) -> None:
    digest = db.blobs.put(PICTURE).digest
    conversations.begin(db, "talk", f'{{"blob":"{digest}"}}')
    assert db.admin.export_to(export).blobs == ()


def test_an_archive_brings_its_attachments_back(make_db: MakeDb, clock: conversations.Clock, export: Path) -> None:
    db, other = make_db(), make_db("other")
    digest = talk(db)
    clock.advance(conversations.DAY)
    db.admin.prune(db.admin.plan_prune(older_than_days=0), export)
    db.admin.scrub()
    assert other.admin.import_from(export).blobs == 1
    assert content(other, digest) == PICTURE
    assert db.admin.import_from(export, revive=True).ok
    assert content(db, digest) == PICTURE


@pytest.mark.parametrize("state", ["sound", "missing"])
def test_what_is_known_of_an_attachment_here_stays(make_db: MakeDb, export: Path, state: str) -> None:
    db, other = make_db(), make_db("other")
    digest = talk(db)
    db.admin.export_to(export)
    other.blobs.put(PICTURE, "image/webp")
    if state == "missing":
        backends.lose_blob(other, digest)
    assert other.admin.import_from(export).blobs == (state == "missing")
    assert other.blobs.get(digest).media_type == "image/webp"
    assert other.admin.import_from(export).ids("already_there") == ["talk"]


# --- attachments that are missing ----------------------------------------------------------------------------


def test_through_a_pipe_messages_come_and_attachments_are_told_of(make_db: MakeDb, export: Path) -> None:
    db, other = make_db(), make_db("other")
    backends.spoiled.add(other)
    digest = talk(db)
    text = exported(db)
    report = imported(other, text)
    assert (report.ok, report.ids("imported"), report.lost_blobs) == (True, ["talk"], (digest,))
    assert exported(other) == text
    db.admin.export_to(export)
    healed = other.admin.import_from(export)
    assert (healed.ids("already_there"), healed.blobs, healed.lost_blobs) == (["talk"], 1, ())
    assert other.admin.fsck().ok


def test_an_attachment_the_store_lacks_is_named_and_hinders_nothing(make_db: MakeDb, export: Path) -> None:
    db, other = make_db(), make_db("other")
    backends.spoiled |= {db, other}
    lost, kept, unknown = talk(db), talk(db, "more", SOUND), "0" * 64
    attach(db, "talk", unknown)
    backends.lose_blob(db, lost)
    report = db.admin.export_to(export)
    assert set(report.lost_blobs) == {lost, unknown}
    came = other.admin.import_from(export)
    assert (came.ok, came.blobs, set(came.lost_blobs)) == (True, 1, {lost, unknown})
    assert content(other, kept) == SOUND
    assert exported(other) == exported(db)


def test_damage_here_is_healed_by_importing_again(make_db: MakeDb, export: Path) -> None:
    db = make_db()
    digest = talk(db)
    db.admin.export_to(export)
    backends.rewrite_blob(db, digest, PICTURE[:-1] + b"?")
    assert db.admin.import_from(export).blobs == 1
    assert content(db, digest) == PICTURE


def test_a_collection_meanwhile_takes_nothing_that_is_about_to_be_named(
    make_db: MakeDb, clock: conversations.Clock, export: Path, at_point: Callable[[Callable[[str], None]], None]
) -> None:
    db, other = make_db(), make_db("other")
    digest = talk(db)
    db.admin.export_to(export)
    other.blobs.put(PICTURE)
    clock.advance(25 * HOUR)
    collected = []
    at_point(lambda point: collected.append(other.blobs.collect().blobs) if point == "import.queued" else None)
    other.admin.import_from(export)
    at_point(None)
    assert collected == [0]
    assert content(other, digest) == PICTURE


# --- conversations that are refused ---------------------------------------------------------------------------


def empty(db: SessionDB) -> bool:
    """Whether the store has no attachment, not even one that is on its way out."""
    return not backends.shelved(db) and not db.driver.read(lambda tx: tx.all("blobs_all"))


def test_a_deleted_attachment_is_not_even_drafted_when_its_conversation_is_refused(
    db: SessionDB, export: Path, at_point: AtPoint
) -> None:
    talk(db)
    db.admin.export_to(export)
    db.delete_conversation("talk")
    db.admin.scrub()
    passed: list[str] = []
    at_point(passed.append)
    report = db.admin.import_from(export)
    at_point(None)
    assert passed == []
    assert (report.ok, report.blobs, report.lost_blobs) == (False, 0, ())
    assert empty(db)


def test_one_that_was_deleted_and_not_yet_collected_goes_with_the_next_collection(
    db: SessionDB, export: Path, clock: conversations.Clock
) -> None:
    talk(db)
    db.admin.export_to(export)
    db.delete_conversation("talk")
    clock.advance(HOUR)
    assert not db.admin.import_from(export).ok
    assert db.blobs.collect().blobs == 1
    assert empty(db)


def test_a_branch_without_its_origin_brings_no_attachment(make_db: MakeDb, export: Path, at_point: AtPoint) -> None:
    db, other = make_db(), make_db("other")
    conversations.begin(db, "trunk", "a")
    db.branch("trunk", branch_id="twig")
    attach(db, "twig", db.blobs.put(PICTURE).digest)
    db.admin.export_to(export)
    conversations.begin(other, "trunk", "something else")
    passed: list[str] = []
    at_point(passed.append)
    report = other.admin.import_from(export)
    at_point(None)
    assert passed == []
    assert [outcome.outcome for outcome in report.outcomes] == ["conflict", "refused"]
    assert (report.blobs, report.lost_blobs) == (0, ())
    assert empty(other)


def meanwhile(other: SessionDB, at_point: AtPoint, change: Callable[[], object]) -> None:
    """Let something happen after attachments came in and before the conversation does."""

    def once(point: str) -> None:
        if point == "import.queued":
            at_point(None)
            change()

    at_point(once)


@pytest.mark.parametrize("deleted_before", [False, True])
def test_attachments_of_a_conversation_refused_while_writing_are_collected(
    make_db: MakeDb, export: Path, at_point: AtPoint, clock: conversations.Clock, deleted_before: bool
) -> None:
    db, other = make_db(), make_db("other")
    backends.spoiled.add(db)
    talk(db)
    attach(db, "talk", "0" * 64)
    db.admin.export_to(export)
    if deleted_before:
        talk(other, "earlier")
        other.delete_conversation("earlier")
    meanwhile(other, at_point, lambda: conversations.begin(other, "talk", "mine"))
    report = other.admin.import_from(export)
    assert (report.outcomes[0].outcome, report.blobs, report.lost_blobs) == ("conflict", 0, ())
    assert other.blobs.collect().blobs == 0
    clock.advance(25 * HOUR)
    assert other.blobs.collect().blobs == 1
    assert empty(other)


def test_what_others_name_or_are_about_to_name_stays_when_a_conversation_is_refused(
    make_db: MakeDb, export: Path, at_point: AtPoint, clock: conversations.Clock
) -> None:
    db, other = make_db(), make_db("other")
    digest = db.blobs.put(PICTURE).digest
    for name in ("refused", "taken"):
        attach(db, conversations.begin(db, name, "look"), digest)
    attach(db, "refused", db.blobs.put(SOUND).digest)
    db.admin.export_to(export)

    def change() -> None:
        conversations.begin(other, "refused", "mine")
        clock.advance(1)
        other.blobs.put(SOUND)

    meanwhile(other, at_point, change)
    report = other.admin.import_from(export)
    assert (report.ids("imported"), report.ids("conflict")) == (["taken"], ["refused"])
    assert sorted(backends.shelved(other).values()) == sorted([PICTURE, SOUND])
    assert content(other, digest) == PICTURE


# --- folders made to do harm ---------------------------------------------------------------------------------


def _replaced(make: Callable[[Path], object]) -> Callable[[Path, Path], None]:
    def harm(file: Path, _: Path) -> None:
        file.unlink()
        make(file)

    return harm


def _linked(file: Path, elsewhere: Path) -> None:
    file.rename(elsewhere / "content")
    file.symlink_to(elsewhere / "content")


def _folder_linked(file: Path, elsewhere: Path) -> None:
    file.parent.rename(elsewhere / "folder")
    file.parent.symlink_to(elsewhere / "folder")


def _huge(file: Path) -> None:
    with file.open("wb") as sparse:
        sparse.truncate(2**40)


HARM: dict[str, Callable[[Path, Path], None]] = {
    "other content": _replaced(lambda file: file.write_bytes(PICTURE[:-1] + b"?")),
    "less content": _replaced(lambda file: file.write_bytes(PICTURE[:-1])),
    "a file to fill the disk": _replaced(_huge),
    "a pipe nobody writes to": _replaced(os.mkfifo),
    "a folder": _replaced(Path.mkdir),
    "a link to the very content": _linked,
    "a link to a folder of it": _folder_linked,
    "nothing": _replaced(lambda _: None),
}


@pytest.mark.parametrize("what", HARM)
def test_what_is_not_the_content_itself_is_not_taken(make_db: MakeDb, export: Path, tmp_path: Path, what: str) -> None:
    db, other = make_db(), make_db("other")
    backends.spoiled.add(other)
    digest = talk(db)
    db.admin.export_to(export)
    HARM[what](next(path for path in blobs_of(export).rglob("*") if path.is_file()), tmp_path)
    report = other.admin.import_from(export)
    assert (report.ids("imported"), report.blobs, report.lost_blobs) == (["talk"], 0, (digest,))
    assert backends.shelved(other) == {}


def hostile(change: Callable[[list[Any], int], None]) -> str:
    with fresh() as db:
        talk(db)
        objs = [json.loads(line) for line in exported(db).splitlines()]
    change(objs, where(objs, "blob"))
    return resealed(objs)


def _said(**values: Any) -> Callable[[list[Any], int], None]:
    return lambda objs, place: objs[place].update(values)


def _moved(objs: list[Any], place: int) -> None:
    objs.insert(where(objs, "message"), objs.pop(place))


LINES: dict[str, Callable[[list[Any], int], None]] = {
    "a path": _said(digest="../../../../etc/passwd"),
    "a path as long as a digest": _said(digest=("../" * 22)[:64]),
    "capitals": _said(digest="A" * 64),
    "a digest and more": _said(digest="a" * 64 + "\n"),
    "a digest nobody names": _said(digest="a" * 64),
    "a size below nothing": _said(size=-1),
    "a size without a kind": lambda objs, place: objs[place].pop("media_type") and None,
    "no media type": _said(media_type="image\n"),
    "one more field": _said(path="/etc/passwd"),
    "a line before its message": _moved,
}


@pytest.mark.parametrize("what", LINES)
def test_a_hostile_line_is_refused_with_its_conversation(db: SessionDB, what: str) -> None:
    report = imported(db, hostile(LINES[what]))
    assert report.ids("imported") == []
    assert isinstance(report.outcomes[0].error, errors.ImportInvalid)
    assert db.list_sessions() == []
    assert db.blobs.put(b"next").size == 4


def test_a_size_that_is_not_true_takes_nothing_and_is_corrected_by_the_content(make_db: MakeDb, export: Path) -> None:
    db, other = make_db(), make_db("other")
    backends.spoiled.add(other)
    digest = talk(db)
    db.admin.export_to(export)
    export.write_text(hostile(_said(size=7)), "utf-8")
    assert other.admin.import_from(export).lost_blobs == (digest,)
    other.blobs.put(PICTURE)
    assert other.blobs.get(digest).size == len(PICTURE)


# --- where it goes -------------------------------------------------------------------------------------------


def test_an_export_that_replaces_one_leaves_no_attachment_of_it(db: SessionDB, export: Path) -> None:
    digest = talk(db)
    db.admin.export_to(export)
    (blobs_of(export) / "mine").write_text("not of ours")
    db.redact("talk", 2)
    talk(db, "more", SOUND)
    db.admin.export_to(export)
    assert sorted(files(blobs_of(export)).values()) == sorted([SOUND, b"not of ours"])
    assert digest not in export.read_text("utf-8")


def test_attachments_beside_another_file_are_left_alone(db: SessionDB, export: Path) -> None:
    talk(db)
    db.admin.export_to(export)
    export.rename(export.with_name("moved"))
    db.delete_conversation("talk")
    talk(db, "more", SOUND)
    db.admin.export_to(export)
    assert sorted(files(blobs_of(export)).values()) == sorted([PICTURE, SOUND])


def test_an_export_that_fails_leaves_the_one_before(db: SessionDB, export: Path) -> None:
    backends.spoiled.add(db)
    talk(db)
    conversations.begin(db, "c", "one", "two", "three")
    db.admin.export_to(export)
    before = files(export.parent)
    talk(db, "more", SOUND)
    backends.damage(db, "a text was changed")
    with pytest.raises(errors.StoreCorrupt):
        db.admin.export_to(export)
    assert files(export.parent) == before


def test_files_and_folders_are_for_their_owner_alone(db: SessionDB, export: Path) -> None:
    talk(db)
    db.admin.export_to(export)
    for path in export.parent.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)


@pytest.mark.parametrize("ending", ["", "-wal", ".queue", ".blobs", ".search"])
def test_an_export_never_replaces_the_store_itself(make_file_db: MakeDb, ending: str) -> None:
    db = make_file_db()
    talk(db)
    with pytest.raises(errors.CopyRefused, match="belongs to the store itself"):
        db.admin.export_to(Path(db.driver.path + ending))
    assert conversations.contents(db.transcript("talk"))[0] == "look"


class Bytes:
    """A path that is no text."""

    def __fspath__(self) -> bytes:
        return b"out.jsonl"


@pytest.mark.parametrize("path", [Path("a\0b"), Bytes()], ids=["zero", "bytes"])
def test_a_path_that_is_no_text_is_refused(db: SessionDB, path: Any) -> None:
    for call in (db.admin.export_to, db.admin.export_pages, db.admin.import_from):
        with pytest.raises(errors.InvalidArgument):
            call(path)


def test_a_path_that_cannot_be_is_an_error_of_ours(db: SessionDB, export: Path) -> None:
    for call in (db.admin.export_to, db.admin.import_from):
        for path in (export.parent / "none" / "x", export.parent):
            with pytest.raises(errors.StoreUnusable, match="cannot be read or written"):
                call(path)


# --- pages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["markdown", "html"])
def test_pages_name_attachments_and_link_to_nothing(db: SessionDB, export: Path, form: Any) -> None:
    backends.spoiled.add(db)
    digest = talk(db)
    attach(db, "talk", "0" * 64)
    out = io.StringIO()
    db.admin.export_pages(out, form=form)
    assert f"file: attachment {digest[:12]}, image/png, 5,000 bytes" in out.getvalue().replace("\\", "")
    assert f"attachment {'0' * 12}, unknown" in out.getvalue().replace("\\", "")
    assert "href" not in out.getvalue()
    db.admin.export_pages(export, form=form)
    assert (export.read_text("utf-8"), os.listdir(export.parent)) == (out.getvalue(), [export.name])
