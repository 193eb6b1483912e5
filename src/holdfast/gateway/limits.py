"""Rate limits per chat and per sender, and size limits. A message over a limit is not stored.

Messages are counted in the store, so that the limits hold for all processes together. Two messages that arrive
concurrently may both be accepted as the last one.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

from holdfast.agent import commands
from holdfast.gateway import platform, settings
from holdfast.store import async_db, validation

MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0
MAX_REMEMBERED = 10_000
HTTP = "http"
OVER_LIMIT = "Rate limit exceeded: at most {limit} messages per {period} from one {who}. Send it again {later}."
TOO_LONG = "The message is too long: at most {limit:,} characters."
TOO_LARGE = "The files are too large: at most {limit:,} kilobytes per message."
_PERIODS = {MINUTE: ("minute", "in a minute"), DAY: ("day", "tomorrow")}


def size_error(incoming: platform.Incoming, max_kilobytes: int) -> str:
    """Return why a message is too large; empty if it is not. Pure."""
    if len(incoming.text) > validation.MAX_TEXT:
        return TOO_LONG.format(limit=validation.MAX_TEXT)
    size = max(incoming.stated_bytes, sum(len(each.data) for each in incoming.attachments))
    if size > max_kilobytes * 1_000:
        return TOO_LARGE.format(limit=max_kilobytes)
    return ""


def allowance(limit: int, text: str) -> int:
    """Return how many messages may precede this one: commands that act on a running turn have a reserve. Pure."""
    return 2 * limit if commands.runs_during_turn(text) else limit


class Cooldown:
    """Remembers what was done lately, so that a flood of messages does not cause a flood of answers."""

    def __init__(self) -> None:
        self._begun: OrderedDict[Hashable, float] = OrderedDict()

    def begin(self, subject: Hashable, seconds: float, now: float) -> bool:
        """Return whether nothing was begun for a subject in the last seconds; it is begun then."""
        before = self._begun.get(subject)
        if before is not None and before <= now < before + seconds:
            return False
        self._begun[subject] = now
        self._begun.move_to_end(subject)
        if len(self._begun) > MAX_REMEMBERED:
            self._begun.popitem(last=False)
        return True


class RateLimits:
    """The admission check for limits. A sender over a limit is notified once per period."""

    def __init__(
        self, db: async_db.AsyncSessionDB, wanted: settings.GatewayLimits, clock: Callable[[], float] = time.time
    ) -> None:
        self._db, self._clock, self._max_kilobytes = db, clock, wanted.attachments
        self._per_chat = ((wanted.minute, MINUTE), (wanted.day, DAY))
        self._per_sender = ((wanted.person_minute, MINUTE), (wanted.person_day, DAY))
        self._notified = Cooldown()

    async def __call__(self, incoming: platform.Incoming, route: str) -> platform.AdmissionResult:
        if message := size_error(incoming, self._max_kilobytes):
            return platform.AdmissionResult(False, "size", message)
        now, mail = self._clock(), self._db.mail
        # An HTTP client chooses its chats, so a limit per chat would not restrict it.
        for limit, seconds in self._per_chat if incoming.platform != HTTP else ():
            if await mail.count_inbound_on(route, now - seconds) >= allowance(limit, incoming.text):
                return self._refuse(route, limit, seconds, "chat", now)
        for limit, seconds in self._per_sender:
            count = await mail.count_inbound_from(incoming.platform, incoming.sender, now - seconds)
            if count >= allowance(limit, incoming.text):
                return self._refuse(f"{incoming.platform}:{incoming.sender}", limit, seconds, "person", now)
        return platform.AdmissionResult(True)

    def _refuse(self, subject: str, limit: int, seconds: float, who: str, now: float) -> platform.AdmissionResult:
        period, later = _PERIODS[seconds]
        message = OVER_LIMIT.format(limit=limit, period=period, who=who, later=later)
        message = message if self._notified.begin((subject, seconds), seconds, now) else ""
        return platform.AdmissionResult(False, "limit", message, min(seconds, HOUR))
