"""Contacts: who may talk to the agent from outside, and pairing codes for strangers.

A sender is a stranger until an operator allows them, by name or by a pairing code that the stranger passes on. Only a
digest of a code is stored; it is valid for an hour, and once. The message with the code is queued without it: the code
is made when the message is sent. After five wrong codes none is accepted for an hour, in all processes and after a
restart.
"""

from __future__ import annotations

import hmac
import os
import secrets
from hashlib import blake2b
from typing import NamedTuple

from holdfast import errors, types
from holdfast.store import validation
from holdfast.store.driver import Row, Tx
from holdfast.store.facet import Facet

# Without characters that look alike: 0 and O, 1 and I and L, 2 and Z, 5 and S, 8 and B, U and V.
ALPHABET = "34679ACDEFGHJKMNPQRTWXY"
LENGTH = 8
GOOD_FOR = 3600.0
BETWEEN = 600.0
MOST_WAITING = 100
FAILURES = 5
LOCKED_FOR = 3600.0
MAX_NAME = 100
# The platform name that counts wrong codes given without a platform.
ANYWHERE = "*"


class Contacts(Facet):
    """`db.contacts`: who may talk to the agent from outside, and pairing codes for strangers."""

    def get(self, platform: str, sender: str) -> types.Contact | None:
        """Return a contact who was allowed or denied; None for a stranger."""
        where, who = _checked(platform, sender)
        return self.driver.read(lambda tx: get(tx, where, who))

    def all(self, platform: str | None = None) -> list[types.Contact]:
        """Return all contacts who were allowed or denied."""
        where = None if platform is None else validation.check_platform(platform)
        return self.driver.read(lambda tx: [_person(row) for row in tx.all("people_all", platform=where)])

    def allow(
        self, platform: str, sender: str, role: types.ContactRole = "user", by: str = "", name: str = ""
    ) -> types.Contact:
        """Allow a sender as a user or an admin, also one who was denied."""
        if role not in ("user", "admin"):
            raise errors.InvalidArgument("`role` must be user or admin.")
        where, who = _checked(platform, sender)
        giver, called, now = cleaned(by), cleaned(name), self._clock()
        return self.driver.write("people", lambda tx: put(tx, where, who, role, called, giver, now))

    def deny(self, platform: str, sender: str, by: str = "") -> types.Contact:
        """Deny a sender; their pairing code becomes invalid."""
        where, who = _checked(platform, sender)
        giver, now = cleaned(by), self._clock()
        return self.driver.write("people", lambda tx: put(tx, where, who, "denied", "", giver, now))

    def forget(self, platform: str, sender: str) -> bool:
        """Delete a contact, who is a stranger again; return whether there was one."""
        where, who = _checked(platform, sender)
        return self.driver.write("people", lambda tx: forget(tx, where, who))

    def mark_stranger_notified(self, platform: str, sender: str, now: float | None = None) -> bool:
        """Record that a stranger is notified; return True the first time only."""
        where, who = _checked(platform, sender)
        when = self._clock() if now is None else validation.check_time(now)
        return self.driver.write("people", lambda tx: record_notice(tx, where, who, when))

    def create_pairing_code(self, platform: str, sender: str, name: str = "", now: float | None = None) -> str | None:
        """Return a code that a stranger passes on to the operator.

        None if the sender was allowed or denied, got a code within ten minutes, too many strangers wait, or the
        platform is locked after wrong codes.
        """
        where, who = _checked(platform, sender)
        when = self._clock() if now is None else validation.check_time(now)
        code = minted()
        asked = Asked(where, who, cleaned(name), digested(code, salt := os.urandom(16)), salt, when)
        return code if self.driver.write("people", lambda tx: ask(tx, asked)) else None

    def pair(self, platform: str | None, code: str, by: str = "") -> types.Contact:
        """Allow the stranger with this code, on one platform or (None) on any; PairingRefused for a wrong code."""
        where = None if platform is None else validation.check_platform(platform)
        if not isinstance(code, str):
            raise errors.InvalidArgument("`code` must be text.")
        given, giver, now = spelled(code), cleaned(by), self._clock()
        # Raised outside of the transaction, whose rollback would undo the count of failures.
        found = self.driver.write("people", lambda tx: pair(tx, where, given, giver, now))
        if isinstance(found, errors.PairingRefused):
            raise found
        return found

    def renew_pairing_code(self, platform: str, sender: str) -> str | None:
        """Replace the code of a stranger and return the new one; None if the old one expired, was used or withdrawn."""
        where, who = _checked(platform, sender)
        code, salt, now = minted(), os.urandom(16), self._clock()
        values = {"digest": digested(code, salt), "salt": salt, "expires_at": now + GOOD_FOR, "now": now}
        found = self.driver.write(
            "people", lambda tx: tx.run("stranger_code_again", platform=where, sender=who, **values) == 1
        )
        return code if found else None


def minted() -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(LENGTH))


