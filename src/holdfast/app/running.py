"""Everything a front end needs, started and stopped by one `async with`."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from holdfast import config, errors, types
from holdfast.agent import agent, ambient, loop, runtime
from holdfast.app import models
from holdfast.compaction import policy, summary
from holdfast.model import tokens
from holdfast.store import aio, db, schedule
from holdfast.tools import files, port, recall

logger = logging.getLogger("holdfast.app")

EVERY = 900.0


class Running(NamedTuple):
    """The program at work: its store, its runtime, and what was found on the way."""

    db: aio.AsyncSessionDB
    runtime: runtime.Runtime
    model: str
    notice: str | None


@asynccontextmanager
async def started(
    settings: config.Settings,
    *,
    database: str | None = None,
    model: str | None = None,
    source: str = "terminal",
    folder: str | None = None,
    background: bool = True,
) -> AsyncIterator[Running]:
    """A store that is open, a model that was chosen, and the one door to agents of both."""
    async with AsyncExitStack() as stack:
        chosen = await models.choose(settings, model)
        stack.push_async_callback(chosen.model.close)
        summarizer = None
        if settings.compaction.model is not None:
            small = await models.choose(settings, settings.compaction.model)
            stack.push_async_callback(small.model.close)
            # Where the one for summaries cannot, the model of the conversation writes them.
            summarizer = [summary.ModelSummarizer(each.model) for each in (small, chosen)]
        store = await stack.enter_async_context(aio.AsyncSessionDB(db.SessionDB(database or settings.database)))
        late = await _late(store, settings.backup)
        stack.push_async_callback(_stopped, asyncio.create_task(_looking_after(store, settings.backup)))
        here, meter = folder or os.getcwd(), tokens.Meter()

        async def build(conversation_id: str) -> agent.AIAgent:
            return agent.AIAgent(
                db=store,
                model=chosen.model,
                session_id=conversation_id,
                tools=tools(store, here),
                meter=meter,
                background=background,
                compaction_policy=policy.Policy(soft=settings.compaction.soft, hard=settings.compaction.hard),
                summarizer=summarizer,
                limits=loop.Limits(steps=settings.limits.steps, cost=settings.limits.cost),
                folder=here,
                source=source,
            )

        door = await stack.enter_async_context(runtime.Runtime(store, build))
        told = " ".join(line for line in (chosen.notice, late) if line)
        yield Running(store, door, chosen.model.name, told or None)


async def _late(store: aio.AsyncSessionDB, kept: config.Backup) -> str | None:
    """What there is to say of backups that do not come. One that never came may be the one that comes now."""
    done, failed = await store.meta(schedule.DONE), await store.meta(schedule.FAILED)
    if kept.folder is None or (done is None and failed is None):
        return None
    said = schedule.late(done, failed, kept.every_hours, time.time())
    return said and f"{said} `holdfast backup` says what is in the way."


async def _looking_after(store: aio.AsyncSessionDB, kept: config.Backup) -> None:
    """What a store needs now and then, beside the work: it is nobody's to wait for, and stops nothing."""

    async def back_up() -> None:
        if kept.folder is not None:
            await store.backup_if_due(kept.folder, kept.every_hours, kept.keep)

    while True:
        for need in (store.upkeep_once, back_up, store.collect_blobs):
            try:
                await need()
            except errors.HoldfastError as error:
                logger.warning("the store could not be looked after: %s", error)
        await asyncio.sleep(EVERY)


async def _stopped(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def tools(store: aio.AsyncSessionDB, folder: str) -> list[port.Tool]:
    """What an agent can do: look into the folder it was started in, and into its own past."""

    async def find(query: str, limit: int) -> Sequence[types.Hit]:
        here = ambient.current_conversation_id()
        return await store.search(query, session_id=here, limit=limit) if here else []

    async def fetch(first: int, last: int) -> Sequence[types.Message]:
        here = ambient.current_conversation_id()
        return await store.transcript(here, first - 1, last) if here else []

    return [files.read_file([folder]), recall.search_conversation(find), recall.recall(fetch)]
