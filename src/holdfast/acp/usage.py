"""How full the window of a conversation is, and what all of it has cost, as an editor is told."""

from __future__ import annotations

import logging

from acp import schema

from holdfast import errors
from holdfast.agent import runtime

logger = logging.getLogger("holdfast.acp")


async def update(door: runtime.Runtime, conversation_id: str) -> schema.UsageUpdate | None:
    """None where that is not known."""
    agent = door.agents.peek(conversation_id)
    if agent is None:
        return None
    try:
        used = await door.db.usage(conversation_id)
        tokens = await agent.context_tokens()
    except errors.HoldfastError as error:
        # It may have been deleted meanwhile.
        logger.debug("what %s has used cannot be told: %s", conversation_id, error)
        return None
    costs = [each.cost for each in used.values() if each.cost is not None]
    cost = schema.Cost(amount=sum(costs), currency="USD") if costs else None
    return schema.UsageUpdate(session_update="usage_update", used=tokens, size=agent.model.window, cost=cost)
