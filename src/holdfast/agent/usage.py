"""What a conversation has used, replies and background work together, for `/usage` and the cost shown to people.

Replies carry their usage (`SessionDB.usage`). No message records summaries and memory reviews: their totals are kept
in the conversation's budget row, one for all processes.
"""

from __future__ import annotations

import logging

from holdfast import types
from holdfast.compaction import budget as budgets
from holdfast.store import async_db

logger = logging.getLogger("holdfast.agent")

SUMMARIES, REVIEWS = "summaries", "memory reviews"
SWAPS = 8


async def used(db: async_db.AsyncSessionDB, session_id: str) -> dict[str, types.Usage]:
    """Return what the conversation used: by model for its replies, then summaries and memory reviews."""
    replies = await db.usage(session_id)
    budget = budgets.parse((await db.budget(session_id))[1])
    background = {SUMMARIES: budget.usage, REVIEWS: budget.reviews}
    return replies | {name: usage for name, usage in background.items() if usage != types.Usage()}


def total_cost(used: dict[str, types.Usage]) -> float | None:
    """Return the sum of all known costs in US dollars; None if none is known."""
    known = [each.cost for each in used.values() if each.cost is not None]
    return sum(known) if known else None


async def charge_review(db: async_db.AsyncSessionDB, session_id: str, usage: types.Usage) -> None:
    """Add what a memory review used. A failure is logged: it must not stop anything."""
    try:
        for _ in range(SWAPS):
            version, body = await db.budget(session_id)
            budget = budgets.parse(body)
            if await db.update_budget(session_id, version, budgets.encode(budgets.add_review_usage(budget, usage))):
                return
    except Exception as error:  # noqa: BLE001 -- the account of a review stops no turn
        logger.warning("the cost of a memory review could not be recorded: %s", error)