class Asked(NamedTuple):
    """A stranger who asks for access, and their code."""

    platform: str
    sender: str
    name: str
    digest: bytes
    salt: bytes
    at: float


def _checked(platform: object, sender: object) -> tuple[str, str]:
    return validation.check_platform(platform), validation.check_id(sender, "sender")


def cleaned(name: object) -> str:
    """What somebody goes by, as far as it is kept: it is for people to read, and tells nothing."""
    if not isinstance(name, str):
        raise errors.InvalidArgument("`name` must be text.")
    return " ".join("".join(each if each.isprintable() else " " for each in name).split())[:MAX_NAME]


def spelled(code: str) -> str:
    """Normalize a typed code: upper case, letters and digits only."""
    return "".join(each for each in code[:100].upper() if each.isalnum())


def digested(code: str, salt: bytes) -> bytes:
    """Digest a code. A fast digest is enough for an hour; the salt prevents a lookup table."""
    return blake2b(code.encode(), digest_size=32, salt=salt, person=b"pairing").digest()


def get(tx: Tx, platform: str, sender: str) -> types.Contact | None:
    row = tx.one("person_get", platform=platform, sender=sender)
    return None if row is None else _person(row)


def put(tx: Tx, platform: str, sender: str, role: types.ContactRole, name: str, by: str, now: float) -> types.Contact:
    tx.run("person_put", platform=platform, sender=sender, role=role, name=name, at=now, by=by)
    tx.run("stranger_code_void", platform=platform, sender=sender)
    found = get(tx, platform, sender)
    assert found is not None  # just written
    return found


def forget(tx: Tx, platform: str, sender: str) -> bool:
    stranger = tx.run("stranger_forget", platform=platform, sender=sender)
    return tx.run("person_forget", platform=platform, sender=sender) + stranger > 0


def record_notice(tx: Tx, platform: str, sender: str, now: float) -> bool:
    tx.run("stranger_met", platform=platform, sender=sender)
    if tx.run("stranger_told", platform=platform, sender=sender, at=now) == 1:
        tx.retry_state["noticed"] = True
    return bool(tx.retry_state.get("noticed", False))


def ask(tx: Tx, asked: Asked) -> bool:
    who = {"platform": asked.platform, "sender": asked.sender}
    tx.run("stranger_met", **who)
    before, digest = tx.one("stranger_asked", **who) or (None, None)
    if digest == asked.digest:
        return True  # an earlier attempt whose commit outcome is unknown
    if get(tx, asked.platform, asked.sender) is not None or locked(tx, asked.platform, asked.at):
        return False
    waiting = tx.one("strangers_waiting", platform=asked.platform, now=asked.at) or (0,)
    if (before is not None and asked.at < before + BETWEEN) or waiting[0] >= MOST_WAITING:
        return False
    code = {"name": asked.name, "digest": asked.digest, "salt": asked.salt}
    return tx.run("stranger_code", **who, **code, at=asked.at, expires_at=asked.at + GOOD_FOR) == 1


def pair(tx: Tx, platform: str | None, code: str, by: str, now: float) -> types.Contact | errors.PairingRefused:
    bucket = ANYWHERE if platform is None else platform
    tx.run("lockout_met", platform=bucket)
    failures, failed_at = tx.one("lockout_get", platform=bucket) or (0, 0.0)
    left = _locked_for(failures, failed_at, now)
    if left > 0:
        return errors.PairingRefused(locked_for=left)
    match = None
    # All codes are compared, so that the duration reveals nothing about a guess.
    for where, who, name, digest, salt in tx.all("strangers_with_codes", platform=platform, now=now):
        if hmac.compare_digest(bytes(digest), digested(code, bytes(salt))):
            match = (where, who, name)
    if match is not None and not (platform is None and locked(tx, match[0], now)):
        tx.run("lockout_set", platform=bucket, failures=0, at=now)
        tx.retry_state["paired"] = match
        return put(tx, match[0], match[1], "user", match[2], by, now)
    done = tx.retry_state.get("paired")
    if done is not None and (person := get(tx, done[0], done[1])) is not None:
        return person  # an earlier attempt whose commit outcome is unknown
    so_far = failures if now < failed_at + LOCKED_FOR else 0
    tx.run("lockout_set", platform=bucket, failures=so_far + 1, at=now)
    return errors.PairingRefused(locked_for=_locked_for(so_far + 1, now, now))


def locked(tx: Tx, platform: str, now: float) -> bool:
    """Return whether a platform is locked after too many wrong codes."""
    failures, failed_at = tx.one("lockout_get", platform=platform) or (0, 0.0)
    return _locked_for(failures, failed_at, now) > 0


def _locked_for(failures: int, failed_at: float, now: float) -> float:
    return failed_at + LOCKED_FOR - now if failures >= FAILURES else 0.0


def _person(row: Row) -> types.Contact:
    platform, sender, role, name, at, by = row
    return types.Contact(platform=platform, sender=sender, role=role, name=name, at=at, by=by)
