"""Turns of an agent with tools of MCP servers, and their prompts as commands."""

from __future__ import annotations

import asyncio

from holdfast import AsyncSessionDB, events
from holdfast.model import ScriptedModel
from tests.support import agents, mcp_servers


async def test_turn_that_waits_for_a_server_can_be_interrupted(db: AsyncSessionDB) -> None:
    begun = asyncio.Event()

    def emit(event: events.AnyEvent) -> None:
        if isinstance(event, events.TurnStarted):
            begun.set()

    async with mcp_servers.running(mcp_servers.raw("silent")) as started:
        agent = agents.agent(db, ScriptedModel(["a"]), session_id="here", tool_source=started.offer)
        turn = asyncio.create_task(agent.run_conversation("hi", emit=emit))
        await begun.wait()
        agent.interrupt()
        assert (await turn).interrupted
