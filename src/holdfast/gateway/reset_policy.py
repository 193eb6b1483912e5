"""When a chat begins anew by itself: never, after a time without a word, or at an hour of the day. Pure.

Nothing is ended or lost by it: the chat's next message begins a new conversation, and /resume goes back.
"""

from __future__ import annotations

import time
from typing import Literal

import msgspec

DAY = 86_400.0


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When the next message of a chat begins a new conversation."""

    when: Literal["none", "idle", "daily"] = "none"
    hours: float = 24.0
    """With `idle`: after so many hours without a message."""
    hour: int = 4
    """With `daily`: at this hour, by the clock of the machine."""


def due(policy: Policy, last: float, now: float) -> bool:
    """Whether a message that comes now begins a new conversation, where the last word was said at `last`."""
    match policy.when:
        case "none":
            return False
        case "idle":
            return now - last >= policy.hours * 3600
        case "daily":
            return last < _latest(policy.hour, now) <= now


def _latest(hour: int, now: float) -> float:
    """The last time it was this hour. By the calendar: a day may have 23 hours or 25."""
    here = time.localtime(now)
    for back in (0, 1, 2):
        found = time.mktime((here.tm_year, here.tm_mon, here.tm_mday - back, hour, 0, 0, 0, 0, -1))
        if found <= now:
            return found
    return now - DAY  # Only where clocks went back by more than a day.
