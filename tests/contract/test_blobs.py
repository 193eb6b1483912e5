"""Attachments: kept by digest, checked when they are opened, gone when nobody names them."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast import SessionDB, errors, types
from holdfast.store.blobs import files as blob_files
from tests.support import backends, conversations

PICTURE = b"\x89PNG\0" * 1000
HOUR = 3600.0


def attach(db: SessionDB, session_id: str, *digests: str) -> types.Receipt:
    parts = [{"type": "image", "blob": digest} for digest in digests]
    return db.append_message(session_id, role="user", content=parts)


def content(db: SessionDB, digest: str) -> bytes:
    with db.blobs.open(digest) as file:
        return file.read()


def gone(db: SessionDB, digest: str) -> bool:
    assert (db.blobs.get(digest) is None) != (digest in backends.shelved(db))
    return db.blobs.get(digest) is None


# --- keeping -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"x", PICTURE, os.urandom(3_000_000)], ids=len)
def test_bytes_come_back_exactly(db: SessionDB, data: bytes) -> None:
    blob = db.blobs.put(data, "image/png")
    assert (blob.size, blob.media_type, blob.at) == (len(data), "image/png", conversations.NOON)
    assert content(db, blob.digest) == data
    assert db.blobs.get(blob.digest) == blob


def test_file_comes_back_exactly_and_stays_where_it_was(db: SessionDB, tmp_path: Path) -> None:
    path = tmp_path / "picture"
    path.write_bytes(PICTURE)
    assert db.blobs.put(path) == db.blobs.put(str(path)) == db.blobs.put(PICTURE)
    assert path.read_bytes() == PICTURE


def test_same_content_is_kept_once(db: SessionDB) -> None:
    first, second = db.blobs.put(PICTURE), db.blobs.put(PICTURE, "image/png")
    assert first.digest == second.digest
    assert list(backends.shelved(db)) == [first.digest]
    assert db.blobs.get(first.digest).media_type == "image/png"


def test_content_is_for_its_owner_alone(shelved_db: SessionDB) -> None:
    db = shelved_db
    path = db.blobs.files.path(db.blobs.put(PICTURE).digest)
    assert os.stat(path).st_mode & 0o777 == 0o600
    for folder in (os.path.dirname(path), db.blobs.files.folder):
        assert os.stat(folder).st_mode & 0o777 == 0o700


def test_blob_nobody_put_is_unknown(db: SessionDB) -> None:
    assert db.blobs.get("0" * 64) is None
    with pytest.raises(errors.NotFound):
        db.blobs.open("0" * 64)


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "0" * 63, "G" * 64, "0" * 65, None, 5, "0" * 62 + "/x"])
def test_what_is_no_digest_is_refused(db: SessionDB, digest: object) -> None:
    for look in (db.blobs.get, db.blobs.open):
        with pytest.raises(errors.InvalidArgument):
            look(digest)


@pytest.mark.parametrize("kind", ["", "image", "image/", "a/b\n", "x" * 300, None, 5, "text/html\0"])
def test_what_is_no_media_type_is_refused(db: SessionDB, kind: object) -> None:
    with pytest.raises(errors.InvalidArgument):
        db.blobs.put(PICTURE, kind)
    assert backends.shelved(db) == {}


@pytest.mark.parametrize("data", [None, 5, io.BytesIO(b"x"), ["x"]])
def test_what_is_no_content_is_refused(db: SessionDB, data: object) -> None:
    with pytest.raises(errors.InvalidArgument):
        db.blobs.put(data)


def test_file_that_is_not_there_is_an_error_of_ours(db: SessionDB, tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path, "\0"):
        with pytest.raises((errors.StoreUnusable, errors.InvalidArgument)):
            db.blobs.put(path)
    assert not os.path.exists(db.blobs.files.folder) or os.listdir(db.blobs.files.folder) == []


def test_damaged_content_is_never_given_out_and_is_healed_by_putting_it_again(db: SessionDB) -> None:
    digest = db.blobs.put(PICTURE).digest
    backends.rewrite_blob(db, digest, PICTURE[:-1] + b"?")
    with pytest.raises(errors.BlobDamaged):
        db.blobs.open(digest)
    db.blobs.put(PICTURE)
    assert content(db, digest) == PICTURE


# --- collecting ----------------------------------------------------------------------------------------------


def test_blob_nobody_names_goes_after_a_day_and_not_before(db: SessionDB, clock: conversations.Clock) -> None:
    digest = db.blobs.put(PICTURE).digest
    clock.advance(23 * HOUR)
    assert db.blobs.collect() == types.Collected(0, 0)
    assert not gone(db, digest)
    clock.advance(2 * HOUR)
    assert db.blobs.collect() == types.Collected(1, len(PICTURE))
    assert gone(db, digest)


def test_putting_it_again_makes_it_young(db: SessionDB, clock: conversations.Clock) -> None:
    db.blobs.put(PICTURE)
    clock.advance(23 * HOUR)
    digest = db.blobs.put(PICTURE).digest
    clock.advance(2 * HOUR)
    db.blobs.collect()
    assert not gone(db, digest)


def test_named_blob_stays_however_old(db: SessionDB, clock: conversations.Clock) -> None:
    digest = db.blobs.put(PICTURE).digest
    conversations.begin(db, "talk", "a")
    attach(db, "talk", digest)
    conversations.compact(db, "talk", 2)
    clock.advance(1000 * HOUR)
    assert db.blobs.collect(0).blobs == 0
    assert content(db, digest) == PICTURE


def test_text_that_looks_like_a_name_keeps_nothing(db: SessionDB, clock: conversations.Clock) -> None:
    digest = db.blobs.put(PICTURE).digest
    conversations.begin(db, "talk", f'{{"blob":"{digest}"}}', digest)
    clock.advance(25 * HOUR)
    db.blobs.collect()
    assert gone(db, digest)


def test_a_collection_without_anything_to_remove_waits_for_nobody(
    db: SessionDB, clock: conversations.Clock, at_point: Callable[[Callable[[str], None]], None]
) -> None:
    named, young = (db.blobs.put(data).digest for data in (b"named", b"young"))
    attach(db, conversations.begin(db), named)
    clock.advance(23 * HOUR)
    passed: list[str] = []
    at_point(passed.append)
    assert db.blobs.collect().blobs == 0
    assert passed == ["collect.read"]
    assert not gone(db, young)


def test_name_written_while_blobs_are_collected_counts(
    db: SessionDB, clock: conversations.Clock, at_point: Callable[[Callable[[str], None]], None]
) -> None:
    digests = [db.blobs.put(data).digest for data in (b"a", b"b", b"c")]
    conversations.begin(db, "talk", "a")
    clock.advance(25 * HOUR)

    def name(point: str) -> None:
        if point == "collect.read":
            attach(db, "talk", digests[0])
            attach(db, conversations.begin(db, "new"), digests[1])

    at_point(name)
    assert db.blobs.collect().blobs == 1
    assert [gone(db, digest) for digest in digests] == [False, False, True]


def test_putting_and_collecting_at_once_leaves_both_file_and_row_or_neither(db: SessionDB) -> None:
    for _ in range(25):
        digest = db.blobs.put(PICTURE).digest
        conversations.at_once(lambda: db.blobs.put(PICTURE), lambda: db.blobs.collect(0), lambda: db.blobs.collect(0))
        gone(db, digest)
        assert db.blobs.put(PICTURE).digest == digest
        assert content(db, digest) == PICTURE


@pytest.mark.parametrize("how", ["delete", "redact"])
def test_what_only_removed_messages_named_goes_at_once(db: SessionDB, how: str) -> None:
    mine, shared = db.blobs.put(PICTURE).digest, db.blobs.put(b"shared").digest
    for name in ("talk", "other"):
        conversations.begin(db, name)
    attach(db, "talk", mine, shared)
    attach(db, "other", shared)
    db.delete_conversation("talk") if how == "delete" else db.redact("talk", 1)
    assert db.admin.scrub() == types.Collected(1, len(PICTURE))
    assert (gone(db, mine), gone(db, shared)) == (True, False)
    db.delete_conversation("other")
    db.admin.scrub()
    assert gone(db, shared)


def test_scrub_leaves_young_blobs_that_were_never_named(db: SessionDB) -> None:
    digest = db.blobs.put(PICTURE).digest
    db.admin.scrub()
    assert not gone(db, digest)


def test_files_without_a_row_go_when_they_are_old(shelved_db: SessionDB) -> None:
    db = shelved_db
    digest = db.blobs.put(PICTURE).digest
    old, young = "a" * 64, "b" * 64
    for stray, age in ((old, 25 * HOUR), (young, HOUR)):
        path = Path(db.blobs.files.path(stray))
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"left by a kill")
        os.utime(path, (time.time() - age,) * 2)
    db.blobs.collect()
    assert {found for found, _ in db.blobs.files.files()} == {digest, young}


# --- fsck ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["missing", "damaged"])
def test_fsck_finds_blobs_that_are_named_and_not_sound(db: SessionDB, state: str) -> None:
    digest = db.blobs.put(PICTURE).digest
    conversations.begin(db, "talk", "a")
    attach(db, "talk", digest)
    assert db.admin.fsck().ok
    backends.spoiled.add(db)
    backends.lose_blob(db, digest) if state == "missing" else backends.rewrite_blob(db, digest, b"")
    (violation,) = db.admin.fsck().violations
    assert (violation.promise, violation.conversation_id) == ("blobs", "talk")
    assert digest[:12] in violation.detail
    assert state in violation.detail


def test_first_blobs_of_two_threads_are_stored_in_one_place(db: SessionDB, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = blob_files.BlobFiles.__init__

    def open_slowly(files: blob_files.BlobFiles, folder: str | None = None) -> None:
        time.sleep(0.05)
        opened(files, folder)

    monkeypatch.setattr(blob_files.BlobFiles, "__init__", open_slowly)
    contents = [b"one", b"two", b"three", b"four"]
    with ThreadPoolExecutor(len(contents)) as threads:
        stored = list(threads.map(db.blobs.put, contents))
    for blob, content in zip(stored, contents, strict=True):
        with db.blobs.open(blob.digest) as file:
            assert file.read() == content
