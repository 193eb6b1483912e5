"""Rate limits per chat and per sender, and size limits. A message over a limit is not stored.

Messages are counted in the store, so that the limits hold for all processes together. Two messages that arrive
concurrently may both be accepted as the last one.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from holdfast.gateway import message_policy, platform, settings
from holdfast.store import async_db, validation

MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0
MAX_NOTIFIED = 10_000
HTTP = "http"
OVER_LIMIT = "Rate limit exceeded: at most {limit} messages per {period} from one {who}. Send it again {later}."
TOO_LONG = "The message is too long: at most {limit:,} characters."
TOO_LARGE = "The files are too large: at most {limit:,} kilobytes per message."
_PERIODS = {MINUTE: ("minute", "in a minute"), DAY: ("day", "tomorrow")}


def size_error(incoming: platform.Incoming, max_kilobytes: int) -> str:
    """Return why a message is too large; empty if it is not. Pure."""
    if len(incoming.text) > validation.MAX_TEXT:
        return TOO_LONG.format(limit=validation.MAX_TEXT)
    if sum(len(each.data) for each in incoming.attachments) > max_kilobytes * 1_000:
        return TOO_LARGE.format(limit=max_kilobytes)
    return ""


def allowance(limit: int, text: str) -> int:
    """Return how many messages may precede this one: urgent commands, such as /stop, have a reserve. Pure."""
    return 2 * limit if message_policy.is_urgent(text) else limit


class RateLimits:
    """The admission check for limits. A sender over a limit is notified once per period."""

    def __init__(
        self, db: async_db.AsyncSessionDB, wanted: settings.GatewayLimits, clock: Callable[[], float] = time.time
    ) -> None:
        self._db, self._clock, self._max_kilobytes = db, clock, wanted.attachments
        self._per_chat = ((wanted.minute, MINUTE), (wanted.day, DAY))
        self._per_sender = ((wanted.person_minute, MINUTE), (wanted.person_day, DAY))
        self._notified: OrderedDict[tuple[str, float], float] = OrderedDict()

    async def __call__(self, incoming: platform.Incoming, route: str) -> platform.Verdict:
        if message := size_error(incoming, self._max_kilobytes):
            return platform.Verdict(False, message=message, reason="size")
        now, mail = self._clock(), self._db.mail
        # An HTTP client chooses its chats, so a limit per chat would not restrict it.
        for limit, seconds in self._per_chat if incoming.platform != HTTP else ():
            if await mail.count_inbound_on(route, now - seconds) >= allowance(limit, incoming.text):
                return self._refuse(route, limit, seconds, "chat", now)
        for limit, seconds in self._per_sender:
            count = await mail.count_inbound_from(incoming.platform, incoming.sender, now - seconds)
            if count >= allowance(limit, incoming.text):
                return self._refuse(f"{incoming.platform}:{incoming.sender}", limit, seconds, "person", now)
        return platform.Verdict(True)

    def _refuse(self, subject: str, limit: int, seconds: float, who: str, now: float) -> platform.Verdict:
        period, later = _PERIODS[seconds]
        message = OVER_LIMIT.format(limit=limit, period=period, who=who, later=later)
        message = message if self._should_notify(subject, seconds, now) else ""
        return platform.Verdict(False, message=message, reason="limit", retry_after=min(seconds, HOUR))

    def _should_notify(self, subject: str, seconds: float, now: float) -> bool:
        before = self._notified.get((subject, seconds))
        if before is not None and before <= now < before + seconds:
            return False
        self._notified[subject, seconds] = now
        self._notified.move_to_end((subject, seconds))
        if len(self._notified) > MAX_NOTIFIED:
            self._notified.popitem(last=False)
        return True
