"""Pruning by age or size: nothing that is needed or has changed is removed, and nothing before its archive is sound."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import SessionDB, errors, reports
from tests.support import backends, conversations
from tests.support.backends import AtPoint, MakeDb
from tests.support.conversations import Clock
from tests.support.random_histories import exported

DAY = conversations.DAY


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "a.jsonl"


def begin_old_and_new(db: SessionDB, clock: Clock) -> None:
    for name in ("oldest", "old", "new"):
        conversations.begin(db, name, f"text of {name} " * 20, title=f"title of {name}")
        clock.advance(10 * DAY)


def going(plan: reports.PrunePlan) -> list[str]:
    return [each.conversation_id for each in plan.going]


def prune(db: SessionDB, archive: Path) -> reports.PruneReport:
    return db.admin.prune(db.admin.plan_prune(older_than_days=0), archive)


def test_plan_has_the_conversations_unused_for_so_long_or_too_large(db: SessionDB, clock: Clock) -> None:
    begin_old_and_new(db, clock)
    with conversations.nothing_changes(db):
        plan = db.admin.plan_prune(older_than_days=15)
    assert going(plan) == ["oldest", "old"]
    assert (plan.going[0].title, plan.going[0].messages) == ("title of oldest", 1)
    total = plan.total_bytes
    assert total > plan.going[0].bytes > 200
    for limits, names in (
        ({"max_bytes": total}, []),
        ({"max_bytes": total - 1}, ["oldest"]),
        ({"max_bytes": 0}, ["oldest", "old", "new"]),
        ({"older_than_days": 25, "max_bytes": total}, ["oldest"]),
        ({"older_than_days": 25, "max_bytes": total // 2}, ["oldest", "old"]),
    ):
        assert going(db.admin.plan_prune(**limits)) == names
    conversations.say(db, "oldest", "again")
    assert going(db.admin.plan_prune(older_than_days=15)) == ["old"]
    db.create_session("hers", source="telegram", owner="her")
    clock.advance(DAY)
    for limits in ({"owner": "her"}, {"source": "telegram"}):
        assert going(db.admin.plan_prune(older_than_days=0, **limits)) == ["hers"]


OPEN_WORK = "it has open messages or running processes"
NEEDS: dict[str, tuple[Callable[[SessionDB], object], str]] = {
    "route": (lambda db: db.bind_route("chat", "talk", version=0), "a route is bound to it"),
    "branch": (lambda db: db.branch("talk"), "a branch reads from it"),
    "lease": (lambda db: db.acquire_lease("talk", "turn", ttl=86_400), "a process works on it"),
    "process": (lambda db: db.processes.record_start(conversations.process("p", "talk")), OPEN_WORK),
    "inbox": (lambda db: db.mail.add_inbox_entry("talk", "k", "came in"), OPEN_WORK),
}


@pytest.mark.parametrize("what", NEEDS)
def test_needed_conversation_is_never_planned(db: SessionDB, clock: Clock, what: str) -> None:
    conversations.begin(db, "talk", "a")
    need, why = NEEDS[what]
    need(db)
    clock.advance(DAY / 2)
    plan = db.admin.plan_prune(older_than_days=0.25)
    assert [(each.conversation_id, each.needed) for each in plan.needed] == [("talk", why)]
    assert "talk" not in going(plan)


def test_pruned_conversations_can_be_imported_from_the_archive(make_db: MakeDb, clock: Clock, tmp_path: Path) -> None:
    db, other = make_db(), make_db("other")
    begin_old_and_new(db, clock)
    conversations.compact(db, "oldest", 1, "a summary")
    digest = db.blobs.put(b"picture").digest
    conversations.attach(db, "old", digest)
    archive = tmp_path / "archive" / "2026.jsonl"
    clock.advance(100 * DAY)
    conversations.say(db, "new", "still in use")
    report = db.admin.prune(db.admin.plan_prune(older_than_days=50), archive)
    assert (report.archive, report.removed, report.kept) == (str(archive), ("oldest", "old"), ())
    assert [session.id for session in db.list_sessions()] == ["new"]
    assert os.stat(archive).st_mode & 0o777 == 0o600
    assert {entry.name for entry in archive.parent.iterdir()} == {archive.name, f"{archive.name}.blobs"}
    with pytest.raises(errors.ConversationDeleted):
        db.context("old")
    assert db.admin.scrub().blobs == 1
    assert other.admin.import_from(archive).blobs == 1
    assert exported(other) == archive.read_text()
    assert conversations.contents(other.transcript("old"))[0] == "text of old " * 20
    assert other.compactions("oldest")[0].summary == "a summary"
    assert conversations.read_blob(other, digest) == b"picture"
    assert db.admin.import_from(archive, revive=True).ok
    empty = db.admin.prune(db.admin.plan_prune(older_than_days=9_999), tmp_path / "none.jsonl")
    assert (empty, (tmp_path / "none.jsonl").exists()) == (reports.PruneReport(None, (), (), 0), False)


@pytest.mark.parametrize("ending", ["", "-wal", "-journal", ".queue", ".blobs", ".search", ".search-journal"])
@pytest.mark.parametrize("linked", [False, True])
def test_archive_and_export_replace_no_file_of_the_store(
    make_file_db: MakeDb, clock: Clock, tmp_path: Path, ending: str, linked: bool
) -> None:
    db = make_file_db()
    begin_old_and_new(db, clock)
    path = Path(db.driver.path + ending)
    if linked:
        (tmp_path / "link").symlink_to(path.parent)
        path = tmp_path / "link" / path.name
    other = tmp_path / "precious"
    other.write_text("precious")
    files = sorted(os.listdir(path.parent))
    with conversations.nothing_changes(db), pytest.raises(errors.CopyRefused):
        prune(db, other)
    assert other.read_text() == "precious"
    for write in (prune, lambda db, path: db.admin.export_to(path)):
        with conversations.nothing_changes(db), pytest.raises(errors.CopyRefused, match="belongs to the store itself"):
            write(db, path)
    assert sorted(os.listdir(path.parent)) == files


@pytest.mark.parametrize(
    ("which", "damaged", "removed"),
    [(0, True, ("two",)), (2, True, ()), (0, False, ("one", "two"))],
    ids=["damaged in one", "damaged in both", "missing"],
)
def test_conversation_with_a_damaged_attachment_is_kept(
    db: SessionDB, clock: Clock, archive: Path, which: int, damaged: bool, removed: tuple[str, ...]
) -> None:
    backends.spoiled.add(db)
    digests = [db.blobs.put(name.encode()).digest for name in ("one", "two", "both")]
    for name, own in zip(("one", "two"), digests, strict=False):
        db.create_session(name, source="test")
        for digest in (own, digests[2]):
            conversations.attach(db, name, digest)
    clock.advance(DAY)
    lost = digests[which]
    backends.rewrite_blob(db, lost, b"o?e") if damaged else backends.lose_blob(db, lost)
    report = prune(db, archive)
    kept = tuple(name for name in ("one", "two") if name not in removed)
    assert (report.removed, report.kept, report.lost_blobs) == (removed, kept, (lost,))
    db.admin.scrub()
    assert [len(db.transcript(name)) for name in kept] == [2] * len(kept)
    assert not damaged or backends.shelved(db)[lost] == b"o?e"


ARCHIVE_DAMAGES: dict[str, Callable[[str], str]] = {
    "another text": lambda text: text.replace("text of old", "test of old"),
    "without messages": lambda text: "".join(
        line for line in text.splitlines(True) if json.loads(line).get("kind") != "message"
    ),
    "other line ends, which an import accepts": lambda text: text.replace("\n", "\r\n"),
}


@pytest.mark.parametrize("how", ARCHIVE_DAMAGES)
@backends.on_memory
def test_nothing_is_removed_when_the_archive_was_damaged(
    db: SessionDB, clock: Clock, archive: Path, at_point: AtPoint, how: str
) -> None:
    def damage(point: str) -> None:
        if point == "prune.exported":
            (draft,) = archive.parent.glob(".a.jsonl.*.draft")
            draft.write_bytes(ARCHIVE_DAMAGES[how](draft.read_text()).encode())

    begin_old_and_new(db, clock)
    at_point(damage)
    with conversations.nothing_changes(db), pytest.raises(errors.CopyDamaged):
        prune(db, archive)
    assert not archive.exists()


def test_conversations_changed_or_needed_since_the_archive_are_kept(
    db: SessionDB, clock: Clock, archive: Path, at_point: AtPoint
) -> None:
    changes: dict[str, Callable[[str], object]] = {
        "appended": lambda name: conversations.say(db, name, "one more"),
        "hidden": lambda name: db.hide(name, 1),
        "routed": lambda name: db.bind_route("chat", name, version=0),
        "branched": lambda name: db.branch(name, branch_id="branch"),
        "leased": lambda name: db.acquire_lease(name, "turn", "me"),
        "deleted": db.delete_conversation,
        "titled": lambda name: db.set_session_title(name, "A title that the archive lacks"),
        "described": lambda name: db.set_session_metadata(name, {"ticket": 7}),
    }
    conversations.begin_each(db, ("unchanged", *changes), "a")
    clock.advance(DAY)

    def change_all(point: str) -> None:
        if point == "prune.verified":
            for name, change in changes.items():
                change(name)

    at_point(change_all)
    report = prune(db, archive)
    assert (report.removed, set(report.kept)) == (("unchanged",), set(changes))
