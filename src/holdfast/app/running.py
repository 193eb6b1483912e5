"""Everything a front end needs, started and stopped by one `async with`."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from holdfast import config, errors, types
from holdfast.agent import agent, ambient, loop, runtime
from holdfast.app import models
from holdfast.model import tokens
from holdfast.store import aio, db
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
) -> AsyncIterator[Running]:
    """A store that is open, a model that was chosen, and the one door to agents of both."""
    async with AsyncExitStack() as stack:
        chosen = await models.choose(settings, model)
        stack.push_async_callback(chosen.model.close)
        store = await stack.enter_async_context(aio.AsyncSessionDB(db.SessionDB(database or settings.database)))
        stack.push_async_callback(_stopped, asyncio.create_task(_looking_after(store, settings)))
        here, meter = folder or os.getcwd(), tokens.Meter()

        async def build(conversation_id: str) -> agent.AIAgent:
            return agent.AIAgent(
                db=store,
                model=chosen.model,
                session_id=conversation_id,
                tools=tools(store, here),
                meter=meter,
                limits=loop.Limits(steps=settings.limits.steps, cost=settings.limits.cost),
                folder=here,
                source=source,
            )

        door = await stack.enter_async_context(runtime.Runtime(store, build))
        yield Running(store, door, chosen.model.name, chosen.notice)


async def _looking_after(store: aio.AsyncSessionDB, settings: config.Settings) -> None:
    """What a store needs now and then, beside the work: it is nobody's to wait for, and stops nothing."""
    while True:
        try:
            await store.upkeep_once()
            if settings.backup.folder is not None:
                kept = settings.backup
                await store.backup_if_due(settings.backup.folder, kept.every_hours, kept.keep)
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

    return [files.read_file([folder]), recall.search_conversation(find)]
