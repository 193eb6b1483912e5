"""Everything a front end needs, started and stopped by one `async with`."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import NamedTuple, TypedDict, Unpack

from holdfast import app, config, errors
from holdfast.agent import agent, approvals, settings
from holdfast.app import models, process_records, toolset
from holdfast.compaction import policy, summary
from holdfast.model import tokens
from holdfast.runtime import runtime
from holdfast.store import async_db, db, store_meta
from holdfast.store.backup import schedule as backup_schedule
from holdfast.tools import base as tools_port
from holdfast.tools.mcp import servers
from holdfast.tools.permissions import rules
from holdfast.tools.shell import background, process_folders

logger = logging.getLogger("holdfast.app")

EVERY = 900.0
FIRST_LOOK = 5.0
"""Seconds a start waits to learn which processes ended while nobody watched."""


Project = Callable[[Callable[[], object]], list[tools_port.Tool]]
"""The tools for files, for an agent whose view has this epoch."""


class Where(TypedDict):
    """What agents are told of where they work."""

    folder: str
    source: str
    reviews: bool
    """Whether each turn may be reviewed in the background for something to remember."""


class Running(NamedTuple):
    """The program at work: its store, its runtime, and what was found on the way."""

    db: async_db.AsyncSessionDB
    runtime: runtime.Runtime
    model: str
    notice: str | None


class House(NamedTuple):
    """What all doors of one process have in common, wherever each of them works."""

    settings: config.Settings
    database: str
    store: async_db.AsyncSessionDB
    models: models.Models
    summarizer: list[summary.ModelSummarizer] | None
    processes: background.Processes
    added: list[tools_port.Tool]
    """The tools of other packages."""
    meters: dict[str, tokens.Meter]
    model: str
    notice: str | None

    def making(
        self,
        permissions: approvals.Approvals,
        project: Project,
        machine: Sequence[tools_port.Tool],
        others: servers.Servers | None,
        **where: Unpack[Where],
    ) -> Making:
        """What agents of one door are made of: with tools for files and the machine, and those of servers."""
        return Making(
            settings=self.settings,
            store=self.store,
            models=self.models,
            summarizer=self.summarizer,
            permissions=permissions,
            project=project,
            tools=[*toolset.of_past(self.store), *machine, *self.added],
            others=others.offered if others else None,
            meters=self.meters,
            **where,
        )


@asynccontextmanager
async def housed(
    settings: config.Settings,
    came_in: Callable[[str], object],
    *,
    database: str | None = None,
    model: str | None = None,
    folder: str | None = None,
    more: Sequence[tools_port.Tool] = (),
) -> AsyncIterator[House]:
    """A store that is open and a model that was chosen. `came_in` is told of conversations whose inboxes have more.

    Tools of other packages are called like none of ours, nor like one `more` that doors have of their own.
    """
    async with AsyncExitStack() as stack:
        chosen = await models.choose(settings, model)
        answering = models.Models(settings, chosen.model)
        stack.push_async_callback(answering.close)
        summarizer = await summarizer_of(stack, settings, chosen)
        database = database or settings.database
        store = await stack.enter_async_context(async_db.AsyncSessionDB(db.SessionDB(database)))
        await store.run(partial(app.refuse_unfinished, store.db))
        late = await late_backups(store, settings.backup)
        stack.push_async_callback(stopped, asyncio.create_task(looking_after(store, settings.backup)))
        known = known_processes(settings, store, came_in)
        here = folder or os.getcwd()
        common = [
            *toolset.of_project(here, [], object),
            *toolset.of_past(store),
            *toolset.of_machine(known, settings, [here]),
            *more,
        ]
        added = await toolset.of_others(settings.plugins, common)
        told = " ".join(line for line in (chosen.notice, late, *added.problems) if line)
        yield House(
            settings=settings,
            database=database,
            store=store,
            models=answering,
            summarizer=summarizer,
            processes=known,
            added=list(added.tools),
            meters={},
            model=chosen.model.name,
            notice=told or None,
        )


@asynccontextmanager
async def started(
    settings: config.Settings,
    *,
    database: str | None = None,
    model: str | None = None,
    source: str = "terminal",
    folder: str | None = None,
    reviews: bool = True,
    yes: bool = False,
) -> AsyncIterator[Running]:
    """A store that is open, a model that was chosen, and the one door to agents of both.

    `yes` allows what tools would ask for, but for what is dangerous or forbidden.
    """

    def came_in(conversation_id: str) -> None:
        door.check_inbox(conversation_id)

    async with AsyncExitStack() as stack:
        here = folder or os.getcwd()
        house = await stack.enter_async_context(housed(settings, came_in, database=database, model=model, folder=here))
        permissions = approvals.Approvals(house.store.permissions, law=law(settings, here), yes=yes)
        others = await stack.enter_async_context(servers.Servers(settings.servers, here)) if settings.servers else None
        project = partial(toolset.of_project, here, toolset.off_limits(settings, house.database, here))
        machine = toolset.of_machine(house.processes, settings, [here])
        making = house.making(permissions, project, machine, others, folder=here, source=source, reviews=reviews)
        door = await stack.enter_async_context(
            runtime.Runtime(
                house.store, making.agent, prompt_commands=others, models=house.models, approvals=permissions
            )
        )
        stack.push_async_callback(stopped, await watched(house.processes))
        yield Running(house.store, door, house.model, house.notice)


def known_processes(
    settings: config.Settings, store: async_db.AsyncSessionDB, came_in: Callable[[str], object]
) -> background.Processes:
    """The programs that agents have started, in this process or before it."""
    return background.Processes(
        process_records.Book(store, came_in),
        settings.home,
        toolset.environment(settings),
        signature=process_folders.signature(store.db.path),
    )


def law(settings: config.Settings, folder: str) -> rules.Law:
    """The rules of the settings, as they hold in a folder."""
    return rules.Law(settings.permissions, os.path.realpath(folder), os.path.expanduser("~"))


class Making(NamedTuple):
    """All an agent of this program is made of, but for its conversation."""

    settings: config.Settings
    store: async_db.AsyncSessionDB
    models: models.Models
    summarizer: list[summary.ModelSummarizer] | None
    permissions: approvals.Approvals
    project: Project
    tools: list[tools_port.Tool]
    others: tools_port.Source | None
    meters: dict[str, tokens.Meter]
    folder: str
    source: str
    reviews: bool
    owner: str = ""
    keep_folder: bool = True
    """Whether the folder is the person's, so that conversations which begin in it belong to it."""

    async def agent(self, conversation_id: str) -> agent.AIAgent:
        def epoch() -> object:
            mark = made.context_cache.mark
            # Where the view is not known to stand, it may be another one each time.
            return mark[0] if mark else object()

        model = self.models.of(conversation_id)
        compaction, limits, memory = self.settings.compaction, self.settings.limits, self.settings.memory
        made = agent.AIAgent(
            db=self.store,
            model=model,
            session_id=conversation_id,
            tools=[*self.project(epoch), *self.tools],
            tool_source=self.others,
            permissions=self.permissions,
            context_files=True,
            attempts=1,  # the models of this program retry by themselves
            compaction=settings.CompactionSettings(
                # Each model counts tokens differently.
                meter=self.meters.setdefault(model.name, tokens.Meter()),
                policy=policy.Policy(soft=compaction.soft, hard=compaction.hard),
                # The offline model writes no summaries.
                summarizer=[] if self.summarizer is None and models.is_offline(model) else self.summarizer,
            ),
            limits=settings.Limits(steps=limits.steps, cost=limits.cost),
            conversation=settings.ConversationSettings(
                folder=self.folder, record_folder=self.keep_folder, source=self.source, owner=self.owner
            ),
            memory=settings.MemorySettings(
                enabled=memory.enabled,
                # The offline model cannot judge what is worth remembering.
                review=memory.review and self.reviews and not models.is_offline(model),
            ),
        )
        return made


