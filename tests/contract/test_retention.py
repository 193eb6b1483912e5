"""What goes by age or size: nothing that is needed, nothing that changed, nothing before its archive is sound."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import SessionDB, errors, reports
from holdfast.store import conversation_row
from holdfast.store.backup import retention
from holdfast.store.transfer import export
from tests.support import backends, conversations

DAY = conversations.DAY
AtPoint = Callable[[Callable[[str], None]], None]


def old_and_new(db: SessionDB, clock: conversations.Clock) -> None:
    for name in ("oldest", "old", "new"):
        conversations.begin(db, name, f"text of {name} " * 20, title=f"title of {name}")
        clock.advance(10 * DAY)


def going(plan: reports.PrunePlan) -> list[str]:
    return [each.conversation_id for each in plan.going]


def needed(plan: reports.PrunePlan) -> dict[str, str | None]:
    return {each.conversation_id: each.needed for each in plan.needed}


def exported(db: SessionDB) -> str:
    out = io.StringIO()
    db.admin.export_to(out)
    return out.getvalue()


# --- plans ---------------------------------------------------------------------------------------------------


def test_plan_by_age_names_what_was_unused_for_so_long(db: SessionDB, clock: conversations.Clock) -> None:
    old_and_new(db, clock)
    with conversations.nothing_changes(db):
        plan = db.admin.plan_prune(older_than_days=15)
    assert going(plan) == ["oldest", "old"]
    assert (plan.going[0].title, plan.going[0].messages) == ("title of oldest", 1)
    assert plan.total_bytes > plan.going[0].bytes > 200


def test_a_message_makes_a_conversation_young(db: SessionDB, clock: conversations.Clock) -> None:
    old_and_new(db, clock)
    conversations.say(db, "oldest", "again")
    assert going(db.admin.plan_prune(older_than_days=15)) == ["old"]


def test_plan_by_size_names_the_longest_unused_until_the_rest_fits(db: SessionDB, clock: conversations.Clock) -> None:
    old_and_new(db, clock)
    total = db.admin.plan_prune(max_bytes=0).total_bytes
    assert going(db.admin.plan_prune(max_bytes=total)) == []
    assert going(db.admin.plan_prune(max_bytes=total - 1)) == ["oldest"]
    assert going(db.admin.plan_prune(max_bytes=0)) == ["oldest", "old", "new"]


def test_plan_by_both_takes_what_is_old_and_then_what_is_too_much(db: SessionDB, clock: conversations.Clock) -> None:
    old_and_new(db, clock)
    total = db.admin.plan_prune(max_bytes=0).total_bytes
    assert going(db.admin.plan_prune(older_than_days=25, max_bytes=total)) == ["oldest"]
    assert going(db.admin.plan_prune(older_than_days=25, max_bytes=total // 2)) == ["oldest", "old"]


def test_plan_is_limited_to_an_owner_or_a_source(db: SessionDB, clock: conversations.Clock) -> None:
    db.create_session("hers", source="cli", owner="her")
    db.create_session("his", source="telegram", owner="him")
    clock.advance(DAY)
    assert going(db.admin.plan_prune(older_than_days=0, owner="her")) == ["hers"]
    assert going(db.admin.plan_prune(older_than_days=0, source="telegram")) == ["his"]


def test_what_is_needed_is_never_planned(db: SessionDB, clock: conversations.Clock) -> None:
    old_and_new(db, clock)
    conversations.begin(db, "trunk", "a")
    db.branch("trunk", branch_id="branch")
    db.bind_route("chat", "oldest", version=0)
    clock.advance(DAY)
    db.acquire_lease("old", "turn", "me", 300)
    plan = db.admin.plan_prune(older_than_days=0)
    assert going(plan) == ["new", "branch"]
    assert needed(plan) == {
        "oldest": "a route is bound to it",
        "old": "a process works on it",
        "trunk": "a branch reads from it",
    }


@pytest.mark.parametrize(
    "arguments",
    [{}, {"older_than_days": -1}, {"older_than_days": "1"}, {"older_than_days": True},
     {"older_than_days": float("nan")}, {"max_bytes": -1},
     {"max_bytes": 1.5}, {"max_bytes": True}, {"max_bytes": 1, "owner": 5},
     {"max_bytes": 1, "source": "\n"}],
)  # fmt: skip
def test_plan_of_nonsense_is_refused(db: SessionDB, arguments: dict[str, object]) -> None:
    with pytest.raises(errors.InvalidArgument):
        db.admin.plan_prune(**arguments)


# --- carrying them out ---------------------------------------------------------------------------------------


def test_what_goes_is_in_the_archive_and_comes_back_from_it(
    db: SessionDB, make_db: Callable[..., SessionDB], clock: conversations.Clock, tmp_path: Path
) -> None:
    old_and_new(db, clock)
    conversations.compact(db, "oldest", 1, "a summary")
    archive = tmp_path / "archive" / "2026.jsonl"
    clock.advance(100 * DAY)
    conversations.say(db, "new", "still in use")
    report = db.admin.prune(db.admin.plan_prune(older_than_days=50), archive)
    assert (report.archive, report.removed, report.kept) == (str(archive), ("oldest", "old"), ())
    assert [session.id for session in db.list_sessions()] == ["new"]
    assert os.stat(archive).st_mode & 0o777 == 0o600
    assert {entry.name for entry in archive.parent.iterdir()} == {archive.name}
    with pytest.raises(errors.ConversationDeleted):
        db.context("old")
    other = make_db("other")
    with archive.open() as file:
        assert other.admin.import_from(file).ok
    assert exported(other) == archive.read_text()
    assert conversations.contents(other.transcript("old")) == ["text of old " * 20]
    assert other.compactions("oldest")[0].summary == "a summary"


def test_attachments_go_with_the_archive(db: SessionDB, clock: conversations.Clock, tmp_path: Path) -> None:
    blob = db.blobs.put(b"picture")
    db.create_session("talk", source="test")
    db.append_message("talk", role="user", content=[{"type": "image", "blob": blob.digest}])
    clock.advance(DAY)
    db.admin.prune(db.admin.plan_prune(older_than_days=0), tmp_path / "a.jsonl")
    assert db.admin.scrub().blobs == 1
    kept = [path for path in (tmp_path / "a.jsonl.blobs").rglob("*") if path.is_file()]
    assert [path.read_bytes() for path in kept] == [b"picture"]


def test_an_empty_plan_writes_no_archive(db: SessionDB, tmp_path: Path) -> None:
    report = db.admin.prune(db.admin.plan_prune(older_than_days=0), tmp_path / "a.jsonl")
    assert report == reports.PruneReport(None, (), (), 0)
    assert not (tmp_path / "a.jsonl").exists()


def test_archive_never_replaces_anything(db: SessionDB, clock: conversations.Clock, tmp_path: Path) -> None:
    old_and_new(db, clock)
    (tmp_path / "a.jsonl").write_text("precious")
    with conversations.nothing_changes(db), pytest.raises(errors.CopyRefused):
        db.admin.prune(db.admin.plan_prune(older_than_days=0), tmp_path / "a.jsonl")
    assert (tmp_path / "a.jsonl").read_text() == "precious"


@pytest.mark.parametrize("ending", ["", "-wal", "-journal", ".queue", ".blobs", ".search", ".search-journal"])
@pytest.mark.parametrize("linked", [False, True])
def test_an_archive_is_no_file_of_the_store_itself(
    make_file_db: Callable[..., SessionDB], clock: conversations.Clock, tmp_path: Path, ending: str, linked: bool
) -> None:
    db = make_file_db()
    old_and_new(db, clock)
    path = Path(db.driver.path + ending)
    if linked:
        (tmp_path / "link").symlink_to(path.parent)
        path = tmp_path / "link" / path.name
    there = sorted(os.listdir(path.parent))
    with conversations.nothing_changes(db), pytest.raises(errors.CopyRefused, match="belongs to the store itself"):
        db.admin.prune(db.admin.plan_prune(older_than_days=0), path)
    assert sorted(os.listdir(path.parent)) == there


def with_pictures(db: SessionDB, clock: conversations.Clock) -> tuple[str, str]:
    """Two conversations that name an attachment each, and both the same one."""
    digests = [db.blobs.put(name.encode()).digest for name in ("one", "two", "both")]
    for name, own in zip(("one", "two"), digests, strict=False):
        db.create_session(name, source="test")
        for digest in (own, digests[2]):
            db.append_message(name, role="user", content=[{"type": "image", "blob": digest}])
    clock.advance(DAY)
    return digests[0], digests[2]


def test_a_conversation_with_a_damaged_attachment_stays_with_what_is_left_of_it(
    db: SessionDB, clock: conversations.Clock, tmp_path: Path
) -> None:
    backends.spoiled.add(db)
    one, _ = with_pictures(db, clock)
    backends.rewrite_blob(db, one, b"o?e")
    report = db.admin.prune(db.admin.plan_prune(older_than_days=0), tmp_path / "a.jsonl")
    assert (report.removed, report.kept, report.lost_blobs) == (("two",), ("one",), (one,))
    db.admin.scrub()
    assert backends.shelved(db)[one] == b"o?e"
    assert [message.seq for message in db.transcript("one")] == [1, 2]


def test_a_damaged_attachment_keeps_every_conversation_that_names_it(
    db: SessionDB, clock: conversations.Clock, tmp_path: Path
) -> None:
    backends.spoiled.add(db)
    _, both = with_pictures(db, clock)
    backends.rewrite_blob(db, both, b"?")
    report = db.admin.prune(db.admin.plan_prune(older_than_days=0), tmp_path / "a.jsonl")
    assert (report.removed, report.kept, report.lost_blobs) == ((), ("one", "two"), (both,))


def test_a_missing_attachment_is_told_of_and_keeps_nothing(
    db: SessionDB, clock: conversations.Clock, tmp_path: Path
) -> None:
    one, _ = with_pictures(db, clock)
    backends.lose_blob(db, one)
    report = db.admin.prune(db.admin.plan_prune(older_than_days=0), tmp_path / "a.jsonl")
    assert (report.removed, report.kept, report.lost_blobs) == (("one", "two"), (), (one,))


def damage(folder: Path, how: Callable[[str], str]) -> None:
    (draft,) = folder.glob(".a.jsonl.*.draft")
    draft.write_bytes(how(draft.read_text()).encode())


def other_text(text: str) -> str:
    return text.replace("text of old", "test of old")


def half(text: str) -> str:
    return text[: len(text) // 2]


def one_less(text: str) -> str:
    return "".join(line for line in text.splitlines(True) if json.loads(line).get("kind") != "message")


def other_ends(text: str) -> str:
    """Comes in without a complaint, and is not what was written all the same."""
    return text.replace("\n", "\r\n")


@pytest.mark.parametrize("how", [other_text, half, one_less, other_ends])
def test_nothing_goes_when_the_archive_is_not_what_was_written(
    db: SessionDB, clock: conversations.Clock, tmp_path: Path, at_point: AtPoint, how: Callable[[str], str]
) -> None:
    old_and_new(db, clock)
    at_point(lambda point: damage(tmp_path, how) if point == "prune.exported" else None)
    with conversations.nothing_changes(db), pytest.raises(errors.CopyDamaged):
        db.admin.prune(db.admin.plan_prune(older_than_days=0), tmp_path / "a.jsonl")
    assert not (tmp_path / "a.jsonl").exists()


def test_what_changed_or_came_to_be_needed_meanwhile_stays(
    db: SessionDB, clock: conversations.Clock, tmp_path: Path, at_point: AtPoint
) -> None:
    old_and_new(db, clock)
    for name in ("routed", "branched", "leased", "deleted", "titled", "described"):
        conversations.begin(db, name, "a")
    clock.advance(DAY)
    plan = db.admin.plan_prune(older_than_days=0)

    def meanwhile(point: str) -> None:
        if point == "prune.verified":
            conversations.say(db, "old", "one more")
            db.hide("oldest", 1)
            db.bind_route("chat", "routed", version=0)
            db.branch("branched", branch_id="branch")
            db.acquire_lease("leased", "turn", "me")
            db.delete_conversation("deleted")
            db.set_session_title("titled", "A title that the archive lacks")
            db.set_session_metadata("described", {"ticket": 7})

    at_point(meanwhile)
    report = db.admin.prune(plan, tmp_path / "a.jsonl")
    assert report.removed == ("new",)
    assert set(report.kept) == {"old", "oldest", "routed", "branched", "leased", "deleted", "titled", "described"}


@pytest.mark.parametrize("archive", [None, 5, "", b"x", "a\0b"])
def test_archive_needs_a_path(db: SessionDB, archive: object) -> None:
    with pytest.raises(errors.InvalidArgument):
        db.admin.prune(db.admin.plan_prune(older_than_days=0), archive)
    with pytest.raises(errors.InvalidArgument):
        db.admin.prune(None, "archive.jsonl")


def test_prune_reports_what_an_earlier_attempt_removed(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "old", *"abc")
    key = db.driver.read(lambda tx: conversation_row.read(tx, "old").key)
    line = db.driver.read(lambda tx: next(export.read_lines(tx, key)))
    archived = {"old": retention._without_fence(line)}
    # The second call sees the rows and the retry state that a retry sees after a commit whose outcome is unknown.
    first, second = db.driver.write(
        "prune", lambda tx: [retention._remove(tx, ["old"], archived, clock()) for _ in range(2)]
    )
    assert first == second
    assert list(first) == ["old"]
