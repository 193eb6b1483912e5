"""People: strangers until somebody lets them in; codes that are good once and for an hour; guessing that ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from holdfast import SessionDB, errors
from holdfast.store.mail import contacts
from tests.support import conversations, mail

MakeDb = Callable[..., SessionDB]
HOUR = 3600.0


def asked(db: SessionDB, sender: str = "7", platform: str = "far", name: str = "Ada") -> str:
    code = db.contacts.create_pairing_code(platform, sender, name)
    assert code is not None
    return code


def refused(db: SessionDB, platform: str | None, code: str) -> float:
    with pytest.raises(errors.PairingRefused) as error:
        db.contacts.pair(platform, code)
    return error.value.locked_for


def test_last_role_of_a_contact_counts(db: SessionDB, clock: conversations.Clock) -> None:
    assert db.contacts.get("far", "7") is None
    allowed = db.contacts.allow("far", "7", "admin", "root", "Ada")
    assert (allowed.role, allowed.name, allowed.by, allowed.at) == ("admin", "Ada", "root", conversations.NOON)
    clock.advance(1)
    denied = db.contacts.deny("far", "7", "root")
    assert (denied.role, denied.name) == ("denied", "Ada")
    assert db.contacts.get("far", "7") == denied
    assert db.contacts.get("near", "7") is None
    db.contacts.allow("near", "7")
    assert [(each.platform, each.role) for each in db.contacts.all()] == [("far", "denied"), ("near", "user")]
    assert db.contacts.all("near") == [db.contacts.get("near", "7")]
    assert db.contacts.delete("far", "7")
    assert not db.contacts.delete("far", "7")
    for role in ("denied", "root", ""):
        with pytest.raises(errors.InvalidArgument):
            db.contacts.allow("far", "7", role)  # type: ignore[arg-type]


def test_pairing_code_is_valid_once(db: SessionDB) -> None:
    code = asked(db)
    assert len(code) == 8
    assert set(code) <= set(contacts.CODE_ALPHABET)
    assert not set(code) & set("0O1IL2Z5S8BUV")
    person = db.contacts.pair("far", f" {code[:4].lower()}-{code[4:]} ", "root")
    assert (person.sender, person.role, person.name, person.by) == ("7", "user", "Ada", "root")
    assert refused(db, "far", code) == 0
    assert db.contacts.create_pairing_code("far", "7") is None, "who is known needs no code"


def test_only_the_digest_of_a_code_is_stored(db: SessionDB) -> None:
    code = asked(db)
    assert code not in repr(mail.everything(db))


def test_code_is_valid_for_an_hour_on_its_platform(db: SessionDB, clock: conversations.Clock) -> None:
    code = asked(db)
    assert refused(db, "near", code) == 0
    clock.advance(HOUR)
    assert refused(db, "far", code) == 0
    code = asked(db)
    clock.advance(HOUR - 1)
    assert db.contacts.pair(None, code).sender == "7"


def test_stranger_gets_one_code_in_ten_minutes_and_the_last_one_counts(
    db: SessionDB, clock: conversations.Clock
) -> None:
    first = asked(db)
    clock.advance(599)
    assert db.contacts.create_pairing_code("far", "7") is None
    assert asked(db, "8") != first
    clock.advance(1)
    second = asked(db)
    assert refused(db, "far", first) == 0
    assert db.contacts.pair("far", second).sender == "7"


def test_denied_sender_gets_no_code_and_loses_the_old_one(db: SessionDB, clock: conversations.Clock) -> None:
    code = asked(db)
    db.contacts.deny("far", "7")
    assert refused(db, "far", code) == 0
    clock.advance(HOUR)
    assert db.contacts.create_pairing_code("far", "7") is None
    person = db.contacts.get("far", "7")
    assert person is not None
    assert person.role == "denied"


def test_five_wrong_codes_lock_all_processes_and_survive_a_restart(make_db: MakeDb, clock: conversations.Clock) -> None:
    one, other = make_db(), make_db()
    code = asked(one)
    locked = [refused(db, "far", f"WRONG{n}") for n, db in enumerate((one, other, one, other, one))]
    assert locked == [0, 0, 0, 0, HOUR]
    one.close()
    one = make_db()
    clock.advance(60)
    for db in (one, other):
        assert refused(db, "far", code) == HOUR - 60
    assert one.contacts.create_pairing_code("far", "9") is None
    near = asked(one, platform="near")
    assert one.contacts.pair("near", near).platform == "near", "another platform is not meant"
    assert refused(one, None, code) == 0, "nor is there a way around it"
    clock.advance(HOUR)
    assert other.contacts.pair("far", asked(other)).sender == "7"


def test_concurrent_wrong_codes_are_all_counted(make_db: MakeDb) -> None:
    stores = [make_db() for _ in range(4)]
    asked(stores[0])
    found = conversations.at_once(*(partial(db.contacts.pair, "far", "WRONG") for db in stores * 2))
    times = sorted(error.locked_for for error in found if isinstance(error, errors.PairingRefused))
    assert times == [0.0] * 4 + [HOUR] * 4


def test_right_code_or_an_hour_resets_the_failures(db: SessionDB, clock: conversations.Clock) -> None:
    code = asked(db)
    for _ in range(4):
        refused(db, "far", "WRONG")
    db.contacts.pair("far", code)
    assert [refused(db, "far", "WRONG") for _ in range(4)] == [0] * 4
    clock.advance(HOUR)
    assert [refused(db, "far", "WRONG") for _ in range(4)] == [0] * 4


def test_concurrent_pairings_with_one_code_have_one_winner(make_db: MakeDb) -> None:
    one, other = make_db(), make_db()
    for number in range(10):
        code = asked(one, str(number))
        found = conversations.at_once(lambda: one.contacts.pair("far", code), lambda: other.contacts.pair("far", code))  # noqa: B023
        assert sum(isinstance(each, errors.PairingRefused) for each in found) == 1


def test_number_of_pending_codes_is_limited(db: SessionDB, clock: conversations.Clock) -> None:
    for number in range(contacts.MAX_PENDING_CODES):
        asked(db, str(number))
    assert db.contacts.create_pairing_code("far", "late") is None
    asked(db, "late", "near")
    clock.advance(HOUR)
    asked(db, "late")


def test_stranger_is_notified_once(make_db: MakeDb) -> None:
    one, other = make_db(), make_db()
    for sender in map(str, range(10)):
        found = conversations.at_once(
            *(lambda db=db, sender=sender: db.contacts.mark_stranger_notified("far", sender) for db in (one, other))
        )
        assert sorted(map(bool, found)) == [False, True]
    assert not one.contacts.mark_stranger_notified("far", "3")
    assert one.contacts.mark_stranger_notified("near", "3")
    assert one.contacts.delete("far", "3")
    assert one.contacts.mark_stranger_notified("far", "3")


def test_names_are_cleaned(db: SessionDB) -> None:
    person = db.contacts.pair("far", asked(db, name="\x1b[2J Ada\n\u202elovelace\0 " + "x" * 200))
    assert person.name.startswith("[2J Ada lovelace xxx")
    assert len(person.name) == contacts.MAX_NAME


@pytest.mark.parametrize("who", [("", "7"), ("far", ""), ("far", "a\nb"), ("p" * 41, "7"), (5, "7"), ("far", None)])
def test_invalid_sender_is_refused(db: SessionDB, who: tuple[str, str]) -> None:
    for call in (
        db.contacts.get,
        db.contacts.allow,
        db.contacts.deny,
        db.contacts.mark_stranger_notified,
        db.contacts.create_pairing_code,
        db.contacts.delete,
    ):
        with mail.nothing_changes(db), pytest.raises(errors.InvalidArgument):
            call(*who)
