"""Agents that were built, by conversation and configuration, so that a turn does not build one.

A cached agent is valid while its conversation is where the agent's last turn left it; if another process wrote, the
agent reads its context again. This is checked when the agent is requested, and earlier when a notification arrives. If
the store cannot be read, the agent is used as it is: its turn checks again under the lease. An agent that is dropped
calls its closing hooks.
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

MAX_AGENTS = 128
MAX_IDLE_SECONDS = 3600.0

Build = Callable[[str], Awaitable[agents.AIAgent]]
Key = tuple[str, str]


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
        self._agents: OrderedDict[Key, tuple[agents.AIAgent, float]] = OrderedDict()
        self._builds: dict[Key, asyncio.Task[agents.AIAgent]] = {}
        self._leaving = set[asyncio.Task[None]]()
        self._outdated: dict[Key, agents.AIAgent] = {}
        self.check_task: asyncio.Task[None] | None = None
        """Checks agents after a notification; None while there is nothing to check."""
        self._dropped: list[agents.AIAgent] = []
        """Agents that were dropped while they had background work."""

    def __len__(self) -> int:
        return len(self._agents)

    async def get(self, conversation_id: str, configuration: str = "", *, compare: bool = True) -> agents.AIAgent:
        """Return the agent of a conversation; concurrent callers share one build.

        With `compare`, the agent's context is up to date. A caller that takes a turn next can skip that.
        """
        key = (conversation_id, configuration)
        found = self._agents.get(key)
        if found is None:
            return await self._build_shared(key)
        self._use(key, found[0])
        if compare:
            await _refresh(found[0])
        return found[0]

    def peek(self, conversation_id: str, configuration: str = "") -> agents.AIAgent | None:
        """Return the agent if it is cached."""
        found = self._agents.get((conversation_id, configuration))
        return found[0] if found else None

    def every(self) -> list[agents.AIAgent]:
        """Return all cached agents."""
        return [agent for agent, _ in self._agents.values()]

    def forget(self, conversation_id: str) -> None:
        """Drop the agents of a conversation, because its configuration has changed."""
        for key in [key for key in self._agents if key[0] == conversation_id]:
            self._drop(key)

    def on_hint(self, hint: notifications.Hint) -> None:
        """Check idle agents in the background after another process wrote."""
        for key, (agent, _) in self._agents.items():
            if hint.is_about(key[0]) or hint.is_about(agent.conversation_id):
                self._outdated[key] = agent
        if self._outdated and self.check_task is None:
            self.check_task = asyncio.create_task(self._check())

    async def _check(self) -> None:
        """Check one agent after the other, so that checks don't delay other users of the store."""
        try:
            while self._outdated:
                await _refresh(self._outdated.popitem()[1])
        finally:
            self.check_task = None

    async def close(self) -> None:
        """Close all agents, after dropped agents have called their hooks."""
        if self.check_task is not None:
            self.check_task.cancel()
            await asyncio.wait([self.check_task])
        if self._leaving:
            await asyncio.wait(self._leaving)
        # The turn of a dropped agent is stopped by its runner; its background work has no other owner.
        for agent in (*(each for each in self._dropped if not each.busy), *self.every()):
            await agent.close()

    async def _build_shared(self, key: Key) -> agents.AIAgent:
        task = self._builds.get(key)
        if task is None:
            task = self._builds[key] = asyncio.create_task(self._build_one(key))
            task.add_done_callback(lambda _: self._builds.pop(key, None))
        # Shielded: a cancelled caller must not cancel the build for the others.
        return await asyncio.shield(task)

    async def _build_one(self, key: Key) -> agents.AIAgent:
        agent = await self._build(key[0])
        self._use(key, agent)
        return agent

    def _use(self, key: Key, agent: agents.AIAgent) -> None:
        now = self._clock()
        self._agents[key] = (agent, now)
        self._agents.move_to_end(key)
        for other, (old, used_at) in list(self._agents.items()):
            if len(self._agents) <= self._size and now - used_at <= self._idle:
                break  # sorted by last use
            if other != key and not old.in_use:
                self._drop(other)

    def _drop(self, key: Key) -> None:
        """Leave the agent without closing it: a caller that just got it may begin a turn."""
        dropped = self._agents.pop(key)[0]
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