async def summarizer_of(
    stack: AsyncExitStack, settings: config.Settings, chosen: models.Chosen
) -> list[summary.ModelSummarizer] | None:
    """Who writes summaries, where settings name somebody; where that one cannot, the conversation's model does."""
    if settings.compaction.model is None:
        return None
    small = await models.choose(settings, settings.compaction.model)
    stack.push_async_callback(small.model.close)
    return [summary.ModelSummarizer(each.model) for each in (small, chosen)]


async def late_backups(store: async_db.AsyncSessionDB, kept: config.Backup) -> str | None:
    """What there is to say of backups that do not come. One that never came may be the one that comes now."""
    done, failed = (
        await store.admin.get_meta(store_meta.BACKUP_DONE),
        await store.admin.get_meta(store_meta.BACKUP_FAILED),
    )
    if kept.folder is None or (done is None and failed is None):
        return None
    said = backup_schedule.overdue_warning(done, failed, kept.every_hours, time.time())
    return said and f"{said} `holdfast backup` says what is in the way."


async def looking_after(store: async_db.AsyncSessionDB, kept: config.Backup) -> None:
    """What a store needs now and then, beside the work: it is nobody's to wait for, and stops nothing."""

    async def back_up() -> None:
        if kept.folder is not None:
            await store.admin.backup_if_due(kept.folder, kept.every_hours, kept.keep)

    while True:
        for need in (store.admin.run_upkeep_once, back_up, store.blobs.collect):
            try:
                await need()
            except errors.HoldfastError as error:
                logger.warning("the store could not be looked after: %s", error)
        await asyncio.sleep(EVERY)


async def watched(known: background.Processes) -> asyncio.Task[None]:
    """What ended while nobody watched is in the inbox before anybody speaks, unless the store takes too long."""
    watcher = background.Watcher(known)
    try:
        async with asyncio.timeout(FIRST_LOOK):
            await watcher.look()
    except (errors.HoldfastError, TimeoutError) as error:
        logger.warning("processes cannot be looked after yet: %s", error)
    return asyncio.create_task(watcher.run())


async def stopped(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
