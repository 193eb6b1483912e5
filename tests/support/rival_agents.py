"""Two agents on one conversation without leases, each in its own process."""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from holdfast import AsyncSessionDB, SessionDB
from holdfast.compaction import base
from tests.support import compaction

LOCKS = ("acquire_lease", "renew_lease", "release_lease", "begin_compaction", "begin_conversation")
SECONDS = 60.0
_barrier: Any = None


class WithoutLocks(AsyncSessionDB):
    """A store whose lock calls do not exist."""

    def __getattribute__(self, name: str) -> Any:
        if name in LOCKS:
            raise AttributeError(name)
        return super().__getattribute__(name)


def compete(target: str) -> list[tuple[base.Outcome, str | None]]:
    """Let two agents take a turn and compact, so that both have a summary before either commits.

    Return the outcome and the answer of each.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, context, _share, (context.Barrier(2),)) as pool:
        return list(pool.map(_take_part, [target] * 2, ["one", "two"]))


def _share(barrier: Any) -> None:
    global _barrier  # noqa: PLW0603 -- a pool gives its workers nothing else
    _barrier = barrier


def _take_part(target: str, name: str) -> tuple[base.Outcome, str | None]:
    return asyncio.run(_work(target, name))


async def _work(target: str, name: str) -> tuple[base.Outcome, str | None]:
    async def summarize(request: base.SummaryRequest) -> str:
        await asyncio.to_thread(_barrier.wait, SECONDS)
        return "In short. " + " ".join(request.must_keep)

    async with WithoutLocks(SessionDB(target)) as db, asyncio.timeout(2 * SECONDS):
        agent = compaction.compacting_agent(db, compaction.FakeSummarizer(summarize), background=False)
        made, turn = await asyncio.gather(agent.compress_context(force=True), agent.run_conversation(f"I am {name}."))
        await agent.close()
        return made.outcome, turn.final_response if turn.completed else None
