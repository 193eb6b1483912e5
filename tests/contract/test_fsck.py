"""fsck reports every broken invariant of a store by the name of its guarantee, and nothing in a sound one."""

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


def test_sound_store_is_reported_with_its_counts(db: SessionDB) -> None:
    report = db.admin.fsck()
    assert (report.ok, report.violations) == (True, ())
    assert (report.conversations, report.sessions, report.messages) == (0, 0, 0)
    fill(db)
    db.redact("c", 1)
    db.undo_compaction("c")
    db.end_conversation("c", "done")
    conversations.begin(db, "gone", "x")
    db.delete_conversation("gone")
    progress: list[tuple[int, int]] = []
    with conversations.nothing_changes(db):
        report = db.admin.fsck(lambda done, total: progress.append((done, total)))
    assert report.ok, report
    assert (report.conversations, report.sessions, report.messages) == (2, 3, 3)
    assert progress[-1] == (3, 3)


@pytest.mark.parametrize("what", backends.DAMAGES)
def test_broken_guarantee_is_reported(db: SessionDB, what: str) -> None:
    fill(db)
    promise = backends.damage(db, what)
    report = db.admin.fsck()
    assert not report.ok
    assert consistency.report(db), "the check after every test does not find it"
    assert promise in {violation.promise for violation in report.violations}, report


def test_report_names_the_conversation_and_contains_no_text(db: SessionDB) -> None:
    conversations.begin(db, "c", "the secret", "b")
    backends.damage(db, "a text was changed")
    backends.damage(db, "the head went back")
    report = db.admin.fsck()
    assert "c" in {violation.conversation_id for violation in report.violations}
    assert "secret" not in str(report)


@pytest.mark.parametrize("how", ["missing", "without a column"])
def test_missing_table_or_column_is_reported_and_the_rest_is_checked(db: SessionDB, how: str) -> None:
    fill(db)
    backends.break_leases(db, how)
    assert "schema" in {violation.promise for violation in db.admin.fsck().violations} <= {"database", "schema"}
    backends.damage(db, "a message is missing")
    assert "P2" in {violation.promise for violation in db.admin.fsck().violations}
