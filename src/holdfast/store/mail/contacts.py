"""Contacts: senders that an operator allowed or denied, pairing codes for unknown senders, and links.

A sender is a stranger until an operator allows them, directly or by a pairing code that the stranger passes on. Only a
digest of a code is stored. A code is valid once and for an hour. The message that contains it is queued without it: the
code is generated when the message is sent. After five wrong codes none is accepted for an hour, by any process.

A link joins two identities of a person: the sender uses the conversations and notes of an owner instead of separate
ones. It is made by an operator, or by a code that the owner gets in one front end and sends from another.
"""

from __future__ import annotations

import hmac
import os
import secrets
from hashlib import blake2b

from holdfast import errors, types
from holdfast.store import conversation_row, validation
from holdfast.store.driver import Facet, Tx, read_struct, read_structs, struct_from_row

# Without characters that look alike: 0 and O, 1 and I and L, 2 and Z, 5 and S, 8 and B, U and V.
CODE_ALPHABET = "34679ACDEFGHJKMNPQRTWXY"
CODE_LENGTH = 8
CODE_TTL = 3600.0
LINK_CODE_TTL = 600.0
MIN_CODE_INTERVAL = 600.0
MAX_PENDING_CODES = 100
MAX_FAILURES = 5
LOCKOUT_SECONDS = 3600.0
MAX_NAME = 100
# Counts the wrong codes that were given without a platform.
ANY_PLATFORM = "*"

SenderKey = dict[str, str]
"""The parameters `platform` and `sender` of a query."""


