"""Access control: every sender is denied unless the settings or an operator allow it.

Senders are identified by the id that their platform assigns, compared exactly; display names do not matter. A denial
in any place overrides a permission in any other. A pairing code is created at the moment it is sent, so no stored
message contains one; a message that is sent twice contains a new code, and the first one becomes invalid.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from urllib.parse import unquote

import msgspec

from holdfast import errors, types
from holdfast.gateway import limits, settings
from holdfast.gateway import platform as gateway_platform
from holdfast.runtime import linked_chats
from holdfast.store import async_db

logger = logging.getLogger("holdfast.gateway")

AUTHENTICATED = frozenset({"http", "hooks", "loopback"})
"""Platforms whose clients have authenticated already: by a token, a secret, or a file of the gateway's user."""
UNKNOWN = "You don't have access to this agent. Ask its owner to allow you."
PAIR = (
    "You don't have access to this agent yet. Give its owner this pairing code: {code}\n"
    "The owner runs: holdfast gateway pair {code}\nAfter that, send your message again. "
    "The code is valid for one hour and can be used once."
)
HOME_NOT_ALLOWED = (
    "The reply would go to {chat} on {platform}, which has no access. "
    "Allow it: holdfast gateway allow {platform} {chat}"
)
STRANGER = "stranger"
"""The field of an address that names the sender whom a pairing code is for."""
CODE = "{code}"
NOT_DIRECT = "The copy of a turn was not sent: other people read the chat of its recipient."
LINK_REMOVED = "The copy of a turn was not sent: the link or the access of its recipient was removed."
CODE_VOID = "The pairing code expired, or was used or withdrawn, before it was sent."
GREETING_SECONDS = 60.0

ALLOWED, REFUSED = gateway_platform.AdmissionResult(True), gateway_platform.AdmissionResult(False)


class Rules(msgspec.Struct, frozen=True):
    """The access lists of the settings: sender ids by platform."""

    allow: Mapping[str, frozenset[str]] = {}
    deny: Mapping[str, frozenset[str]] = {}
    admins: Mapping[str, frozenset[str]] = {}
    shared: Mapping[str, frozenset[str]] = {}
    strangers: str = "pair"
    authenticated: frozenset[str] = AUTHENTICATED


def build_rules(wanted: settings.GatewaySettings) -> Rules:
    allow, deny, admins, shared = map(settings.ids, (wanted.allow, wanted.deny, wanted.admins, wanted.shared))
    return Rules(allow, deny, admins, shared, wanted.strangers)


def evaluate(rules: Rules, platform: str, sender: str, contact: types.Contact | None) -> types.ContactRole | None:
    """Return the role of a sender; None for a stranger. Pure."""
    if sender in rules.deny.get(platform, ()) or (contact is not None and contact.role == "denied"):
        return "denied"
    if sender in rules.admins.get(platform, ()) or (contact is not None and contact.role == "admin"):
        return "admin"
    allowed = rules.allow.get(platform, frozenset())
    is_known = contact is not None or sender in allowed or settings.EVERYBODY in allowed
    return "user" if is_known or platform in rules.authenticated else None


