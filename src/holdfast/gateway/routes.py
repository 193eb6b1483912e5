"""Routes: the key of each chat, its owner, and the conversation it is bound to.

A key is `agent:<profile>:<platform>:<dm|group|thread>:<ids>`. Every part is quoted, so no id can form the key of
another chat. In groups and threads each sender has a separate conversation, marked by `@` (no quoted id begins with
it), unless the group is shared.

An ordinary message does not write the route: a conversation takes its route with its first message. Only /new,
/resume, /branch and a reset bind a route, by compare-and-swap.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import blake2b
from typing import NamedTuple
from urllib.parse import quote, unquote

from holdfast import errors, types
from holdfast.gateway import platform as gateway_platform
from holdfast.gateway import settings
from holdfast.store import async_db, conversation_row

MAX_PART = 60
"""The longest part of a key in characters; a longer one is replaced by its digest."""
DAY_SECONDS = 86_400.0


def route_of(profile: str, incoming: gateway_platform.Incoming, shared: bool = False) -> str:
    """Return the route key of the chat of a message."""
    ids = [*map(quote_part, incoming.chat)]
    if incoming.kind != "dm" and not shared:
        ids.append(f"@{quote_part(incoming.sender)}")
    return ":".join(["agent", quote_part(profile), quote_part(incoming.platform), incoming.kind, *ids])


def has_profile(profile: str, route: str) -> bool:
    return route.startswith(f"agent:{quote_part(profile)}:")


class Principal(NamedTuple):
    """The sender or shared group that a turn runs for, and the owner of its conversations."""

    identity: str
    """The sender, or the shared group. It decides about tools and permissions."""
    owner: str
    """The owner of conversations and notes: the identity, or the owner that it is linked to."""
    linked: bool = False
    """Whether the sender has a link, so that turns are copied to other linked chats."""

    def may_read(self, owner: str) -> bool:
        """Return whether the conversations of an owner belong to the principal."""
        return owner in (self.identity, self.owner)


def principal_of(chat: types.InboundMessage | types.Home) -> Principal:
    """Return the principal of a message. A link applies to direct chats, where only the sender reads the replies."""
    identity = identity_of(chat.route, platform_of(chat.route), chat.sender)
    if chat.linked_owner is None or not is_direct(chat.route):
        return Principal(identity, identity)
    return Principal(identity, chat.linked_owner, linked=True)


def identity_of(route: str, platform: str, sender: str) -> str:
    """Return the sender of a message on a route, or the group if it is shared."""
    if is_shared(route):
        return f"{quote_part(platform)}:group:{route.split(':')[4]}"
    return f"{quote_part(platform)}:{quote_part(sender)}"


def is_direct(route: str) -> bool:
    return route.split(":")[3] == "dm"


def is_shared(route: str) -> bool:
    """Return whether several people share the conversation of a route."""
    _, _, _, kind, *ids = route.split(":")
    return kind != "dm" and not ids[-1].startswith("@")


def chat_of(incoming: gateway_platform.Incoming) -> str:
    """Return the name of the chat within its platform. Messages to one chat are sent in order."""
    return ":".join([incoming.kind, *map(quote_part, incoming.chat)])


def platform_of(route: str) -> str:
    return unquote(route.split(":")[2])


def quote_part(part: str) -> str:
    """Quote a part of a key. No quoted id is empty or begins with `@` or `=`."""
    quoted = quote(part, safe="", errors="surrogatepass") or "%"
    return quoted if len(quoted) <= MAX_PART else f"={blake2b(quoted.encode(), digest_size=20).hexdigest()}"


def is_reset_due(policy: settings.ResetPolicy, last: float, now: float) -> bool:
    """Return whether a message at `now` begins a new conversation, if the last message was at `last`. Pure."""
    match policy.when:
        case "none":
            return False
        case "idle":
            return now - last >= policy.hours * 3600
        case "daily":
            return last < _latest(policy.hour, now) <= now


def _latest(hour: int, now: float) -> float:
    """Return the last time that the local clock showed this hour. A day may have 23 or 25 hours."""
    today = time.localtime(now)
    for days in (0, 1, 2):
        found = time.mktime((today.tm_year, today.tm_mon, today.tm_mday - days, hour, 0, 0, 0, 0, -1))
        if found <= now:
            return found
    return now - DAY_SECONDS  # Only if the clock was set back by more than a day.


class RouteBindings:
    """Finds and changes the conversation of a route."""

    def __init__(self, db: async_db.AsyncSessionDB, policy: settings.ResetPolicy, clock: Callable[[], float]) -> None:
        self._db, self._policy, self._clock = db, policy, clock

    async def target(self, route: str, principal: Principal) -> str:
        """Return the conversation of the next message on a route; a new id if the message begins one."""
        while True:
            found = await self._db.route(route)
            if (known := self.known_target(found, principal)) is not None:
                return known
            if principal.may_read(found.owner) and not await self._needs_reset(str(found.conversation_id)):
                return str(found.conversation_id)
            try:
                await self._db.bind_route(route, None, version=found.version)
            except errors.RouteMoved:
                continue  # Another process bound it concurrently.

    def known_target(self, route: types.Route, principal: Principal) -> str | None:
        """Return the conversation of the next message if no further reads are needed: see `target`.

        The conversation of another owner is not continued: the sender was linked to that owner before.
        """
        if route.conversation_id is None:
            return conversation_row.generate_session_id(self._clock())
        return route.conversation_id if self._policy.when == "none" and principal.may_read(route.owner) else None

    async def other_target(self, route: str, target: str, principal: Principal) -> str | None:
        """Return the conversation that took the route before `target` was created; None if there is none."""
        found = await self._db.route(route)
        if found.conversation_id == target or not principal.may_read(found.owner) or await self._exists(target):
            return None
        return found.conversation_id

    async def move(self, route: str, target: str | None) -> None:
        """Continue a chat in another conversation; None: a new one. Raises RouteMoved if another process was first."""
        found = await self._db.route(route)
        if found.conversation_id != target:
            await self._db.bind_route(route, target, version=found.version)

    async def _needs_reset(self, conversation_id: str) -> bool:
        """Return whether the chat begins anew; never while a background process of the conversation runs."""
        last = (await self._db.head(conversation_id)).active_at
        if not is_reset_due(self._policy, last, self._clock()):
            return False
        return not await self._db.processes.all(conversation_id, running_only=True)

    async def _exists(self, conversation_id: str) -> bool:
        """Return whether a conversation exists or was deleted: its id is not used again."""
        try:
            await self._db.snapshot(conversation_id)
        except errors.ConversationDeleted:
            return True
        except errors.NoSuchSession:
            return False
        return True
