"""What the parts of a gateway share, and the settings of how it works."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from holdfast import types
from holdfast.gateway import busy_policy, metrics, platform, reset_policy, route_keys, runtimes
from holdfast.store import async_db


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a gateway works on what came in."""

    busy: busy_policy.Mode = "queue"
    """What becomes of a message that comes during a turn of its chat."""
    reset: reset_policy.Policy = reset_policy.Policy()
    """When a chat begins anew by itself."""
    attempts: int = 5
    """How often work on a message is begun before it is given up."""
    answer_within: float = 600.0
    """Seconds a question waits for /approve or /deny; after them the answer is no."""
    most: int = 200
    """How many chats are worked on at once."""


async def nobody(_platform: str, _sender: str) -> bool:
    """Nobody is an admin."""
    return False


async def everybody(_platform: str, _sender: str) -> bool:
    """Whoever was let in may speak for as long as they like."""
    return True


class Place(NamedTuple):
    """Where replies go, and what else is said meanwhile."""

    platform: str
    chat: str
    address: dict[str, object]
    by: str
    """The platform the message came from. On another platform a question cannot be answered."""


class House(NamedTuple):
    """The store, the desks where turns are taken, and the platforms of this process by name."""

    db: async_db.AsyncSessionDB
    desks: runtimes.Desks
    platforms: Mapping[str, platform.Platform]
    speaking: dict[str, Place]
    """The chats whose turns run now, by conversation."""
    settings: Settings = Settings()
    is_admin: platform.IsAdmin = nobody
    goes_out: Callable[[str], object] = lambda _: None
    """Called with a platform when there may be something to send by it."""
    clock: Callable[[], float] = time.time
    meter: metrics.Meter = metrics.Meter()
    """Counts what happens; by default one that nobody reads."""
    profile: str = "main"
    """Whose chats are worked on here; what is there of another one is left alone."""
    able: Mapping[str, platform.Abilities] = {}
    """What the platforms of this process can do, by name."""
    may_speak: platform.IsAdmin = everybody
    """Asked again about a message that waited for long: somebody may have been denied meanwhile."""

    def serves(self, route: str) -> bool:
        """Whether a chat is one to be worked on here."""
        return route_keys.is_of(self.profile, route)


def place_of(came: types.InboundMessage | types.Home) -> Place:
    """Where the answer to something goes: there, and nowhere else."""
    if isinstance(came, types.InboundMessage):
        return Place(came.home, came.chat, came.address, came.platform)
    return Place(came.platform, came.chat, came.address, route_keys.platform(came.route))
