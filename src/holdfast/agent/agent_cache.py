"""Agents that were built, by conversation and configuration, so that a turn does not build one.

An agent is good while its conversation stands where the agent's last turn left it; when another process wrote,
it reads its context again. That is compared when it is asked for, and before, when a hint comes. Which chat key a
conversation was reached by does not matter. Where the state cannot be read, the agent is used as it is: its turn
compares again, under the lease. One that is dropped is left, as when a person goes on elsewhere: those who want to
hear of the end of a conversation are told.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from time import monotonic

from holdfast import errors
from holdfast.agent import agent as agents
from holdfast.store import notifications

logger = logging.getLogger("holdfast.agent")

SIZE = 128
IDLE = 3600.0

Build = Callable[[str], Awaitable[agents.AIAgent]]
Key = tuple[str, str]


class Cache:
    """At most `size` agents, none unused for longer than `idle` seconds; one that is in a turn is never dropped."""

    def __init__(
        self, build: Build, *, size: int = SIZE, idle: float = IDLE, clock: Callable[[], float] = monotonic
    ) -> None:
        self._build, self._size, self._idle, self._clock = build, size, idle, clock
        self._built: OrderedDict[Key, tuple[agents.AIAgent, float]] = OrderedDict()
        self._building: dict[Key, asyncio.Task[agents.AIAgent]] = {}
        self._leaving = set[asyncio.Task[None]]()
        self._hinted: dict[Key, agents.AIAgent] = {}
        self.comparing: asyncio.Task[None] | None = None
        """At work while there is a hint to look after."""
        self._dropped: list[agents.AIAgent] = []
        """Those that were forgotten while something of theirs was under way."""

    def __len__(self) -> int:
        return len(self._built)

    async def get(self, conversation_id: str, configuration: str = "", *, compare: bool = True) -> agents.AIAgent:
        """The agent of this conversation; of several who ask for one that is not there, one builds it.

        It has seen what others wrote, unless who takes a turn of it next has it look all the same (`compare`).
        """
        key = (conversation_id, configuration)
        found = self._built.get(key)
        if found is None:
            return await self._made(key)
        self._use(key, found[0])
        if compare:
            await _settled(found[0])
        return found[0]

    def peek(self, conversation_id: str, configuration: str = "") -> agents.AIAgent | None:
        """The agent, if it was built."""
        found = self._built.get((conversation_id, configuration))
        return found[0] if found else None

    def every(self) -> list[agents.AIAgent]:
        """All that were built."""
        return [agent for agent, _ in self._built.values()]

    def forget(self, conversation_id: str) -> None:
        """Build anew what is asked for next, as its configuration has changed."""
        for key in [key for key in self._built if key[0] == conversation_id]:
            self._drop(key)

    def heard(self, hint: notifications.Hint) -> None:
        """Somebody else may have written: agents that do nothing now are compared with the store at once."""
        for key, (agent, _) in self._built.items():
            if hint.is_about(key[0]) or hint.is_about(agent.conversation_id):
                self._hinted[key] = agent
        if self._hinted and self.comparing is None:
            self.comparing = asyncio.create_task(self._compare())

    async def _compare(self) -> None:
        """One after the other: hints are no reason to keep the store from those who wait for it."""
        try:
            while self._hinted:
                await _settled(self._hinted.popitem()[1])
        finally:
            self.comparing = None

    async def close(self) -> None:
        """Close all agents, after those that were dropped have said so."""
        if self.comparing is not None:
            self.comparing.cancel()
            await asyncio.wait([self.comparing])
        if self._leaving:
            await asyncio.wait(self._leaving)
        # A turn of one that was dropped is stopped by whoever runs it; nobody else stops what goes on beside turns.
        beside = [agent for agent in self._dropped if not agent.busy]
        for agent in (*beside, *self.every()):
            await agent.close()

    async def _made(self, key: Key) -> agents.AIAgent:
        building = self._building.get(key)
        if building is None:
            building = self._building[key] = asyncio.create_task(self._build_one(key))
            building.add_done_callback(lambda _: self._building.pop(key, None))
        # Whoever stops waiting does not take the agent away from the others.
        return await asyncio.shield(building)

    async def _build_one(self, key: Key) -> agents.AIAgent:
        agent = await self._build(key[0])
        self._use(key, agent)
        return agent

    def _use(self, key: Key, agent: agents.AIAgent) -> None:
        now = self._clock()
        self._built[key] = (agent, now)
        self._built.move_to_end(key)
        for other, (old, used) in list(self._built.items()):
            if len(self._built) <= self._size and now - used <= self._idle:
                break  # The rest was used later.
            if other != key and not old.in_use:
                self._drop(other)

    def _drop(self, key: Key) -> None:
        """Left, not closed: whoever was just given it may begin a turn."""
        dropped = self._built.pop(key)[0]
        self._dropped = [each for each in (*self._dropped, dropped) if each.in_use]
        leaving = asyncio.create_task(dropped.leave())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)


async def _settled(agent: agents.AIAgent) -> None:
    """Let the agent forget its view if somebody else wrote."""
    if agent.busy:
        return
    try:
        found = await agent.db.snapshot(agent.conversation_id)
    except errors.NoSuchSession:
        return  # A conversation is stored with its first message.
    except Exception as error:  # noqa: BLE001 -- the turn compares again, under the lease
        logger.warning("could not compare the agent of %s with the store: %s", agent.conversation_id, error)
        return
    if not agent.busy:
        agent.context_cache.settle(found.epoch, found.last_seq)
