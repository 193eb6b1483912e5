"""Attachments: kept by digest, verified when opened, collected when no message names them."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import pytest

from holdfast import SessionDB, errors, types
from tests.support import backends, conversations
from tests.support.backends import AtPoint, MakeDb
from tests.support.conversations import Clock, attach, read_blob

PICTURE = b"\x89PNG\0" * 1000
HOUR = 3600.0


def is_gone(db: SessionDB, digest: str) -> bool:
    assert (db.blobs.get(digest) is None) != (digest in backends.shelved(db))
    return db.blobs.get(digest) is None


@pytest.mark.parametrize("data", [b"", PICTURE, os.urandom(3_000_000)], ids=len)
def test_content_is_returned_exactly_and_kept_once(db: SessionDB, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "picture"
    path.write_bytes(data)
    blob = db.blobs.put(path)
    assert db.blobs.put(str(path)) == blob
    typed = db.blobs.put(data, "image/png")
    assert (typed.digest, typed.size, typed.media_type, typed.at) == (
        blob.digest, len(data), "image/png", conversations.NOON,
    )  # fmt: skip
    assert db.blobs.get(blob.digest) == typed
    assert (read_blob(db, blob.digest), path.read_bytes()) == (data, data)
    assert list(backends.shelved(db)) == [blob.digest]


def test_unknown_blobs_files_types_and_contents_are_refused(db: SessionDB, tmp_path: Path) -> None:
    assert db.blobs.get("0" * 64) is None
    with pytest.raises(errors.NotFound):
        db.blobs.open("0" * 64)
    for kind in ("", "image", "image/", "a/b\n", "x" * 300, None, 5, "text/html\0"):
        with pytest.raises(errors.InvalidArgument):
            db.blobs.put(PICTURE, kind)
    for data in (None, 5, io.BytesIO(b"x"), ["x"]):
        with pytest.raises(errors.InvalidArgument):
            db.blobs.put(data)
    for path in (tmp_path / "missing", tmp_path, "\0"):
        with pytest.raises((errors.StoreUnusable, errors.InvalidArgument)):
            db.blobs.put(path)
    assert backends.shelved(db) == {}
    assert not os.path.exists(db.blobs.files.folder) or os.listdir(db.blobs.files.folder) == []


def test_damaged_content_is_never_returned_and_is_replaced_by_putting_it_again(db: SessionDB) -> None:
    digest = db.blobs.put(PICTURE).digest
    backends.rewrite_blob(db, digest, PICTURE[:-1] + b"?")
    with pytest.raises(errors.BlobDamaged):
        db.blobs.open(digest)
    db.blobs.put(PICTURE)
    assert read_blob(db, digest) == PICTURE


def test_blob_without_a_name_is_collected_after_a_day(db: SessionDB, clock: Clock, at_point: AtPoint) -> None:
    old, again = (db.blobs.put(data).digest for data in (PICTURE, b"put again"))
    named = db.blobs.put(b"named").digest
    # Text that looks like a part with a name is no name.
    conversations.begin(db, "talk", f'{{"blob":"{old}"}}', old)
    attach(db, "talk", named)
    conversations.compact(db, "talk", 3)
    clock.advance(23 * HOUR)
    points: list[str] = []
    at_point(points.append)
    assert db.blobs.collect() == types.Collected(0, 0)
    at_point(None)
    assert points == ["collect.read"], "it takes no write lock when nothing is removed"
    assert db.admin.scrub() == types.Collected(0, 0)
    db.blobs.put(b"put again")
    clock.advance(2 * HOUR)
    assert db.blobs.collect() == types.Collected(1, len(PICTURE))
    assert [is_gone(db, digest) for digest in (old, again, named)] == [True, False, False]
    clock.advance(1000 * HOUR)
    assert (db.blobs.collect(0).blobs, read_blob(db, named)) == (1, b"named")


def test_name_written_during_a_collection_counts(db: SessionDB, clock: Clock, at_point: AtPoint) -> None:
    digests = [db.blobs.put(data).digest for data in (b"a", b"b", b"c")]
    conversations.begin(db, "talk", "a")
    clock.advance(25 * HOUR)

    def name(point: str) -> None:
        if point == "collect.read":
            attach(db, "talk", digests[0])
            attach(db, conversations.begin(db, "new"), digests[1])

    at_point(name)
    assert db.blobs.collect().blobs == 1
    assert [is_gone(db, digest) for digest in digests] == [False, False, True]


@backends.on_files
def test_racing_puts_and_collections_leave_both_file_and_row_or_neither(db: SessionDB) -> None:
    contents = [b"one", b"two", b"three", b"four"]
    stored = conversations.at_once(*(lambda data=data: db.blobs.put(data) for data in contents))
    assert [read_blob(db, blob.digest) for blob in stored] == contents
    for _ in range(15):
        digest = db.blobs.put(PICTURE).digest
        conversations.at_once(lambda: db.blobs.put(PICTURE), lambda: db.blobs.collect(0), lambda: db.blobs.collect(0))
        is_gone(db, digest)
        assert db.blobs.put(PICTURE).digest == digest
        assert read_blob(db, digest) == PICTURE


def test_references_of_a_conversation_include_those_of_its_origin_up_to_the_branch(db: SessionDB) -> None:
    shared, later, own, foreign = (db.blobs.put(each).digest for each in (b"1", b"2", b"3", b"4"))
    conversations.begin_each(db, ("talk", "other"))
    attach(db, "talk", shared)
    db.branch("talk", branch_id="branch")
    for name, digest in (("talk", later), ("branch", own), ("other", foreign)):
        attach(db, name, digest)
    digests = (shared, later, own, foreign)
    assert [db.blobs.referenced_by("branch", each) for each in digests] == [True, False, True, False]
    assert [db.blobs.referenced_by("talk", each) for each in digests] == [True, True, False, False]


@pytest.mark.parametrize("how", ["delete", "redact"])
def test_blob_named_by_removed_messages_only_is_scrubbed_at_once(db: SessionDB, how: str) -> None:
    mine, shared = db.blobs.put(PICTURE).digest, db.blobs.put(b"shared").digest
    conversations.begin_each(db, ("talk", "other"))
    attach(db, "talk", mine, shared)
    attach(db, "other", shared)
    db.delete_conversation("talk") if how == "delete" else db.redact("talk", 1)
    assert db.admin.scrub() == types.Collected(1, len(PICTURE))
    assert (is_gone(db, mine), is_gone(db, shared)) == (True, False)
    db.delete_conversation("other")
    db.admin.scrub()
    assert is_gone(db, shared)


def test_old_files_without_a_row_are_collected(make_file_db: MakeDb) -> None:
    db = make_file_db()
    digest = db.blobs.put(PICTURE).digest
    for stray, age in (("a" * 64, 25 * HOUR), ("b" * 64, HOUR)):
        path = Path(db.blobs.files.path(stray))
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"left by a kill")
        os.utime(path, (time.time() - age,) * 2)
    db.blobs.collect()
    assert {found for found, _ in db.blobs.files.files()} == {digest, "b" * 64}


@pytest.mark.parametrize("state", ["missing", "damaged"])
def test_fsck_reports_named_blobs_that_are_missing_or_damaged(db: SessionDB, state: str) -> None:
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
