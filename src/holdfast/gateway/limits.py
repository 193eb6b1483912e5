"""Limits: how much may come in from one chat, and from one person. What is too much is never stored, so that nobody is
made to work on it.

What came in is counted in the store, so that the count is one for all processes and outlives them. Two that come at
the very same moment may both be counted as the last one that is allowed.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from holdfast.agent import commands
from holdfast.gateway import busy_policy, platform, settings
from holdfast.store import async_db, validation

MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0
MOST_TOLD = 10_000
OVER_HTTP = "http"
SLOWLY = "That was a lot at once. I take {most} messages a minute from one chat; please send this again in a minute."
ENOUGH = "That was a lot for one day. I take {most} messages a day from one chat; please send this again tomorrow."
SLOWLY_YOU = (
    "That was a lot at once. I take {most} messages a minute from one person; please send this again in a minute."
)
ENOUGH_YOU = (
    "That was a lot for one day. I take {most} messages a day from one person; please send this again tomorrow."
)
TOO_LONG = "That is too long: a message has at most {most:,} characters."
TOO_LARGE = "That is too large: the files of one message have at most {most:,} kilobytes together."


def oversized(came: platform.Came, kilobytes: int) -> str:
    """Why this can never be taken, whoever sends it; empty where it can. Pure."""
    if len(came.text) > validation.MAX_TEXT:
        return TOO_LONG.format(most=validation.MAX_TEXT)
    if sum(len(each.data) for each in came.attachments) > kilobytes * 1_000:
        return TOO_LARGE.format(most=kilobytes)
    return ""


def allowance(limit: int, text: str) -> int:
    """How many may have come before this one. Who has said too much can still say stop, and answer a question. Pure."""
    urgent = commands.is_command(text) and commands.split(text)[0].lower() in busy_policy.AT_ONCE
    return 2 * limit if urgent else limit


class Limits:
    """A guard of the door. Whoever is over a limit is told so once in its time: answers are no less of a flood."""

    def __init__(
        self, db: async_db.AsyncSessionDB, said: settings.Limits, clock: Callable[[], float] = time.time
    ) -> None:
        self._db, self._clock, self._kilobytes = db, clock, said.attachments
        self._kinds = ((said.minute, MINUTE, SLOWLY), (said.day, DAY, ENOUGH))
        self._of_person = ((said.person_minute, MINUTE, SLOWLY_YOU), (said.person_day, DAY, ENOUGH_YOU))
        self._told: OrderedDict[tuple[str, float], float] = OrderedDict()

    async def __call__(self, came: platform.Came, route: str) -> platform.Verdict:
        if too := oversized(came, self._kilobytes):
            return platform.Verdict(False, say=too, why="size")
        now = self._clock()
        # A client over HTTP chooses its chat: a limit of one would only hold for clients that keep to theirs.
        for limit, seconds, said in self._kinds if came.platform != OVER_HTTP else ():
            if await self._db.mail.count_inbound_on(route, now - seconds) >= allowance(limit, came.text):
                return self._over(route, limit, seconds, said, now)
        # A request chooses its chat: who has many is still one person.
        for limit, seconds, said in self._of_person:
            if await self._db.mail.count_inbound_from(came.platform, came.sender, now - seconds) >= allowance(
                limit, came.text
            ):
                return self._over(f"{came.platform}:{came.sender}", limit, seconds, said, now)
        return platform.Verdict(True)

    def _over(self, whose: str, limit: int, seconds: float, said: str, now: float) -> platform.Verdict:
        told = said.format(most=limit) if self._first(whose, seconds, now) else ""
        return platform.Verdict(False, say=told, why="limit", retry_after=min(seconds, HOUR))

    def _first(self, route: str, seconds: float, now: float) -> bool:
        before = self._told.get((route, seconds))
        if before is not None and before <= now < before + seconds:
            return False
        self._told[route, seconds] = now
        self._told.move_to_end((route, seconds))
        if len(self._told) > MOST_TOLD:
            self._told.popitem(last=False)
        return True
