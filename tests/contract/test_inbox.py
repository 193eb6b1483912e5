"""The inbox of a conversation: entries stored once, settled once, deleted with the conversation, kept by a restore."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import SessionDB, errors, types
from holdfast.store.backup import backup
from tests.support import conversations, mail
from tests.support.backends import MakeDb
from tests.support.conversations import Clock


def test_entry_added_again_is_the_stored_row(db: SessionDB, clock: Clock) -> None:
    conversations.begin_each(db, ("talk", "other"), "a", "b")
    first = db.mail.add_inbox_entry("talk", "k", "came in")
    clock.advance(5)
    head = conversations.compact(db, "talk", 1)
    assert db.mail.add_inbox_entry(head.id, "k", "came in") == first
    assert (first.conversation_id, first.kind, first.outcome, first.seq) == ("talk", "notice", None, None)
    for where, text, kind in (
        ("talk", "else", "notice"),
        ("other", "came in", "notice"),
        ("talk", "came in", "process"),
    ):
        with conversations.nothing_changes(db), pytest.raises(errors.IdTaken):
            db.mail.add_inbox_entry(where, "k", text, kind=kind)
    # The first outcome is final.
    outcomes = [("completed", 2), ("failed", 1), ("completed", 2)]
    assert [db.mail.settle_inbox_entry(first.id, outcome, seq) for outcome, seq in outcomes] == [True, False, False]
    again = db.mail.add_inbox_entry("talk", "k", "came in")
    assert (again.id, again.outcome, again.seq) == (first.id, "completed", 2)
    assert not db.mail.settle_inbox_entry(99, "completed")


def test_entry_is_settled_with_its_replies(db: SessionDB) -> None:
    mail.answered(db)
    row = db.mail.add_inbox_entry("talk", "k", "a process ended")
    assert db.mail.settle_inbox_entry(row.id, "answered", outgoing=[mail.reply("one"), mail.reply("two")])
    assert not db.mail.settle_inbox_entry(row.id, "answered", outgoing=[mail.reply("again")])
    sent = [db.mail.outgoing(id_) for id_ in (2, 3)]
    assert [(each.inbox_entry_id, each.part, each.text, each.conversation_id) for each in sent if each] == [
        (row.id, 0, "one", "talk"),
        (row.id, 1, "two", "talk"),
    ]
    assert db.mail.outgoing(4) is None


def test_open_entries_are_listed_oldest_first(db: SessionDB) -> None:
    conversations.begin_each(db, ("talk", "other"), "a")
    made = [db.mail.add_inbox_entry(where, key, key) for where, key in (("talk", "z"), ("other", "y"), ("talk", "x"))]
    assert db.mail.inbox_entries() == made
    assert db.mail.inbox_entries(limit=2) == made[:2]
    assert db.mail.inbox_entries("talk") == [made[0], made[2]]
    assert db.mail.settle_inbox_entry(made[0].id, "completed")
    assert db.mail.inbox_entries("talk") == [made[2]]
    db.branch("talk", branch_id="branch")
    assert db.mail.inbox_entries("branch") == []
    for name in ("branch", "talk"):
        db.delete_conversation(name)
    assert db.mail.inbox_entries() == [made[1]]


def test_open_inboxes_lists_every_conversation_with_a_chat(db: SessionDB) -> None:
    conversations.begin(db, "terminal", "a")
    db.mail.add_inbox_entry("terminal", "t", "no chat belongs to it")
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


def test_redacting_a_message_redacts_its_entry(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a", "b")
    rows = [db.mail.add_inbox_entry("talk", key, f"secret {key}") for key in ("one", "two")]
    for seq, row in enumerate(rows, 1):
        db.mail.settle_inbox_entry(row.id, "completed", seq)
    db.redact("talk", 1)
    assert db.mail.add_inbox_entry("talk", "one", "secret one").text == ""
    assert db.mail.add_inbox_entry("talk", "two", "secret two").text == "secret two"


def test_restored_store_sends_and_answers_nothing(make_db: MakeDb, make_file_db: MakeDb, tmp_path: Path) -> None:
    source = make_file_db()
    done = mail.answered(source, "talk", "done")
    source.mail.mark_delivered(source.mail.replies(done.id)[0].id, "there")
    mail.answered(source, "talk", "unsent", "one", "two")
    source.mail.post(mail.reply("posted"), key="posted")
    first, joined, _ = mail.came(source, "begun", "joined", "waiting")
    source.mail.begin_inbound(source.mail.acquire_chat_lease(mail.CLAIM), first.id, "talk", [joined.id])
    mail.said(source, "talk", "begun")
    source.mail.add_inbox_entry("talk", "chat", "The build ended.", kind="process")
    source.create_session("at home", source="test")
    kept = source.mail.add_inbox_entry("at home", "kept", "The build ended.", kind="process")
    source.admin.backup(tmp_path / "copy.db")
    db = make_db("other")
    db.admin.restore(tmp_path / "copy.db")
    assert (db.mail.open_routes(), db.mail.due_outgoing("far"), db.mail.open_inboxes()) == ([], [], [])
    assert db.mail.inbox_entries() == [kept], "an entry without a chat is worked on as before"
    assert db.mail.add_inbox_entry("talk", "chat", "The build ended.", kind="process").outcome == "restored"
    found = {key: db.mail.inbound_by_key("far", key) for key in ("done", "unsent", "begun", "joined", "waiting")}
    outcomes = [each.outcome for each in found.values()]
    assert outcomes == ["answered", "answered", "restored", "restored", "restored"]
    (sent,) = db.mail.replies(found["done"].id)
    assert (sent.external, sent.error) == ("there", None)
    one, two = db.mail.replies(found["unsent"].id)
    assert (one.text, one.error, one.open, two.error) == ("one", backup.NOT_SENT, False, backup.NOT_SENT)
    # New messages are new, old ones are known, and the source goes on.
    assert db.mail.add_inbound(mail.new("next"))[1]
    assert not db.mail.add_inbound(mail.new("waiting"))[1]
    assert [each.key for each in source.mail.inbox_entries()] == ["chat", "kept"]
    assert source.mail.counts() == {"arrivals_open": 3, "routes_waiting": 1, "outgoing_open": 3, "outgoing_failed": 0}
