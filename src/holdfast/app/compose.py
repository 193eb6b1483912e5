"""Build the parts that a front end needs from the settings, and close them in one `async with`."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import NamedTuple

from holdfast import config, errors
from holdfast.agent import agent, approvals, settings
from holdfast.app import models, open_store, process_records, toolset
from holdfast.compaction import policy, summary
from holdfast.model import base as model_base
from holdfast.model import tokens
from holdfast.runtime import runtime
from holdfast.store import async_db, db, store_meta
from holdfast.store.backup import schedule as backup_schedule
from holdfast.store.mail import queue_status
from holdfast.tools import base as tools_port
from holdfast.tools.mcp import servers
from holdfast.tools.permissions import rules
from holdfast.tools.shell import background

logger = logging.getLogger("holdfast.app")

MAINTENANCE_INTERVAL = 900.0
EXPIRY_PAUSE = 0.05
FIRST_LOOK = 5.0
"""Seconds that a start waits to learn which background processes ended before it."""


FileTools = Callable[[Callable[[], object]], list[tools_port.Tool]]
"""Builds the file tools of an agent, given a function that returns the epoch of its view."""


class RunningProgram(NamedTuple):
    """An open store and its runtime."""

    db: async_db.AsyncSessionDB
    runtime: runtime.Runtime
    model: str
    notice: str | None


class Services(NamedTuple):
    """The parts that all runtimes of a process share."""

    settings: config.Settings
    database: str
    store: async_db.AsyncSessionDB
    models: models.ConversationModels
    summarizer: list[summary.ModelSummarizer] | None
    processes: background.BackgroundProcesses
    added: list[tools_port.Tool]
    """The tools of plugins."""
    meters: dict[str, tokens.Meter]
    model: str
    notice: str | None

    def agent_factory(
        self,
        permissions: approvals.Approvals,
        project: list[tools_port.Tool],
        machine: Sequence[tools_port.Tool],
        others: servers.McpServers | None,
        *,
        folder: str,
        source: str,
        reviews: bool,
    ) -> AgentFactory:
        """Return a factory of agents with these file tools, shell tools and MCP servers."""
        return AgentFactory(
            settings=self.settings,
            store=self.store,
            models=self.models,
            summarizer=self.summarizer,
            permissions=permissions,
            project=project,
            tools=[*toolset.build_recall_tools(self.store), *machine, *self.added],
            others=others.offer if others else None,
            meters=self.meters,
            folder=folder,
            source=source,
            reviews=reviews,
        )


@asynccontextmanager
async def open_services(
    settings: config.Settings,
    on_inbox: Callable[[str], object],
    *,
    database: str | None = None,
    model: str | None = None,
    folder: str | None = None,
    more: Sequence[tools_port.Tool] = (),
    wrap: Callable[[model_base.Model], model_base.Model] = lambda model: model,
    expire_days: float | None = None,
) -> AsyncIterator[Services]:
    """Open the store, choose the model and load plugins.

    `on_inbox` is called with the id of a conversation that may have new inbox entries. Tools of plugins must not have
    the name of a built-in tool, or of one in `more`. `wrap` is applied to every model that answers. Mail older than
    `expire_days` is deleted.
    """
    async with AsyncExitStack() as stack:
        chosen = await models.choose(settings, model)
        chosen = models.ModelChoice(wrap(chosen.model), chosen.notice)
        answering = models.ConversationModels(settings, chosen.model, wrap)
        stack.push_async_callback(answering.close)
        summarizer = await build_summarizers(stack, settings, chosen)
        database = database or settings.database
        store = await stack.enter_async_context(async_db.AsyncSessionDB(db.SessionDB(database)))
        await store.run(partial(open_store.refuse_unfinished_copy, store.db))
        overdue = await backup_warning(store, settings.backup)
        stack.push_async_callback(cancel, asyncio.create_task(run_maintenance(store, settings.backup, expire_days)))
        processes = build_process_manager(settings, store, on_inbox)
        here = folder or os.getcwd()
        built_in = [
            *toolset.build_file_tools(here, []),
            *toolset.build_recall_tools(store),
            *toolset.build_shell_tools(processes, settings, [here]),
            *more,
        ]
        added = await toolset.load_plugin_tools(settings.plugins, built_in)
        notice = " ".join(line for line in (chosen.notice, overdue, *added.problems) if line)
        yield Services(
            settings=settings,
            database=database,
            store=store,
            models=answering,
            summarizer=summarizer,
            processes=processes,
            added=list(added.tools),
            meters={},
            model=chosen.model.name,
            notice=notice or None,
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
    """Open the services and one runtime. `yes` allows tool calls that would ask, except dangerous and denied ones."""

    def on_inbox(conversation_id: str) -> None:
        opened.check_inbox(conversation_id)

    async with AsyncExitStack() as stack:
        here = folder or os.getcwd()
        services = await stack.enter_async_context(
            open_services(settings, on_inbox, database=database, model=model, folder=here)
        )
        permissions = approvals.Approvals(services.store.permissions, law=permission_law(settings, here), yes=yes)
        others = (
            await stack.enter_async_context(servers.McpServers(settings.servers, here)) if settings.servers else None
        )
        protected = toolset.protected_paths(settings, services.database, here)
        factory = services.agent_factory(
            permissions,
            toolset.build_file_tools(here, protected),
            toolset.build_shell_tools(services.processes, settings, [here]),
            others,
            folder=here,
            source=source,
            reviews=reviews,
        )
        opened = await stack.enter_async_context(
            runtime.Runtime(
                services.store, factory.agent, prompt_commands=others, models=services.models, approvals=permissions
            )
        )
        stack.push_async_callback(cancel, await watch_processes(services.processes))
        yield RunningProgram(services.store, opened, services.model, services.notice)


def build_process_manager(
    settings: config.Settings, store: async_db.AsyncSessionDB, on_inbox: Callable[[str], object]
) -> background.BackgroundProcesses:
    """Return the manager of background processes, including those that an earlier process started."""
    return background.BackgroundProcesses(
        process_records.ProcessRecords(store, on_inbox),
        settings.home,
        toolset.command_environment(settings),
        database=store.db.path,
    )


def permission_law(settings: config.Settings, folder: str) -> rules.Policy:
    """Return the permission rules of the settings for a folder."""
    return rules.Policy(settings.permissions, os.path.realpath(folder), os.path.expanduser("~"))


class AgentFactory(NamedTuple):
    """Creates the agents of conversations."""

    settings: config.Settings
    store: async_db.AsyncSessionDB
    models: models.ConversationModels
    summarizer: list[summary.ModelSummarizer] | None
    permissions: approvals.Approvals
    project: list[tools_port.Tool]
    tools: list[tools_port.Tool]
    others: tools_port.Source | None
    meters: dict[str, tokens.Meter]
    folder: str
    source: str
    reviews: bool
    """Whether turns are reviewed in the background for facts to remember."""
    owner: str = ""
    keep_folder: bool = True
    """Whether new conversations record the folder; only if the user chose it."""

    async def agent(self, conversation_id: str) -> agent.AIAgent:
        model = self.models.of(conversation_id)
        compaction, limits, memory = self.settings.compaction, self.settings.limits, self.settings.memory
        return agent.AIAgent(
            db=self.store,
            model=model,
            session_id=conversation_id,
            tools=[*self.project, *self.tools],
            tool_source=self.others,
            permissions=self.permissions,
            context_files=True,
            attempts=1,  # The models of this program retry by themselves.
            compaction=settings.CompactionSettings(
                # Token counts learned for one model are not valid for another.
                meter=self.meters.setdefault(model.name, tokens.Meter()),
                policy=policy.CompactionPolicy(soft=compaction.soft, hard=compaction.hard),
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


async def build_summarizers(
    stack: AsyncExitStack, settings: config.Settings, chosen: models.ModelChoice
) -> list[summary.ModelSummarizer] | None:
    """Return the summarizers of `compaction.model`, with the chosen model as fallback; None if it is not set."""
    if settings.compaction.model is None:
        return None
    small = await models.choose(settings, settings.compaction.model)
    stack.push_async_callback(small.model.close)
    return [summary.ModelSummarizer(each.model) for each in (small, chosen)]


# --- maintenance ---------------------------------------------------------------------------------------


async def backup_warning(store: async_db.AsyncSessionDB, backup: config.BackupSection) -> str | None:
    """Return a warning if scheduled backups are overdue; not before the first one, which may be about to run."""
    done = await store.admin.get_meta(store_meta.BACKUP_DONE)
    failed = await store.admin.get_meta(store_meta.BACKUP_FAILED)
    if backup.folder is None or (done is None and failed is None):
        return None
    warning = backup_schedule.overdue_warning(done, failed, backup.every_hours, time.time())
    return warning and f"{warning} Run `holdfast backup` to see why."


async def run_maintenance(
    store: async_db.AsyncSessionDB,
    backup: config.BackupSection,
    expire_days: float | None = None,
    interval_seconds: float = MAINTENANCE_INTERVAL,
) -> None:
    """Run upkeep, scheduled backups and blob collection periodically, and delete expired mail. Failures are logged."""

    async def back_up() -> None:
        if backup.folder is not None:
            await store.admin.backup_if_due(backup.folder, backup.every_hours, backup.keep)

    async def expire() -> None:
        if expire_days is not None:
            await delete_expired(store, expire_days)

    while True:
        for task in (store.admin.run_upkeep_once, back_up, store.blobs.collect, expire):
            try:
                await task()
            except errors.HoldfastError as error:
                logger.warning("maintenance of the store failed: %s", error)
        await asyncio.sleep(interval_seconds)


async def delete_expired(store: async_db.AsyncSessionDB, days: float) -> None:
    """Delete inbound and outbound messages older than `days`, batch by batch, so that writers are not delayed."""
    cursor: queue_status.ExpiryCursor | None = queue_status.ExpiryCursor()
    while cursor is not None:
        cursor = (await store.mail.expire(days, cursor)).next
        await asyncio.sleep(EXPIRY_PAUSE)


async def watch_processes(
    processes: background.BackgroundProcesses, timeout_seconds: float = FIRST_LOOK
) -> asyncio.Task[None]:
    """Record processes that ended before this start, unless the store is too slow, and keep watching in a task."""
    watcher = background.Watcher(processes)
    try:
        async with asyncio.timeout(timeout_seconds):
            await watcher.check()
    except (errors.HoldfastError, TimeoutError) as error:
        logger.warning("background processes could not be checked: %s", error)
    return asyncio.create_task(watcher.run())


async def cancel(task: asyncio.Task[None]) -> None:
    """Cancel a task, and wait for its end."""
    task.cancel()
    await asyncio.wait([task])