class Access:
    """The admission check for access. Contacts are read each time, so a change takes effect immediately."""

    def __init__(self, db: async_db.AsyncSessionDB, rules: Rules, clock: Callable[[], float] = time.monotonic) -> None:
        self._db, self._rules, self._clock = db, rules, clock
        self._greeted = limits.Cooldown()

    async def __call__(self, incoming: gateway_platform.Incoming, route: str) -> gateway_platform.AdmissionResult:  # noqa: ARG002 -- the protocol of checks
        role = await self._role(incoming.platform, incoming.sender)
        if role == "denied":
            return REFUSED
        if role is not None:
            return await self._check_home(incoming)
        # In a group every member could read the code and use it.
        sender = (incoming.platform, incoming.sender)
        if incoming.kind != "dm" or not self._greeted.begin(sender, GREETING_SECONDS, self._clock()):
            return REFUSED
        message = await self._greeting(incoming)
        return gateway_platform.AdmissionResult(False, message=message, with_code=message == PAIR)

    async def _check_home(self, incoming: gateway_platform.Incoming) -> gateway_platform.AdmissionResult:
        """A message whose reply goes to another platform is accepted only if that chat has access, too."""
        platform, chat = incoming.home, unquote(incoming.home_chat.removeprefix("dm:"))
        if platform is None:
            return ALLOWED
        if chat in self._rules.shared.get(platform, ()) and chat not in self._rules.deny.get(platform, ()):
            return ALLOWED
        if await self._role(platform, chat) in ("user", "admin"):
            return ALLOWED
        logger.warning("the reply to %s would go to %s, which has no access", errors.quote(incoming.sender), chat)
        return gateway_platform.AdmissionResult(False, message=HOME_NOT_ALLOWED.format(platform=platform, chat=chat))

    async def is_admin(self, platform: str, sender: str) -> bool:
        return await self._role(platform, sender) == "admin"

    async def may_speak(self, platform: str, sender: str) -> bool:
        """Return whether a sender who had access still has it."""
        return await self._role(platform, sender) in ("user", "admin")

    async def _role(self, platform: str, sender: str) -> types.ContactRole | None:
        """Return the role of a sender; None for a stranger. An invalid sender id is denied access."""
        try:
            return evaluate(self._rules, platform, sender, await self._db.contacts.get(platform, sender))
        except errors.InvalidArgument:
            logger.warning("rejected an invalid sender id on %s", errors.quote(platform))
            return "denied"

    async def _greeting(self, incoming: gateway_platform.Incoming) -> str:
        """Return the message to a stranger: a pairing code every ten minutes, any other text once."""
        contacts = self._db.contacts
        if self._rules.strangers == "silence":
            return ""
        if self._rules.strangers == "pair":
            # This code is never shown: another one is created when the message is sent.
            code = await contacts.create_pairing_code(incoming.platform, incoming.sender, incoming.name)
            if code is not None:
                logger.info("sending a pairing code to a stranger on %s", incoming.platform)
                await contacts.mark_stranger_notified(incoming.platform, incoming.sender)
                return PAIR
        return UNKNOWN if await contacts.mark_stranger_notified(incoming.platform, incoming.sender) else ""


async def check_copy(
    db: async_db.AsyncSessionDB,
    outgoing: types.Outgoing,
    may_speak: gateway_platform.SenderCheck,
    members: gateway_platform.KnowsMembers | None,
) -> types.Outgoing:
    """Remove the recipient from the copy of a turn. Raises SendRefused if the recipient may not read it anymore."""
    recipient = outgoing.address.get(linked_chats.RECIPIENT)
    if not isinstance(recipient, str):
        return outgoing
    sender = (outgoing.platform, recipient)
    try:
        owner = (await db.conversation(outgoing.conversation_id or "")).owner
    except (errors.NoSuchSession, errors.InvalidArgument):
        raise errors.SendRefused(LINK_REMOVED) from None
    if await db.contacts.linked_owner(*sender) != owner or not await may_speak(*sender):
        raise errors.SendRefused(LINK_REMOVED)
    address = {name: value for name, value in outgoing.address.items() if name != linked_chats.RECIPIENT}
    if members is not None and not await members.is_direct(address):
        raise errors.SendRefused(NOT_DIRECT)
    return msgspec.structs.replace(outgoing, address=address)


async def fill_code(db: async_db.AsyncSessionDB, outgoing: types.Outgoing) -> types.Outgoing:
    """Insert a new pairing code into a message to a stranger. Raises SendRefused if the stranger needs none."""
    stranger = outgoing.address.get(STRANGER)
    if not isinstance(stranger, str):
        return outgoing
    code = await db.contacts.renew_pairing_code(outgoing.platform, stranger)
    if code is None:
        raise errors.SendRefused(CODE_VOID)
    address = {name: value for name, value in outgoing.address.items() if name != STRANGER}
    return msgspec.structs.replace(outgoing, address=address, text=outgoing.text.replace(CODE, code))
