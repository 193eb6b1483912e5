"""The inbox: what comes in twice is one, waits until it is settled, is settled once, and goes with its conversation."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from holdfast import SessionDB, errors, types
from tests.support import backends, conversations, mail

MakeDb = Callable[..., SessionDB]


def test_entry_added_again_is_the_stored_row(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "talk", "a", "b")
    first = db.mail.add_inbox_entry("talk", "k", "came in")
    clock.advance(5)
    head = conversations.compact(db, "talk", 1)
    assert db.mail.add_inbox_entry(head.id, "k", "came in") == first
    assert (first.conversation_id, first.kind, first.outcome, first.seq) == ("talk", "notice", None, None)
    db.mail.settle_inbox_entry(first.id, "completed", 2)
    again = db.mail.add_inbox_entry("talk", "k", "came in")
    assert (again.id, again.outcome, again.seq) == (first.id, "completed", 2)
    assert db.mail.inbox_entries() == []


def test_key_of_another_entry_is_refused(db: SessionDB) -> None:
    for name in ("talk", "other"):
        conversations.begin(db, name, "a")
    db.mail.add_inbox_entry("talk", "k", "came in")
    for where, text, kind in (
        ("talk", "something else", "notice"),
        ("other", "came in", "notice"),
        ("talk", "came in", "process"),
    ):
        with conversations.nothing_changes(db), pytest.raises(errors.IdTaken):
            db.mail.add_inbox_entry(where, "k", text, kind=kind)


def test_open_entries_are_listed_oldest_first(db: SessionDB) -> None:
    for name in ("talk", "other"):
        conversations.begin(db, name, "a")
    made = [db.mail.add_inbox_entry(where, key, key) for where, key in (("talk", "z"), ("other", "y"), ("talk", "x"))]
    assert db.mail.inbox_entries() == made
    assert db.mail.inbox_entries(limit=2) == made[:2]
    assert db.mail.inbox_entries("talk") == [made[0], made[2]]
    assert db.mail.settle_inbox_entry(made[0].id, "completed")
    assert db.mail.inbox_entries("talk") == [made[2]]


def test_first_outcome_is_final(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a", "b")
    row = db.mail.add_inbox_entry("talk", "k", "came in")
    outcomes = [("completed", 2), ("failed", 1), ("completed", 2)]
    assert [db.mail.settle_inbox_entry(row.id, outcome, seq) for outcome, seq in outcomes] == [True, False, False]
    assert db.mail.add_inbox_entry("talk", "k", "came in").outcome == "completed"
    assert not db.mail.settle_inbox_entry(99, "completed")


def test_settlement_with_an_unknown_message_is_refused(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    row = db.mail.add_inbox_entry("talk", "k", "came in")
    with pytest.raises(errors.InvalidArgument):
        db.mail.settle_inbox_entry(row.id, "completed", 2)
    assert db.mail.inbox_entries() == [row]


@pytest.mark.parametrize("text", ["", "\ud800", "x" * 1_000_001])
def test_invalid_text_is_refused(db: SessionDB, text: str) -> None:
    conversations.begin(db, "talk", "a")
    with conversations.nothing_changes(db), pytest.raises(errors.InvalidArgument):
        db.mail.add_inbox_entry("talk", "k", text)


@pytest.mark.parametrize("key", ["", "a\nb", "x" * 201, "process:1"])
def test_invalid_or_reserved_key_is_refused(db: SessionDB, key: str) -> None:
    conversations.begin(db, "talk", "a")
    with conversations.nothing_changes(db), pytest.raises(errors.InvalidArgument):
        db.mail.add_inbox_entry("talk", key, "x")


def test_entry_for_an_unknown_conversation_is_refused(db: SessionDB) -> None:
    conversations.begin(db, "gone", "a")
    db.mail.add_inbox_entry("gone", "k", "came in")
    db.delete_conversation("gone")
    assert db.mail.inbox_entries() == []
    for name, kind in (("gone", errors.ConversationDeleted), ("nobody", errors.NoSuchSession)):
        with pytest.raises(kind):
            db.mail.add_inbox_entry(name, "k", "came in")
        with pytest.raises(kind):
            db.mail.inbox_entries(name)


def test_entries_are_not_in_branches_or_exports(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    before, after = io.StringIO(), io.StringIO()
    db.admin.export_to(before)
    db.mail.add_inbox_entry("talk", "k", "came in")
    db.admin.export_to(after)
    assert before.getvalue() == after.getvalue()
    db.branch("talk", branch_id="branch")
    assert db.mail.inbox_entries("branch") == []


def test_redacting_a_message_redacts_its_entry(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a", "b")
    rows = [db.mail.add_inbox_entry("talk", key, f"secret {key}") for key in ("one", "two")]
    for seq, row in enumerate(rows, 1):
        db.mail.settle_inbox_entry(row.id, "completed", seq)
    db.redact("talk", 1)
    assert db.mail.add_inbox_entry("talk", "one", "secret one").text == ""
    assert db.mail.add_inbox_entry("talk", "two", "secret two").text == "secret two"


def test_conversation_with_open_entries_is_not_pruned(db: SessionDB, clock: conversations.Clock) -> None:
    """Neither as old, nor as empty: somebody would wait for ever."""
    conversations.begin(db, "old", "a")
    conversations.begin(db, "ghost")
    rows = [db.mail.add_inbox_entry(name, name, "came in") for name in ("old", "ghost")]
    clock.advance(100 * conversations.DAY)
    plan = db.admin.plan_prune(older_than_days=30)
    assert [each.conversation_id for each in plan.going if each.messages] == []
    assert db.admin.prune_empty_sessions() == 0
    for row in rows:
        db.mail.settle_inbox_entry(row.id, "completed")
    assert "old" in [each.conversation_id for each in db.admin.plan_prune(older_than_days=30).going]
    assert db.admin.prune_empty_sessions() == 1


def test_concurrent_settlements_have_one_winner(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    for number in range(10):
        row = db.mail.add_inbox_entry("talk", f"k{number}", "came in")
        outcomes = conversations.at_once(
            *(lambda n=n, i=row.id: db.mail.settle_inbox_entry(i, f"by {n}") for n in range(6))
        )
        assert sorted(outcomes) == [False] * 5 + [True]
        assert db.mail.add_inbox_entry("talk", f"k{number}", "came in").outcome == f"by {outcomes.index(True)}"


def test_restore_brings_back_the_inbox(make_db: MakeDb, tmp_path: object) -> None:
    db, other = make_db(), make_db("other")
    conversations.begin(db, "talk", "a")
    row = db.mail.add_inbox_entry("talk", "k", "came in")
    db.admin.backup(f"{tmp_path}/copy.db")
    db.mail.settle_inbox_entry(row.id, "completed", 1)
    other.admin.restore(f"{tmp_path}/copy.db")
    assert other.mail.inbox_entries("talk") == [row]


def test_fsck_names_a_damaged_entry(db: SessionDB) -> None:
    conversations.begin(db, "c", "a")
    conversations.act(db, "c")
    assert backends.damage(db, "what came in is half settled") in {each.promise for each in db.admin.fsck().violations}


def test_open_inboxes_lists_every_conversation_with_a_chat(db: SessionDB) -> None:
    conversations.begin(db, "terminal", "a")
    for number in range(3):
        db.mail.add_inbox_entry("terminal", f"t{number}", "nobody spoke to it from outside")
    for name, key in (("one", "1"), ("two", "2")):
        mail.answered(db, name, key)
    (moved,) = mail.came(db, "3", route="agent:main:far:dm:2", chat="2")
    db.mail.settle_inbound(None, moved.id, "command", conversation_id="two")
    second, _, first = (
        db.mail.add_inbox_entry(name, key, "came in") for name, key in (("two", "b"), ("two", "c"), ("one", "a"))
    )
    awaited = [types.OpenInbox("two", second.id, "agent:main:far:dm:2"), types.OpenInbox("one", first.id, mail.ROUTE)]
    assert db.mail.open_inboxes() == awaited
    assert db.mail.open_inboxes(limit=1) == awaited[:1]
    db.mail.settle_inbox_entry(second.id, "answered")
    assert [each.conversation_id for each in db.mail.open_inboxes()] == ["two", "one"]
    db.delete_conversation("two")
    assert db.mail.open_inboxes() == awaited[1:]