class Contacts(Facet):
    """`db.contacts`: senders that were allowed or denied, pairing codes for strangers, and links between identities."""

    def get(self, platform: str, sender: str) -> types.Contact | None:
        """Return a contact who was allowed or denied; None for a stranger."""
        key = _check_key(platform, sender)
        return self.driver.read(lambda tx: read_struct(tx, types.Contact, "contact_get", **key))

    def all(self, platform: str | None = None) -> list[types.Contact]:
        """Return all contacts who were allowed or denied."""
        only = None if platform is None else validation.check_platform(platform)
        return self.driver.read(lambda tx: read_structs(tx, types.Contact, "contacts_all", platform=only))

    def allow(
        self, platform: str, sender: str, role: types.ContactRole = "user", by: str = "", name: str = ""
    ) -> types.Contact:
        """Allow a sender as a user or an admin, also one who was denied."""
        if role not in ("user", "admin"):
            raise errors.InvalidArgument("`role` must be user or admin.")
        return self._put(platform, sender, role, by, name)

    def deny(self, platform: str, sender: str, by: str = "") -> types.Contact:
        """Deny a sender; their link is removed, and their pairing code becomes invalid."""
        return self._put(platform, sender, "denied", by, "")

    def _put(self, platform: str, sender: str, role: types.ContactRole, by: str, name: str) -> types.Contact:
        key, operator, display_name, now = _check_key(platform, sender), clean_name(by), clean_name(name), self._clock()
        return self.driver.write("contacts", lambda tx: put(tx, key, role, display_name, operator, now))

    def delete(self, platform: str, sender: str) -> bool:
        """Delete a contact, who is a stranger again, and their link; return whether there was a contact."""
        key = _check_key(platform, sender)

        def step(tx: Tx) -> bool:
            tx.run("link_delete", **key)
            return tx.run("stranger_delete", **key) + tx.run("contact_delete", **key) > 0

        return self.driver.write("contacts", step)

    def mark_stranger_notified(self, platform: str, sender: str, now: float | None = None) -> bool:
        """Record that a stranger is notified; return True the first time only."""
        key, at = _check_key(platform, sender), self._clock() if now is None else validation.check_time(now)

        def step(tx: Tx) -> bool:
            tx.run("stranger_insert", **key)
            if tx.run("stranger_mark_notified", **key, at=at) == 1:
                tx.retry_state["notified"] = True
            return "notified" in tx.retry_state

        return self.driver.write("contacts", step)

    def create_pairing_code(self, platform: str, sender: str, name: str = "", now: float | None = None) -> str | None:
        """Return a code that a stranger passes on to the operator.

        None if the sender was allowed or denied, got a code within ten minutes, too many codes are pending, or the
        platform is locked after wrong codes.
        """
        key, at = _check_key(platform, sender), self._clock() if now is None else validation.check_time(now)
        code, values = _generate_code(at)
        display_name = clean_name(name)
        return code if self.driver.write("contacts", lambda tx: store_code(tx, key, display_name, values, at)) else None

    def renew_pairing_code(self, platform: str, sender: str) -> str | None:
        """Replace the code of a stranger and return the new one; None if the old one expired, was used or withdrawn."""
        key, now = _check_key(platform, sender), self._clock()
        code, values = _generate_code(now)
        renewed = self.driver.write("contacts", lambda tx: tx.run("stranger_renew_code", **key, **values, now=now))
        return code if renewed else None

    def pair(self, platform: str | None, code: str, by: str = "") -> types.Contact:
        """Allow the stranger with this code, on one platform or (None) on any; PairingRefused for a wrong code."""
        only = None if platform is None else validation.check_platform(platform)
        if not isinstance(code, str):
            raise errors.InvalidArgument("`code` must be text.")
        operator, now = clean_name(by), self._clock()
        # Raised outside of the transaction, whose rollback would undo the count of failures.
        found = self.driver.write("contacts", lambda tx: pair(tx, only, _normalize_code(code), operator, now))
        if isinstance(found, errors.PairingRefused):
            raise found
        return found

    # --- links -------------------------------------------------------------------------------------------

    def linked_owner(self, platform: str, sender: str) -> str | None:
        """Return the owner that a sender is linked to; None without a link."""
        key = _check_key(platform, sender)
        row = self.driver.read(lambda tx: tx.one("link_get", **key))
        return None if row is None else str(row[0])

    def links(self, owner: str | None = None) -> list[types.Link]:
        """Return all links, or those to one owner."""
        only = None if owner is None else validation.check_owner(owner)
        return self.driver.read(lambda tx: read_structs(tx, types.Link, "links_all", owner=only))

    def link(self, platform: str, sender: str, owner: str, replace: bool = True) -> str:
        """Let a sender use the conversations and notes of an owner, instead of separate ones.

        Without `replace`, an existing link stays. Return the owner that the sender is linked to now.
        """
        key, query = _check_key(platform, sender), "link_put" if replace else "link_insert"
        values = {**key, "owner": validation.check_owner(owner), "at": self._clock()}

        def step(tx: Tx) -> str:
            *_, rows = tx.batch((query, values), ("link_get", key))
            return str(rows[0][0])

        return self.driver.write("contacts", step)

    def unlink(self, platform: str, sender: str) -> bool:
        """Separate a sender again; return whether there was a link. An unused code of the owner becomes invalid."""
        key = _check_key(platform, sender)

        def step(tx: Tx) -> bool:
            tx.run("link_code_withdraw", **key)
            return tx.run("link_delete", **key) > 0

        return self.driver.write("contacts", step)

    def create_link_code(self, session_id: str) -> str:
        """Return a code that links the sender who uses it to the owner of a conversation, to continue it.

        An earlier code of the owner becomes invalid.
        """
        code, values = _generate_code(self._clock(), LINK_CODE_TTL)
        validation.check_id(session_id)

        def step(tx: Tx) -> None:
            here = conversation_row.read(tx, session_id)
            tx.run("link_code_put", **values, owner=here.owner, session=here.id)

        self.driver.write("contacts", step)
        return code

    def link_by_code(self, platform: str, sender: str, code: str) -> tuple[str, str]:
        """Link a sender to the owner of a code; return the owner and the session to continue.

        Raises PairingRefused for a wrong, used or expired code, and for an hour after five wrong codes of this sender.
        """
        return self._use_link_code(platform, sender, code, links=True)

    def revoke_link_code(self, platform: str, sender: str, code: str) -> None:
        """Delete a code that others have read. Raises PairingRefused like `link_by_code`."""
        self._use_link_code(platform, sender, code, links=False)

    def _use_link_code(self, platform: str, sender: str, code: str, *, links: bool) -> tuple[str, str]:
        key, now = _check_key(platform, sender), self._clock()
        if not isinstance(code, str):
            raise errors.InvalidArgument("`code` must be text.")
        # Raised outside of the transaction, whose rollback would undo the count of failures.
        found = self.driver.write("contacts", lambda tx: use_link_code(tx, key, _normalize_code(code), now, links))
        if isinstance(found, errors.PairingRefused):
            raise found
        return found


def _check_key(platform: object, sender: object) -> SenderKey:
    return {"platform": validation.check_platform(platform), "sender": validation.check_id(sender, "sender")}


def clean_name(name: object) -> str:
    """Return a display name with single spaces and without control characters, cut to MAX_NAME."""
    if not isinstance(name, str):
        raise errors.InvalidArgument("`name` must be text.")
    return " ".join("".join(each if each.isprintable() else " " for each in name).split())[:MAX_NAME]


def _normalize_code(code: str) -> str:
    return "".join(each for each in code[:100].upper() if each.isalnum())


def _generate_code(now: float, ttl: float = CODE_TTL) -> tuple[str, dict[str, object]]:
    """Return a new code, and the parameters of the query that stores it."""
    code, salt = "".join(secrets.choice(CODE_ALPHABET) for _ in range(CODE_LENGTH)), os.urandom(16)
    return code, {"digest": digest_code(code, salt), "salt": salt, "expires_at": now + ttl}


def digest_code(code: str, salt: bytes) -> bytes:
    """Digest a code. A fast digest is enough for an hour; the salt prevents a lookup table."""
    return blake2b(code.encode(), digest_size=32, salt=salt, person=b"pairing").digest()


