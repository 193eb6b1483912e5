"""Contacts: roles, pairing codes that are valid once and for an hour, and the lockout after wrong codes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from holdfast import SessionDB, errors, types
from holdfast.store.mail import contacts
from tests.support import consistency, conversations, mail
from tests.support.backends import MakeDb
from tests.support.conversations import Clock

HOUR = 3600.0


def create_code(db: SessionDB, sender: str = "7", platform: str = "far", name: str = "Ada") -> str:
    code = db.contacts.create_pairing_code(platform, sender, name)
    assert code
    return code


def refuse(use_code: Callable[..., object], *given: str | None) -> float:
    """Use a code that must be refused; the seconds for which the platform or sender is locked."""
    with pytest.raises(errors.PairingRefused) as error:
        use_code(*given)
    return error.value.locked_for


def test_last_role_of_a_contact_counts(db: SessionDB, clock: Clock) -> None:
    assert db.contacts.get("far", "7") is None
    allowed = db.contacts.allow("far", "7", "admin", "root", "Ada")
    assert (allowed.role, allowed.name, allowed.by, allowed.at) == ("admin", "Ada", "root", conversations.NOON)
    clock.advance(1)
    denied = db.contacts.deny("far", "7", "root")
    assert (denied.role, denied.name) == ("denied", "Ada")
    assert (db.contacts.get("far", "7"), db.contacts.get("near", "7")) == (denied, None)
    db.contacts.allow("near", "7")
    assert [(each.platform, each.role) for each in db.contacts.all()] == [("far", "denied"), ("near", "user")]
    assert db.contacts.all("near") == [db.contacts.get("near", "7")]
    assert [db.contacts.delete("far", "7") for _ in range(2)] == [True, False]


def test_pairing_code_is_valid_once_and_only_its_digest_is_stored(db: SessionDB) -> None:
    code = create_code(db, name="\x1b[2J Ada\n\u202elovelace\0 " + "x" * 200)
    assert len(code) == 8
    assert set(code) <= set(contacts.CODE_ALPHABET) - set("0O1IL2Z5S8BUV")
    assert code not in repr(consistency.rows(db))
    person = db.contacts.pair("far", f" {code[:4].lower()}-{code[4:]} ", "root")
    assert (person.sender, person.role, person.by) == ("7", "user", "root")
    assert person.name.startswith("[2J Ada lovelace xxx")
    assert len(person.name) == contacts.MAX_NAME
    assert refuse(db.contacts.pair, "far", code) == 0
    assert db.contacts.create_pairing_code("far", "7") is None, "a known contact needs no code"


def test_code_is_valid_for_an_hour_on_its_platform(db: SessionDB, clock: Clock) -> None:
    code = create_code(db)
    assert refuse(db.contacts.pair, "near", code) == 0
    clock.advance(HOUR)
    assert refuse(db.contacts.pair, "far", code) == 0
    assert db.contacts.renew_pairing_code("far", "7") is None
    code = create_code(db)
    clock.advance(HOUR - 1)
    assert db.contacts.pair(None, code).sender == "7"


def test_stranger_gets_one_code_in_ten_minutes_and_the_last_one_counts(db: SessionDB, clock: Clock) -> None:
    first = create_code(db)
    clock.advance(599)
    assert db.contacts.create_pairing_code("far", "7") is None
    assert create_code(db, "8") != first
    clock.advance(1)
    second = create_code(db)
    assert refuse(db.contacts.pair, "far", first) == 0
    assert db.contacts.pair("far", second).sender == "7"


def test_denied_sender_gets_no_code_and_loses_the_old_one(db: SessionDB, clock: Clock) -> None:
    code = create_code(db)
    db.contacts.deny("far", "7")
    assert refuse(db.contacts.pair, "far", code) == 0
    clock.advance(HOUR)
    assert db.contacts.create_pairing_code("far", "7") is None
    assert [person.role for person in db.contacts.all()] == ["denied"]


def test_five_wrong_codes_lock_all_processes_and_survive_a_restart(make_db: MakeDb, clock: Clock) -> None:
    one, other = make_db(), make_db()
    code = create_code(one)
    locked = [refuse(db.contacts.pair, "far", f"WRONG{n}") for n, db in enumerate((one, other, one, other, one))]
    assert locked == [0, 0, 0, 0, HOUR]
    one.close()
    one = make_db()
    clock.advance(60)
    for db in (one, other):
        assert refuse(db.contacts.pair, "far", code) == HOUR - 60
    assert one.contacts.create_pairing_code("far", "9") is None
    near = create_code(one, platform="near")
    assert one.contacts.pair("near", near).platform == "near", "other platforms are not locked"
    assert refuse(one.contacts.pair, None, code) == 0, "the lock cannot be avoided by leaving the platform out"
    clock.advance(HOUR)
    assert other.contacts.pair("far", create_code(other)).sender == "7"


def test_right_code_or_an_hour_resets_the_failures(db: SessionDB, clock: Clock) -> None:
    code = create_code(db)
    for _ in range(4):
        refuse(db.contacts.pair, "far", "WRONG")
    db.contacts.pair("far", code)
    assert [refuse(db.contacts.pair, "far", "WRONG") for _ in range(4)] == [0] * 4
    clock.advance(HOUR)
    assert [refuse(db.contacts.pair, "far", "WRONG") for _ in range(4)] == [0] * 4


def test_concurrent_pairings_and_notifications_are_counted_exactly(make_db: MakeDb) -> None:
    stores = [make_db() for _ in range(4)]
    for sender in map(str, range(5)):
        code = create_code(stores[0], sender)
        found = conversations.at_once(*(partial(db.contacts.pair, "far", code) for db in stores[:2]))
        assert sum(isinstance(each, errors.PairingRefused) for each in found) == 1
        notified = conversations.at_once(
            *(partial(db.contacts.mark_stranger_notified, "far", f"stranger {sender}") for db in stores[:2])
        )
        assert sorted(map(bool, notified)) == [False, True]
    found = conversations.at_once(*(partial(db.contacts.pair, "near", "WRONG") for db in stores * 2))
    times = sorted(error.locked_for for error in found if isinstance(error, errors.PairingRefused))
    assert times == [0.0] * 4 + [HOUR] * 4


def test_number_of_pending_codes_is_limited(db: SessionDB, clock: Clock) -> None:
    for number in range(contacts.MAX_PENDING_CODES):
        create_code(db, str(number))
    assert db.contacts.create_pairing_code("far", "late") is None
    create_code(db, "late", "near")
    clock.advance(HOUR)
    create_code(db, "late")


def test_stranger_is_notified_once_per_platform(db: SessionDB) -> None:
    notified = [db.contacts.mark_stranger_notified(platform, "3") for platform in ("far", "far", "near")]
    assert notified == [True, False, True]
    assert db.contacts.delete("far", "3")
    assert db.contacts.mark_stranger_notified("far", "3")


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
    refuse(db.contacts.link_by_code, "far", "7", replaced)
    assert db.contacts.link_by_code("far", "7", f" {code[:4]}-{code[4:].lower()} ") == ("ann", "talk")
    assert db.contacts.linked_owner("far", "7") == "ann"
    refuse(db.contacts.link_by_code, "far", "8", code)
    clock.now += contacts.LINK_CODE_TTL
    refuse(db.contacts.link_by_code, "far", "8", other)
    assert db.contacts.linked_owner("far", "8") is None


def test_unlinking_makes_the_unused_code_of_the_owner_invalid(db: SessionDB) -> None:
    db.create_session("talk", source="test", owner="ann")
    db.contacts.link("near", "1", "ann")
    code = db.contacts.create_link_code("talk")
    assert db.contacts.unlink("near", "1")
    refuse(db.contacts.link_by_code, "far", "7", code)


def test_five_wrong_link_codes_lock_only_their_sender_for_an_hour(db: SessionDB, clock: Clock) -> None:
    locked = [refuse(db.contacts.link_by_code, "far", "eve", "WRONG") for _ in range(contacts.MAX_FAILURES)]
    assert locked[-1] == contacts.LOCKOUT_SECONDS
    db.create_session("talk", source="test", owner="ann")
    code = db.contacts.create_link_code("talk")
    with pytest.raises(errors.PairingRefused, match="Too many wrong codes"):
        db.contacts.link_by_code("far", "eve", code)
    assert db.contacts.link_by_code("far", "7", code) == ("ann", "talk")
    clock.now += contacts.LOCKOUT_SECONDS
    for _ in range(2):
        for _ in range(contacts.MAX_FAILURES - 1):
            refuse(db.contacts.link_by_code, "far", "eve", "WRONG")
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
