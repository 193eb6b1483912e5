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

from holdfast import config, errors
from holdfast.agent import agent, approvals, loop
from holdfast.app import models, open_store, process_records, toolset
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


class RunningProgram(NamedTuple):
    """The program at work: its store, its runtime, and what was found on the way."""

    db: async_db.AsyncSessionDB
    runtime: runtime.Runtime
    model: str
    notice: str | None


class Services(NamedTuple):
    """What all doors of one process have in common, wherever each of them works."""

    settings: config.Settings
    database: str
    store: async_db.AsyncSessionDB
    models: models.ConversationModels
    summarizer: list[summary.ModelSummarizer] | None
    processes: background.Processes
    added: list[tools_port.Tool]
    """The tools of other packages."""
    meters: dict[str, tokens.Meter]
    model: str
    notice: str | None

    def agent_factory(
        self,
        permissions: approvals.Approvals,
        project: Project,
        machine: Sequence[tools_port.Tool],
        others: servers.Servers | None,
        **where: Unpack[Where],
    ) -> AgentFactory:
        """What agents of one door are made of: with tools for files and the machine, and those of servers."""
        return AgentFactory(
            settings=self.settings,
            store=self.store,
            models=self.models,
            summarizer=self.summarizer,
            permissions=permissions,
            project=project,
            tools=[*toolset.build_recall_tools(self.store), *machine, *self.added],
            others=others.offered if others else None,
            meters=self.meters,
            **where,
        )


