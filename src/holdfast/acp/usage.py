"""How full the window of a conversation is, and what all of it has cost, as an editor is told."""

from __future__ import annotations

import logging

from acp import schema

from holdfast.agent import usage
from holdfast.runtime import runtime

logger = logging.getLogger("holdfast.acp")


async def update(door: runtime.Runtime, conversation_id: str) -> schema.UsageUpdate | None:
    """None where that is not known."""
    agent = door.agents.peek(conversation_id)
    if agent is None:
        return None
    try:
        cost = usage.total_cost(await usage.used(door.db, conversation_id))
        tokens = await agent.context_tokens()
    except Exception as error:  # noqa: BLE001 -- figures for display stop nothing
        # It may have been deleted meanwhile.
        logger.debug("what %s has used cannot be told: %s", conversation_id, error)
        return None
    return schema.UsageUpdate(
        session_update="usage_update",
        used=tokens,
        size=agent.model.window,
        cost=None if cost is None else schema.Cost(amount=cost, currency="USD"),
    )
