"""The tools of the program, each with the part of the store, the settings and the machine it needs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence

from holdfast import config, types
from holdfast.agent import current_session
from holdfast.store import async_db
from holdfast.tools import base, long_output, memory, plugins, recall
from holdfast.tools.files import file_tools
from holdfast.tools.permissions import risks
from holdfast.tools.shell import background, background_tools, shell
from holdfast.tools.shell import environment as shell_environment


def environment(settings: config.Settings) -> shell.Environment:
    """What commands find in their environment: no secrets, and the session they work for."""
    keys = (provider.key_env for provider in settings.providers.values() if provider.key_env)
    named = frozenset({*settings.gateway.variables, *settings.secrets, *keys})

    def made() -> dict[str, str]:
        here = current_session.current_session_id()
        more = {current_session.VARIABLE: here} if here else {}
        return shell_environment.of_commands(config.environment(), settings.shell.environment, named, **more)

    return made


def of_machine(known: background.Processes, settings: config.Settings, folders: Sequence[str]) -> list[base.Tool]:
    """The tools that run commands; the first folder is where they begin."""
    run = shell.shell(folders, environment(settings), risks.describe)
    return [run, *background_tools.tools(known, folders, risks.describe)]


def of_project(folder: str, own: Sequence[str], epoch: Callable[[], object]) -> list[base.Tool]:
    """The tools for files of the folder the agent was started in."""
    return file_tools.file_tools([folder], off_limits=own, epoch=epoch)


def of_past(store: async_db.AsyncSessionDB) -> list[base.Tool]:
    """The tools that look into the past of a conversation."""

    async def find(query: str, limit: int) -> Sequence[types.Hit]:
        here = current_session.current_conversation_id()
        return await store.search(query, session_id=here, limit=limit) if here else []

    async def fetch(first: int, last: int) -> Sequence[types.Message]:
        here = current_session.current_conversation_id()
        return await store.transcript(here, first - 1, last) if here else []

    async def kept(name: str) -> bytes:
        def read() -> bytes:
            with store.db.blobs.open(name) as found:
                return found.read()

        return await store.run(read)

    return [recall.search_conversation(find), recall.recall(fetch), long_output.read_output(kept)]


async def of_others(wanted: config.Plugins, given: Sequence[base.Tool]) -> plugins.Found:
    """The tools of other packages. Off the loop: loading one runs whatever its author wrote."""
    taken = {memory.NAME, *(tool.spec.name for tool in given)}
    return await asyncio.to_thread(plugins.load, taken, wanted.disabled)


def off_limits(settings: config.Settings, database: str, folder: str) -> list[str]:
    """What the program keeps for itself: tools for files leave it alone, also where it lies in the project."""
    parts = [
        None if "://" in database else database,  # a server is no file
        settings.user_file,
        settings.backup.folder,
        settings.log,
        os.path.join(settings.home, "processes"),
    ]
    here = os.path.realpath(folder) + os.sep
    # Who works within the home of the program has the rest of it open: otherwise nothing would be.
    wide = [settings.home, os.path.dirname(settings.user_file)]
    whole = [path for path in wide if path and not here.startswith(os.path.realpath(path).rstrip(os.sep) + os.sep)]
    return [path for path in (*parts, *whole) if path]
