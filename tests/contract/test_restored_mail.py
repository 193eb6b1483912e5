"""What was under way when a backup was made is not answered or sent again because of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast import SessionDB, types
from holdfast.store.backup import backup
from tests.support import mail

MakeDb = Callable[..., SessionDB]


def arranged(db: SessionDB) -> None:
    """Something in every state."""
    done = mail.answered(db, "talk", "done")
    db.mail.mark_delivered(db.mail.replies(done.id)[0].id, "there")
    mail.answered(db, "talk", "unsent", "one", "two")
    db.mail.post(mail.reply("posted"), key="posted")
    first, joined, _ = mail.came(db, "begun", "joined", "waiting")
    claim = db.mail.acquire_chat_lease(mail.CLAIM)
    db.mail.begin_inbound(claim, first.id, "talk", [joined.id])
    mail.said(db, "talk", "begun")
    db.mail.add_inbox_entry("talk", "told", "The build ended.", kind="process")
    db.create_session("at home", source="test")
    db.mail.add_inbox_entry("at home", "kept", "The build ended.", kind="process")


def arrival(db: SessionDB, key: str) -> types.InboundMessage:
    found = db.mail.inbound_by_key("far", key)
    assert found is not None
    return found


def test_restored_store_sends_and_answers_nothing_by_itself(
    make_db: MakeDb, make_file_db: MakeDb, tmp_path: Path
) -> None:
    source, path = make_file_db(), tmp_path / "copy.db"
    arranged(source)
    source.admin.backup(path)
    db = make_db("other")
    db.admin.restore(path)
    assert db.mail.open_routes() == []
    assert db.mail.due_outgoing("far") == []
    assert ([each.key for each in db.mail.inbox_entries()], db.mail.open_inboxes()) == (["kept"], [])
    assert db.mail.add_inbox_entry("talk", "told", "The build ended.", kind="process").outcome == "restored"
    assert [arrival(db, key).outcome for key in ("done", "unsent", "begun", "joined", "waiting")] == [
        "answered",
        "answered",
        "restored",
        "restored",
        "restored",
    ]
    (sent,) = db.mail.replies(arrival(db, "done").id)
    assert (sent.external, sent.error) == ("there", None)
    one, two = db.mail.replies(arrival(db, "unsent").id)
    assert (one.text, one.error, one.open, two.error) == ("one", backup.NOT_SENT, False, backup.NOT_SENT)
    assert db.admin.fsck().ok
    # What comes now is a message like any other, and what came then is known.
    assert db.mail.add_inbound(mail.new("next"))[1]
    assert not db.mail.add_inbound(mail.new("waiting"))[1]
    # The store the backup is of goes on as if nothing had been.
    assert [each.key for each in source.mail.inbox_entries()] == ["told", "kept"]
    assert source.mail.counts() == {"arrivals_open": 3, "routes_waiting": 1, "outgoing_open": 3, "outgoing_failed": 0}
