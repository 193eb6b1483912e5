"""Agents that were built, by conversation, so that a turn does not build one.

A cached agent is valid while its conversation is where the agent's last turn left it; if another process wrote, the
agent reads its context again. This is checked when the agent is requested. If the store cannot be read, the agent is
used as it is: its turn checks again under the lease. An agent that is dropped calls its closing hooks.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from time import monotonic

from holdfast import errors
from holdfast.agent import agent as agents

logger = logging.getLogger("holdfast.agent")

MAX_AGENTS = 128
MAX_IDLE_SECONDS = 3600.0

Build = Callable[[str], Awaitable[agents.AIAgent]]


class AgentCache:
    """At most `size` agents, none unused for longer than `idle` seconds; an agent in use is never dropped."""

    def __init__(
        self,
        build: Build,
        *,
        size: int = MAX_AGENTS,
        idle: float = MAX_IDLE_SECONDS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._build, self._size, self._idle, self._clock = build, size, idle, clock
        self._agents: OrderedDict[str, tuple[agents.AIAgent, float]] = OrderedDict()
        """Agents with the time of their last use, the least recently used first."""
        self._builds: dict[str, asyncio.Task[agents.AIAgent]] = {}
        self._leaving = set[asyncio.Task[None]]()
        self._dropped: list[agents.AIAgent] = []
        """Agents that were dropped while they had background work."""

    def __len__(self) -> int:
        return len(self._agents)

    async def get(self, conversation_id: str, *, compare: bool = True) -> agents.AIAgent:
        """Return the agent of a conversation; concurrent callers share one build.

        With `compare`, the agent's context is up to date. A caller that takes a turn next can skip that.
        """
        found = self._agents.get(conversation_id)
        if found is None:
            return await self._build_shared(conversation_id)
        self._use(conversation_id, found[0])
        if compare:
            await _refresh(found[0])
        return found[0]

    def peek(self, conversation_id: str) -> agents.AIAgent | None:
        """Return the agent if it is cached."""
        found = self._agents.get(conversation_id)
        return found[0] if found else None

    def every(self) -> list[agents.AIAgent]:
        """Return all cached agents."""
        return [agent for agent, _ in self._agents.values()]

    def forget(self, conversation_id: str) -> None:
        """Drop the agent of a conversation, because its configuration has changed."""
        if conversation_id in self._agents:
            self._drop(conversation_id)

    async def close(self) -> None:
        """Close all agents, after dropped agents have called their hooks."""
        if self._leaving:
            await asyncio.wait(self._leaving)
        # The turn of a dropped agent is stopped by its runner; its background work has no other owner.
        for agent in (*(each for each in self._dropped if not each.busy), *self.every()):
            await agent.close()

    async def _build_shared(self, conversation_id: str) -> agents.AIAgent:
        async def build() -> agents.AIAgent:
            agent = await self._build(conversation_id)
            self._use(conversation_id, agent)
            return agent

        task = self._builds.get(conversation_id)
        if task is None:
            task = self._builds[conversation_id] = asyncio.create_task(build())
            task.add_done_callback(lambda _: self._builds.pop(conversation_id, None))
        # Shielded: a cancelled caller must not cancel the build for the others.
        return await asyncio.shield(task)

    def _use(self, conversation_id: str, agent: agents.AIAgent) -> None:
        now = self._clock()
        self._agents[conversation_id] = (agent, now)
        self._agents.move_to_end(conversation_id)
        for other, (old, used_at) in list(self._agents.items()):
            if len(self._agents) <= self._size and now - used_at <= self._idle:
                break  # sorted by last use
            if other != conversation_id and not old.in_use:
                self._drop(other)

    def _drop(self, conversation_id: str) -> None:
        """Leave the agent without closing it: a caller that just got it may begin a turn."""
        dropped = self._agents.pop(conversation_id)[0]
        self._dropped = [each for each in (*self._dropped, dropped) if each.in_use]
        task = asyncio.create_task(dropped.leave())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


async def _refresh(agent: agents.AIAgent) -> None:
    """Invalidate the agent's context if another process wrote."""
    if agent.busy:
        return
    try:
        snapshot = await agent.db.snapshot(agent.conversation_id)
    except errors.NoSuchSession:
        return  # the conversation is created with its first message
    except Exception as error:  # noqa: BLE001 -- the turn checks again, under the lease
        logger.warning("could not check the cached agent of %s: %s", agent.conversation_id, error)
        return
    if not agent.busy:
        agent.context_cache.compare(snapshot.epoch, snapshot.last_seq)
