"""Usage of a conversation, replies and background work together, for `/usage` and the cost shown to people.

Replies carry their usage (`SessionDB.usage`). Summaries and memory reviews are not messages: their totals are kept in
the conversation's budget row, shared by all processes.
"""

from __future__ import annotations

import logging

import msgspec

from holdfast import types
from holdfast.compaction import budget as budgets
from holdfast.store import async_db

logger = logging.getLogger("holdfast.agent")

SUMMARIES, REVIEWS = "summaries", "memory reviews"


async def read(db: async_db.AsyncSessionDB, session_id: str) -> dict[str, types.Usage]:
    """Return the usage of the conversation: by model for its replies, then summaries and memory reviews."""
    replies = await db.usage(session_id)
    budget = await budgets.read(db, session_id)
    background = {SUMMARIES: budget.usage, REVIEWS: budget.reviews}
    return replies | {name: usage for name, usage in background.items() if usage != types.Usage()}


def total_cost(used: dict[str, types.Usage]) -> float | None:
    """Return the sum of all known costs in US dollars; None if none is known."""
    known = [each.cost for each in used.values() if each.cost is not None]
    return sum(known) if known else None


async def charge_review(db: async_db.AsyncSessionDB, session_id: str, usage: types.Usage) -> None:
    """Add the usage of a memory review. Failures are only logged."""

    def charge(stored: budgets.Budget) -> budgets.Budget:
        return msgspec.structs.replace(stored, reviews=stored.reviews + usage)

    try:
        await budgets.update(db, session_id, charge)
    except Exception as error:  # noqa: BLE001 -- accounting never stops a turn
        logger.warning("could not record the cost of a memory review: %s", error)