def put(tx: Tx, key: SenderKey, role: types.ContactRole, name: str, by: str, now: float) -> types.Contact:
    values = {**key, "role": role, "name": name, "at": now, "by": by}
    if role == "denied":
        tx.run("link_delete", **key)
    *_, rows = tx.batch(("contact_put", values), ("stranger_void_code", key), ("contact_get", key))
    return struct_from_row(types.Contact, rows[0])


def store_code(tx: Tx, key: SenderKey, name: str, code: dict[str, object], now: float) -> bool:
    """Store the code of a stranger; return whether the stranger may have one."""
    tx.run("stranger_insert", **key)
    requested_at, digest = tx.one("stranger_get", **key) or (None, None)
    if digest == code["digest"]:
        return True  # an earlier attempt whose commit outcome is unknown
    is_early = requested_at is not None and now < requested_at + MIN_CODE_INTERVAL
    if is_early or tx.one("contact_get", **key) or _is_locked(tx, key["platform"], now):
        return False
    (pending,) = tx.one("pairing_codes_count", platform=key["platform"], now=now) or (0,)
    return pending < MAX_PENDING_CODES and tx.run("stranger_set_code", **key, **code, name=name, at=now) == 1


def pair(tx: Tx, platform: str | None, code: str, by: str, now: float) -> types.Contact | errors.PairingRefused:
    counter = ANY_PLATFORM if platform is None else platform
    tx.run("lockout_insert", platform=counter)
    failures, failed_at = tx.one("lockout_get", platform=counter) or (0, 0.0)
    left = _lockout_left(failures, failed_at, now)
    if left > 0:
        return errors.PairingRefused(locked_for=left)
    match = None
    # All codes are compared, so that the duration reveals nothing about a guess.
    for row_platform, sender, name, digest, salt in tx.all("pairing_codes", platform=platform, now=now):
        if hmac.compare_digest(bytes(digest), digest_code(code, bytes(salt))):
            match = {"platform": row_platform, "sender": sender}, name
    if match is not None and not (platform is None and _is_locked(tx, match[0]["platform"], now)):
        tx.run("lockout_set", platform=counter, failures=0, at=now)
        tx.retry_state["paired"] = match[0]
        return put(tx, match[0], "user", match[1], by, now)
    if paired := tx.retry_state.get("paired"):  # an earlier attempt whose commit outcome is unknown
        contact = read_struct(tx, types.Contact, "contact_get", **paired)
        if contact is not None:
            return contact
    return errors.PairingRefused(locked_for=_count_failure(tx, counter, failures, failed_at, now))


def use_link_code(
    tx: Tx, key: SenderKey, code: str, now: float, links: bool
) -> tuple[str, str] | errors.PairingRefused:
    if linked := tx.retry_state.get("linked"):  # an earlier attempt whose commit outcome is unknown
        owner, session = linked
        if links and tx.one("link_get", **key) == (owner,):
            return owner, session
    # Counted for each sender, so that one sender cannot lock out another sender.
    counter = f"link:{key['platform']}:{key['sender']}"
    tx.run("lockout_insert", platform=counter)
    failures, failed_at = tx.one("lockout_get", platform=counter) or (0, 0.0)
    left = _lockout_left(failures, failed_at, now)
    if left > 0:
        return errors.PairingRefused(locked_for=left)
    match = None
    # All codes are compared, so that the duration reveals nothing about a guess.
    for owner, session, digest, salt in tx.all("link_codes", now=now):
        if hmac.compare_digest(bytes(digest), digest_code(code, bytes(salt))):
            match = owner, session, bytes(digest)
    if match is None and linked and not links:
        return linked[0], linked[1]
    if match is None:
        return errors.PairingRefused(locked_for=_count_failure(tx, counter, failures, failed_at, now))
    owner, session, digest = match
    tx.retry_state["linked"] = owner, session
    tx.run("link_code_delete", digest=digest, now=now)
    if links:
        tx.run("link_put", **key, owner=owner, at=now)
    tx.run("lockout_set", platform=counter, failures=0, at=now)
    return owner, session


def _count_failure(tx: Tx, counter: str, failures: int, failed_at: float, now: float) -> float:
    """Count a wrong code; return the seconds for which no more codes are accepted."""
    recent = failures if now < failed_at + LOCKOUT_SECONDS else 0
    tx.run("lockout_set", platform=counter, failures=recent + 1, at=now)
    return _lockout_left(recent + 1, now, now)


def _is_locked(tx: Tx, platform: str, now: float) -> bool:
    failures, failed_at = tx.one("lockout_get", platform=platform) or (0, 0.0)
    return _lockout_left(failures, failed_at, now) > 0


def _lockout_left(failures: int, failed_at: float, now: float) -> float:
    return failed_at + LOCKOUT_SECONDS - now if failures >= MAX_FAILURES else 0.0
