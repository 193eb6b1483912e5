"""fsck: silent about a sound store, and outspoken about every promise that was broken behind its back."""

from __future__ import annotations

import pytest

from holdfast import SessionDB
from tests.support import backends, consistency, conversations


def fill(db: SessionDB) -> None:
    conversations.begin(db, "c", "a", "b")
    conversations.compact(db, "c", 1)
    conversations.say(db, "c", "d")
    db.hide("c", 3)
    db.branch("c", branch_id="b")
    db.bind_route("r", "c", version=0)
    db.acquire_lease("c", "turn")
    db.update_budget("c", 0, {"attempts": 1})
    conversations.act(db, "c")


def test_empty_store_is_sound(db: SessionDB) -> None:
    report = db.admin.fsck()
    assert (report.ok, report.violations) == (True, ())
    assert (report.conversations, report.sessions, report.messages) == (0, 0, 0)


def test_store_with_everything_in_it_is_sound(db: SessionDB) -> None:
    fill(db)
    db.redact("c", 1)
    db.undo_compaction("c")
    db.end_conversation("c", "done")
    conversations.begin(db, "gone", "x")
    db.delete_conversation("gone")
    report = db.admin.fsck()
    assert report.ok, report
    assert (report.conversations, report.sessions, report.messages) == (2, 3, 3)


def test_progress_is_told_up_to_the_end(db: SessionDB) -> None:
    fill(db)
    told: list[tuple[int, int]] = []
    db.admin.fsck(lambda done, total: told.append((done, total)))
    assert told[-1] == (3, 3)


def test_fsck_only_reads(db: SessionDB) -> None:
    fill(db)
    with conversations.nothing_changes(db):
        db.admin.fsck()


@pytest.mark.parametrize("what", backends.DAMAGES)
def test_broken_promise_is_named(db: SessionDB, what: str) -> None:
    fill(db)
    promise = backends.damage(db, what)
    report = db.admin.fsck()
    assert not report.ok
    assert consistency.report(db), "what all tests end with does not see it"
    assert promise in {violation.promise for violation in report.violations}, report


def test_texts_of_messages_are_in_no_report(db: SessionDB) -> None:
    conversations.begin(db, "c", "the secret")
    backends.damage(db, "a text was changed")
    backends.damage(db, "the head went back")
    assert "secret" not in str(db.admin.fsck())


@pytest.mark.parametrize("how", ["missing", "without a column"])
def test_missing_parts_are_named_and_the_rest_is_checked_all_the_same(db: SessionDB, how: str) -> None:
    fill(db)
    backends.break_leases(db, how)
    assert "schema" in {violation.promise for violation in db.admin.fsck().violations} <= {"database", "schema"}
    backends.damage(db, "a message went")
    assert "P2" in {violation.promise for violation in db.admin.fsck().violations}


def test_violations_name_the_conversation(db: SessionDB) -> None:
    fill(db)
    backends.damage(db, "a message went")
    assert "c" in {violation.conversation_id for violation in db.admin.fsck().violations}
