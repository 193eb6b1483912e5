"""Access: who may talk to the agent. Nobody, unless the settings or an operator allow it.

Senders are identified by the id that their platform assigns, compared exactly; display names do not matter. A denial
in any place overrides a permission in any other. A pairing code is created at the moment it is sent, so no stored
message contains one; a message that is sent twice contains a new code, and the first one becomes invalid.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from urllib.parse import unquote

import msgspec

from holdfast import errors, types
from holdfast.gateway import platform as gateway_platform
from holdfast.gateway import settings
from holdfast.store import async_db

logger = logging.getLogger("holdfast.gateway")

AUTHENTICATED = frozenset({"http", "hooks", "loopback"})
"""Platforms whose clients have authenticated already: by a token, a secret, or a file of the gateway's user."""
UNKNOWN = "You don't have access to this agent. Ask its owner to allow you."
PAIR = (
    "You don't have access to this agent yet. Give its owner this pairing code: {code}\n"
    "The owner runs: holdfast gateway pair {code}\nThe code is valid for one hour and can be used once."
)
HOME_NOT_ALLOWED = (
    "The reply would go to {chat} on {platform}, which has no access. "
    "Allow it: holdfast gateway allow {platform} {chat}"
)
STRANGER = "stranger"
"""The field of an address that names the sender whom a pairing code is for."""
CODE = "{code}"
CODE_VOID = "The pairing code expired, or was used or withdrawn, before it was sent."
GREETING_SECONDS = 60.0
MAX_GREETED = 10_000

REFUSED = gateway_platform.Verdict(False)


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


def evaluate(
    rules: Rules, platform: str, sender: str, contact: types.Contact | None
) -> gateway_platform.Verdict | None:
    """Return whether a sender has access; None for a stranger. Pure."""
    if sender in rules.deny.get(platform, ()) or (contact is not None and contact.role == "denied"):
        return REFUSED
    if sender in rules.admins.get(platform, ()) or (contact is not None and contact.role == "admin"):
        return gateway_platform.Verdict(True, admin=True)
    allowed = rules.allow.get(platform, frozenset())
    is_known = contact is not None or sender in allowed or settings.EVERYBODY in allowed
    return gateway_platform.Verdict(True) if is_known or platform in rules.authenticated else None


class Access:
    """The admission check for access. Contacts are read each time, so a change takes effect immediately."""

    def __init__(self, db: async_db.AsyncSessionDB, rules: Rules, clock: Callable[[], float] = time.monotonic) -> None:
        self._db, self._rules, self._clock = db, rules, clock
        self._greeted: OrderedDict[tuple[str, str], float] = OrderedDict()
        """Strangers handled lately: a flood of their messages must not cause a flood of writes."""

    async def __call__(self, incoming: gateway_platform.Incoming, route: str) -> gateway_platform.Verdict:  # noqa: ARG002 -- the protocol of checks
        try:
            found = await self._evaluate(incoming.platform, incoming.sender)
        except errors.InvalidArgument:
            logger.warning("rejected a message on %s with an invalid sender id", errors.shown(incoming.platform))
            return REFUSED
        if found is not None:
            return await self._check_home(incoming) if found.allowed and incoming.home is not None else found
        # In a group everybody could read the code and use it.
        if incoming.kind != "dm" or not self._should_greet(incoming.platform, incoming.sender):
            return REFUSED
        message = await self._greeting(incoming)
        return gateway_platform.Verdict(False, message=message, with_code=message == PAIR)

    async def _check_home(self, incoming: gateway_platform.Incoming) -> gateway_platform.Verdict:
        """A message whose reply goes to another platform is accepted only if that chat has access, too."""
        platform, chat = incoming.home or incoming.platform, unquote(incoming.home_chat.removeprefix("dm:"))
        if chat in self._rules.shared.get(platform, ()) and chat not in self._rules.deny.get(platform, ()):
            return gateway_platform.Verdict(True)
        found = await self._evaluate(platform, chat)
        if found is not None and found.allowed:
            return found
        logger.warning("the reply to %s would go to %s, which has no access", errors.shown(incoming.sender), chat)
        return gateway_platform.Verdict(False, message=HOME_NOT_ALLOWED.format(platform=platform, chat=chat))

    async def is_admin(self, platform: str, sender: str) -> bool:
        try:
            found = await self._evaluate(platform, sender)
        except errors.InvalidArgument:
            return False
        return found is not None and found.allowed and found.admin

    async def may_speak(self, platform: str, sender: str) -> bool:
        """Return whether a sender who had access was not denied it since."""
        return await self._evaluate(platform, sender) != REFUSED

    async def _evaluate(self, platform: str, sender: str) -> gateway_platform.Verdict | None:
        return evaluate(self._rules, platform, sender, await self._db.contacts.get(platform, sender))

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

    def _should_greet(self, platform: str, sender: str) -> bool:
        now = self._clock()
        if now < self._greeted.get((platform, sender), now):
            return False
        self._greeted[platform, sender] = now + GREETING_SECONDS
        self._greeted.move_to_end((platform, sender))
        if len(self._greeted) > MAX_GREETED:
            self._greeted.popitem(last=False)
        return True


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
