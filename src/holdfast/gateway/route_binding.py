"""Which conversation a chat is in: what its route names, or one that is still to be born.

An ordinary message writes no route: a conversation takes its route with its first message. Only /new, /resume,
/branch and a reset bind one, by compare-and-swap.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from holdfast import errors, events, types
from holdfast.gateway import reset_policy
from holdfast.store import async_db, conversation_row

MOST = 10_000


class Binding:
    """The routes of a store. What is remembered here is only how conversations to come are to be called."""

    def __init__(self, db: async_db.AsyncSessionDB, policy: reset_policy.Policy, clock: Callable[[], float]) -> None:
        self._db, self._policy, self._clock = db, policy, clock
        self._to_come: OrderedDict[str, str] = OrderedDict()

    async def target(self, route: str) -> str:
        """The conversation that a message on this route belongs to; a new id where it begins one."""
        while True:
            found = await self._db.route(route)
            if found.conversation_id is None:
                return await self._coming(route)
            if not await self._is_over(found.conversation_id):
                return found.conversation_id
            try:
                await self._db.bind_route(route, None, version=found.version)
            except errors.RouteMoved:
                continue  # Somebody else bound it meanwhile: that stands.

    def plainly(self, route: types.Route) -> str | None:
        """The conversation that a message on this route belongs to, where that takes no thinking: see `target`."""
        return route.conversation_id if self._policy.when == "none" else None

    async def elsewhere(self, route: str, target: str) -> str | None:
        """The conversation that took the route before this one was born; None where none did."""
        found = (await self._db.route(route)).conversation_id
        return None if found == target or await self._is_there(target) else found

    async def move(self, route: str, moved: events.Moved) -> None:
        """Whoever is in this chat goes on elsewhere. RouteMoved where somebody else bound it first."""
        found = await self._db.route(route)
        there = None if moved.new else moved.conversation_id
        if moved.new:
            self._remember(route, moved.conversation_id)
        if found.conversation_id != there:
            await self._db.bind_route(route, there, version=found.version)

    async def _is_over(self, conversation_id: str) -> bool:
        """Whether the chat begins anew; never while a process of the conversation runs, whose end is told there."""
        if self._policy.when == "none":
            return False
        last = (await self._db.head(conversation_id)).active_at
        if not reset_policy.due(self._policy, last, self._clock()):
            return False
        return not await self._db.processes.all(conversation_id, running_only=True)

    async def _is_there(self, conversation_id: str) -> bool:
        """Also of one that was there: no other ever has its id."""
        try:
            await self._db.snapshot(conversation_id)
        except errors.ConversationDeleted:
            return True
        except errors.NoSuchSession:
            return False
        return True

    async def _coming(self, route: str) -> str:
        """The same each time until it is there: a title may be waiting for it."""
        coming = self._to_come.get(route)
        if coming is None or await self._is_there(coming):
            coming = self._remember(route, conversation_row.generate_session_id(self._clock()))
        return coming

    def _remember(self, route: str, conversation_id: str) -> str:
        self._to_come[route] = conversation_id
        self._to_come.move_to_end(route)
        if len(self._to_come) > MOST:
            self._to_come.popitem(last=False)
        return conversation_id
