"""Build the tools of the program."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from holdfast import config, errors, types
from holdfast.agent import current_session
from holdfast.store import async_db
from holdfast.tools import base, long_output, memory, plugins, recall
from holdfast.tools.files import file_tools, send, workspace
from holdfast.tools.shell import background, background_tools, shell
from holdfast.tools.shell import environment as shell_environment


def command_environment(settings: config.Settings) -> shell.Environment:
    """Return a function that builds the environment of shell commands: without secrets, with the session id."""
    keys = (provider.key_env for provider in settings.providers.values() if provider.key_env)
    named = frozenset({*settings.gateway.variables, *settings.secrets, *keys})

    def build() -> dict[str, str]:
        here = current_session.current_session_id()
        more = {current_session.VARIABLE: here} if here else {}
        return shell_environment.of_commands(config.environment(), settings.shell.environment, named, **more)

    return build


def build_shell_tools(
    known: background.BackgroundProcesses, settings: config.Settings, folders: Sequence[str]
) -> list[base.Tool]:
    """Build the tools that run commands; they start in the first folder."""
    run = shell.shell(folders, command_environment(settings))
    return [run, *background_tools.tools(known, folders)]


def build_file_tools(folder: str, protected: Sequence[str]) -> list[base.Tool]:
    """Build the tools for files of a folder. `protected` paths are refused."""
    return file_tools.file_tools([folder], off_limits=protected)


def build_send_tool(store: async_db.AsyncSessionDB, folder: str, protected: Sequence[str]) -> base.Tool:
    """Build the tool that attaches files of a folder to a reply. `protected` paths are refused."""
    return send.send_file(workspace.Workspace([folder], protected), store.blobs.put)


def build_recall_tools(store: async_db.AsyncSessionDB) -> list[base.Tool]:
    """Build the tools that search and read the log of the conversation."""

    async def find(query: str, limit: int) -> Sequence[types.Hit]:
        here = current_session.current_conversation_id()
        return await store.search(query, session_id=here, limit=limit) if here else []

    async def fetch(first: int, last: int) -> Sequence[types.Message]:
        here = current_session.current_conversation_id()
        return await store.transcript(here, first - 1, last) if here else []

    async def read_blob(name: str) -> bytes:
        here = current_session.current_conversation_id()

        def read() -> bytes:
            # A digest alone gives no access: it may be that of another person's attachment.
            if here is None or not store.db.blobs.referenced_by(here, name):
                raise errors.NotFound("output", name)
            with store.db.blobs.open(name) as found:
                return found.read()

        return await store.run(read)

    return [recall.search_conversation(find), recall.recall(fetch), long_output.read_output(read_blob)]


async def load_plugin_tools(settings: config.PluginsSection, built_in: Sequence[base.Tool]) -> plugins.PluginTools:
    """Load the tools of plugins, in a thread: importing a plugin may block."""
    taken = {memory.NAME, send.NAME, *(tool.spec.name for tool in built_in)}
    return await asyncio.to_thread(plugins.load, taken, settings.disabled)


def protected_paths(settings: config.Settings, database: str, folder: str) -> list[str]:
    """Return the files and folders of the program, which file tools refuse even within the project."""
    user_folder = os.path.dirname(settings.user_file)
    parts = [
        None if "://" in database else database,  # a server is not a file
        settings.user_file,
        settings.user_file and os.path.join(user_folder, config.SECRETS_FILE),
        settings.backup.folder,
        settings.log,
        os.path.join(settings.home, "processes"),
    ]
    here = os.path.realpath(folder) + os.sep
    # A project within the data directory could not be used if all of that directory were refused.
    wide = [settings.home, user_folder]
    whole = [path for path in wide if path and not here.startswith(os.path.realpath(path).rstrip(os.sep) + os.sep)]
    return [path for path in (*parts, *whole) if path]