@asynccontextmanager
async def open_services(
    settings: config.Settings,
    came_in: Callable[[str], object],
    *,
    database: str | None = None,
    model: str | None = None,
    folder: str | None = None,
    more: Sequence[tools_port.Tool] = (),
) -> AsyncIterator[Services]:
    """A store that is open and a model that was chosen. `came_in` is told of conversations whose inboxes have more.

    Tools of other packages are called like none of ours, nor like one `more` that doors have of their own.
    """
    async with AsyncExitStack() as stack:
        chosen = await models.choose(settings, model)
        answering = models.ConversationModels(settings, chosen.model)
        stack.push_async_callback(answering.close)
        summarizer = await build_summarizers(stack, settings, chosen)
        database = database or settings.database
        store = await stack.enter_async_context(async_db.AsyncSessionDB(db.SessionDB(database)))
        await store.run(partial(open_store.refuse_unfinished_copy, store.db))
        late = await backup_warning(store, settings.backup)
        stack.push_async_callback(cancel, asyncio.create_task(run_maintenance(store, settings.backup)))
        known = build_process_manager(settings, store, came_in)
        here = folder or os.getcwd()
        common = [
            *toolset.build_file_tools(here, [], object),
            *toolset.build_recall_tools(store),
            *toolset.build_shell_tools(known, settings, [here]),
            *more,
        ]
        added = await toolset.load_plugin_tools(settings.plugins, common)
        told = " ".join(line for line in (chosen.notice, late, *added.problems) if line)
        yield Services(
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
async def start(
    settings: config.Settings,
    *,
    database: str | None = None,
    model: str | None = None,
    source: str = "terminal",
    folder: str | None = None,
    reviews: bool = True,
    yes: bool = False,
) -> AsyncIterator[RunningProgram]:
    """A store that is open, a model that was chosen, and the one door to agents of both.

    `yes` allows what tools would ask for, but for what is dangerous or forbidden.
    """

    def came_in(conversation_id: str) -> None:
        door.poke(conversation_id)

    async with AsyncExitStack() as stack:
        here = folder or os.getcwd()
        house = await stack.enter_async_context(
            open_services(settings, came_in, database=database, model=model, folder=here)
        )
        permissions = approvals.Approvals(house.store.permissions, law=permission_law(settings, here), yes=yes)
        others = await stack.enter_async_context(servers.Servers(settings.servers, here)) if settings.servers else None
        project = partial(toolset.build_file_tools, here, toolset.protected_paths(settings, house.database, here))
        machine = toolset.build_shell_tools(house.processes, settings, [here])
        making = house.agent_factory(permissions, project, machine, others, folder=here, source=source, reviews=reviews)
        door = await stack.enter_async_context(
            runtime.Runtime(house.store, making.agent, words=others, models=house.models, approvals=permissions)
        )
        stack.push_async_callback(cancel, await watch_processes(house.processes))
        yield RunningProgram(house.store, door, house.model, house.notice)


def build_process_manager(
    settings: config.Settings, store: async_db.AsyncSessionDB, came_in: Callable[[str], object]
) -> background.Processes:
    """The programs that agents have started, in this process or before it."""
    return background.Processes(
        process_records.ProcessRecords(store, came_in),
        settings.home,
        toolset.command_environment(settings),
        signature=process_folders.signature(store.db.path),
    )


def permission_law(settings: config.Settings, folder: str) -> rules.Law:
    """The rules of the settings, as they hold in a folder."""
    return rules.Law(settings.permissions, os.path.realpath(folder), os.path.expanduser("~"))


class AgentFactory(NamedTuple):
    """All an agent of this program is made of, but for its conversation."""

    settings: config.Settings
    store: async_db.AsyncSessionDB
    models: models.ConversationModels
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
            mark = made.view.mark
            # Where the view is not known to stand, it may be another one each time.
            return mark[0] if mark else object()

        model = self.models.of(conversation_id)
        compaction, limits, memory = self.settings.compaction, self.settings.limits, self.settings.memory
        made = agent.AIAgent(
            db=self.store,
            model=model,
            session_id=conversation_id,
            tools=[*self.project(epoch), *self.tools],
            more_tools=self.others,
            approvals=self.permissions,
            # What was learnt of how one model counts is not true of another.
            meter=self.meters.setdefault(model.name, tokens.Meter()),
            compaction_policy=policy.Policy(soft=compaction.soft, hard=compaction.hard),
            # The offline model writes no summaries.
            summarizer=[] if self.summarizer is None and models.is_offline(model) else self.summarizer,
            limits=loop.Limits(steps=limits.steps, cost=limits.cost),
            folder=self.folder,
            keep_folder=self.keep_folder,
            source=self.source,
            owner=self.owner,
            remembers=memory.enabled,
            # The offline model cannot judge what is worth remembering.
            reviews=memory.review and self.reviews and not models.is_offline(model),
        )
        return made


async def build_summarizers(
    stack: AsyncExitStack, settings: config.Settings, chosen: models.ModelChoice
) -> list[summary.ModelSummarizer] | None:
    """Who writes summaries, where settings name somebody; where that one cannot, the conversation's model does."""
    if settings.compaction.model is None:
        return None
    small = await models.choose(settings, settings.compaction.model)
    stack.push_async_callback(small.model.close)
    return [summary.ModelSummarizer(each.model) for each in (small, chosen)]


async def backup_warning(store: async_db.AsyncSessionDB, kept: config.Backup) -> str | None:
    """What there is to say of backups that do not come. One that never came may be the one that comes now."""
    done, failed = (
        await store.admin.get_meta(store_meta.BACKUP_DONE),
        await store.admin.get_meta(store_meta.BACKUP_FAILED),
    )
    if kept.folder is None or (done is None and failed is None):
        return None
    said = backup_schedule.overdue_warning(done, failed, kept.every_hours, time.time())
    return said and f"{said} `holdfast backup` says what is in the way."


async def run_maintenance(store: async_db.AsyncSessionDB, kept: config.Backup) -> None:
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


async def watch_processes(known: background.Processes) -> asyncio.Task[None]:
    """What ended while nobody watched is in the inbox before anybody speaks, unless the store takes too long."""
    watcher = background.Watcher(known)
    try:
        async with asyncio.timeout(FIRST_LOOK):
            await watcher.look()
    except (errors.HoldfastError, TimeoutError) as error:
        logger.warning("processes cannot be looked after yet: %s", error)
    return asyncio.create_task(watcher.run())


async def cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
