"""Access: who may talk to the agent. Nobody, unless settings name them or somebody let them in.

People are known by the id that their platform gives them, compared letter by letter: what they are called, how they
spell it and what they write changes nothing. Denied beats allowed, wherever each of them is said.
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

OF_ITSELF = frozenset({"http", "hooks", "loopback"})
"""Platforms that whoever runs this has given a key to already: a token, a secret, or a file only they can open."""
UNKNOWN = "I do not know you, so I do not talk to you. Whoever runs me can let you in."
PAIR = (
    "I do not know you yet. To be let in, give this code to whoever runs me: {code}\n"
    "They run: holdfast gateway pair {code}\nIt is good for an hour, and once."
)
ELSEWHERE = "Answers would go to {chat} on {platform}, who was not let in: holdfast gateway allow {platform} {chat}"
MOMENT = 60.0
MOST_HEARD = 10_000

REFUSED = gateway_platform.Verdict(False)


class Rules(msgspec.Struct, frozen=True):
    """What settings say of people: by platform, their ids."""

    allow: Mapping[str, frozenset[str]] = {}
    deny: Mapping[str, frozenset[str]] = {}
    admins: Mapping[str, frozenset[str]] = {}
    shared: Mapping[str, frozenset[str]] = {}
    strangers: str = "pair"
    of_itself: frozenset[str] = OF_ITSELF


def rules(said: settings.Settings) -> Rules:
    """The rules of these settings."""
    allow, deny, admins, shared = map(settings.ids, (said.allow, said.deny, said.admins, said.shared))
    return Rules(allow, deny, admins, shared, said.strangers)


def judged(rules: Rules, platform: str, sender: str, person: types.Contact | None) -> gateway_platform.Verdict | None:
    """Whether somebody may speak, and as what. None: a stranger. Pure."""
    if sender in rules.deny.get(platform, ()) or (person is not None and person.role == "denied"):
        return REFUSED
    if sender in rules.admins.get(platform, ()) or (person is not None and person.role == "admin"):
        return gateway_platform.Verdict(True, admin=True)
    allowed = rules.allow.get(platform, frozenset())
    known = person is not None or sender in allowed or settings.EVERYBODY in allowed
    return gateway_platform.Verdict(True) if known or platform in rules.of_itself else None


class Access:
    """A guard of the door, and who is an admin. People are looked up each time: what is said now counts now."""

    def __init__(self, db: async_db.AsyncSessionDB, rules: Rules, clock: Callable[[], float] = time.monotonic) -> None:
        self._db, self._rules, self._clock = db, rules, clock
        self._heard: OrderedDict[tuple[str, str], float] = OrderedDict()
        """Strangers who were answered, or not, a moment ago: a flood of theirs is none of writes."""

    async def __call__(self, came: gateway_platform.Came, route: str) -> gateway_platform.Verdict:  # noqa: ARG002 -- a guard is told both
        try:
            found = await self._verdict(came.platform, came.sender)
        except errors.InvalidArgument:
            # No platform gives such an id; whoever does has made it up.
            logger.warning("somebody came to %s under an id that nobody can have", errors.shown(came.platform))
            return REFUSED
        if found is not None:
            return await self._there(came) if found.allowed and came.home is not None else found
        # In a group everybody would read the code, and whoever is first would be let in by it.
        if came.kind != "dm" or not self._first(came.platform, came.sender):
            return REFUSED
        said = await self._greeting(came)
        return gateway_platform.Verdict(False, say=said, pairs=said == PAIR)

    async def _there(self, came: gateway_platform.Came) -> gateway_platform.Verdict:
        """What is answered in a chat of another platform is taken only where that chat may talk to the agent, too."""
        platform, chat = came.home or came.platform, unquote(came.to.removeprefix("dm:"))
        if chat in self._rules.shared.get(platform, ()) and chat not in self._rules.deny.get(platform, ()):
            return gateway_platform.Verdict(True)
        found = await self._verdict(platform, chat)
        if found is not None and found.allowed:
            return found
        logger.warning("%s has an answer for %s, which nobody let in", errors.shown(came.sender), errors.shown(chat))
        return gateway_platform.Verdict(False, say=ELSEWHERE.format(platform=platform, chat=chat))

    async def is_admin(self, platform: str, sender: str) -> bool:
        """Whether somebody may give the commands that are for admins."""
        try:
            found = await self._verdict(platform, sender)
        except errors.InvalidArgument:
            return False
        return found is not None and found.allowed and found.admin

    async def may_speak(self, platform: str, sender: str) -> bool:
        """Whether somebody who was let in is not denied by now."""
        return await self._verdict(platform, sender) != REFUSED

    async def _verdict(self, platform: str, sender: str) -> gateway_platform.Verdict | None:
        return judged(self._rules, platform, sender, await self._db.contacts.get(platform, sender))

    async def _greeting(self, came: gateway_platform.Came) -> str:
        """What a stranger is told. Each code is told, which is one in ten minutes; anything else, once."""
        if self._rules.strangers == "silence":
            return ""
        if self._rules.strangers == "pair":
            # That code is told to nobody: another is made when this is sent.
            code = await self._db.contacts.create_pairing_code(came.platform, came.sender, came.name)
            if code is not None:
                logger.info("a stranger came to %s, and is given a code to be let in by", came.platform)
                await self._db.contacts.mark_stranger_notified(came.platform, came.sender)
                return PAIR
        return UNKNOWN if await self._db.contacts.mark_stranger_notified(came.platform, came.sender) else ""

    def _first(self, platform: str, sender: str) -> bool:
        """Whether somebody was not heard for a while."""
        now = self._clock()
        if now < self._heard.get((platform, sender), now):
            return False
        self._heard[platform, sender] = now + MOMENT
        self._heard.move_to_end((platform, sender))
        if len(self._heard) > MOST_HEARD:
            self._heard.popitem(last=False)
        return True
