"""Links: senders who use the conversations of another owner, by an operator or by a code."""

from __future__ import annotations

import pytest

from holdfast import SessionDB, errors, types
from holdfast.store.mail import contacts
from tests.support import conversations, mail
from tests.support.conversations import Clock


def test_sender_is_linked_to_one_owner_until_unlinked(db: SessionDB) -> None:
    assert db.contacts.linked_owner("far", "7") is None
    for owner in ("near:1", ""):
        db.contacts.link("far", "7", owner)
        assert db.contacts.linked_owner("far", "7") == owner
    assert db.contacts.link("far", "7", "near:2", replace=False) == ""
    assert db.contacts.link("far", "8", "near:1", replace=False) == "near:1"
    assert [each.sender for each in db.contacts.links()] == ["7", "8"]
    assert [each.sender for each in db.contacts.links("near:1")] == ["8"]
    assert [db.contacts.unlink("far", "7") for _ in range(2)] == [True, False]
    assert (db.contacts.linked_owner("far", "7"), db.contacts.linked_owner("far", "8")) == (None, "near:1")


@pytest.mark.parametrize("end", ["deny", "delete"])
def test_sender_who_loses_access_loses_the_link(end: str, db: SessionDB) -> None:
    db.contacts.allow("far", "7")
    db.contacts.link("far", "7", "near:1")
    getattr(db.contacts, end)("far", "7")
    db.contacts.allow("far", "7")
    assert db.contacts.linked_owner("far", "7") is None


def test_link_code_is_valid_once_for_ten_minutes_until_the_next_one(db: SessionDB, clock: Clock) -> None:
    db.create_session("talk", source="test", owner="ann")
    db.create_session("notes", source="test")
    replaced, code = (db.contacts.create_link_code("talk") for _ in range(2))
    other = db.contacts.create_link_code("notes")
    with pytest.raises(errors.PairingRefused):
        db.contacts.link_by_code("far", "7", replaced)
    assert db.contacts.link_by_code("far", "7", f" {code[:4]}-{code[4:].lower()} ") == ("ann", "talk")
    assert db.contacts.linked_owner("far", "7") == "ann"
    with pytest.raises(errors.PairingRefused):
        db.contacts.link_by_code("far", "8", code)
    clock.now += contacts.LINK_CODE_TTL
    with pytest.raises(errors.PairingRefused):
        db.contacts.link_by_code("far", "8", other)
    assert db.contacts.linked_owner("far", "8") is None


def test_unlinking_makes_the_unused_code_of_the_owner_invalid(db: SessionDB) -> None:
    db.create_session("talk", source="test", owner="ann")
    db.contacts.link("near", "1", "ann")
    code = db.contacts.create_link_code("talk")
    assert db.contacts.unlink("near", "1")
    with pytest.raises(errors.PairingRefused):
        db.contacts.link_by_code("far", "7", code)


def test_five_wrong_link_codes_lock_only_their_sender_for_an_hour(db: SessionDB, clock: Clock) -> None:
    for _ in range(contacts.MAX_FAILURES):
        with pytest.raises(errors.PairingRefused) as refusal:
            db.contacts.link_by_code("far", "eve", "WRONG")
    assert refusal.value.locked_for == contacts.LOCKOUT_SECONDS
    db.create_session("talk", source="test", owner="ann")
    code = db.contacts.create_link_code("talk")
    with pytest.raises(errors.PairingRefused, match="Too many wrong codes"):
        db.contacts.link_by_code("far", "eve", code)
    assert db.contacts.link_by_code("far", "7", code) == ("ann", "talk")
    clock.now += contacts.LOCKOUT_SECONDS
    for _ in range(2):
        for _ in range(contacts.MAX_FAILURES - 1):
            with pytest.raises(errors.PairingRefused):
                db.contacts.link_by_code("far", "eve", "WRONG")
        code = db.contacts.create_link_code("talk")
        assert db.contacts.link_by_code("far", "eve", code) == ("ann", "talk")


def test_linked_chats_are_those_bound_to_the_conversation_by_linked_senders(db: SessionDB) -> None:
    settled = mail.answered(db, "talk")
    db.bind_route(settled.route, "talk", version=db.route(settled.route).version)
    assert db.mail.linked_chats("talk") == []
    db.contacts.link(settled.platform, settled.sender, "somebody else")
    db.contacts.link("elsewhere", settled.sender, db.conversation("talk").owner)
    assert db.mail.linked_chats("talk") == []
    owner = db.conversation("talk").owner
    db.contacts.link(settled.platform, settled.sender, owner)
    home = types.Home(settled.home, settled.chat, settled.address, settled.route, settled.sender, owner, owner)
    assert db.mail.linked_chats("talk") == [home] == [db.mail.last_chat("talk")]
    assert mail.again(db, settled).linked_owner == owner
    mail.came(db, "later", sender="a stranger")
    assert db.mail.linked_chats("talk") == []
    mail.came(db, "last")
    assert db.mail.linked_chats("talk") == [home]
    conversations.begin(db, "other", "a")
    db.bind_route(settled.route, "other", version=db.route(settled.route).version)
    assert db.mail.linked_chats("talk") == []
