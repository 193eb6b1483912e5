"""Composition of the agent for editors.

Each session has a runtime of its own, with tools for its folders, the rules of those folders, the capabilities of the
editor and the MCP servers that the editor provides. Store and models are shared.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from holdfast import config
from holdfast.acp import channel, client_files, client_terminals, mcp_servers, plans, server, session
from holdfast.acp import client as clients
from holdfast.agent import approvals
from holdfast.app import compose, toolset
from holdfast.runtime import runtime
from holdfast.store import async_db
from holdfast.tools.shell import shell

logger = logging.getLogger("holdfast.app")

SOURCE = "editor"
MODEL_LIST_SECONDS = 1.0
"""Seconds in which the available models have to be listed."""


class EditorProgram(NamedTuple):
    """The program as a server of sessions needs it."""

    house: compose.Services
    wire: channel.EditorChannel
    runtimes: list[runtime.Runtime]

    @property
    def db(self) -> async_db.AsyncSessionDB:
        return self.house.store

    async def models(self) -> Sequence[str]:
        try:
            async with asyncio.timeout(MODEL_LIST_SECONDS):
                return await self.house.models.listed()
        except TimeoutError:
            return []

    @asynccontextmanager
    async def open_runtime(
        self, spec: session.SessionSpec, client: clients.ToolClient
    ) -> AsyncIterator[runtime.Runtime]:
        """Open a runtime for one session."""
        house, settings, folder = self.house, self.house.settings, spec.folders[0]
        # Parsed for each session: an editor may send `initialize` again.
        capabilities = clients.parse_capabilities(self.wire.client_capabilities)
        async with AsyncExitStack() as stack:
            servers = await stack.enter_async_context(mcp_servers.open_servers(spec.servers, folder, settings.servers))
            off_limits = toolset.protected_paths(settings, house.database, folder)
            permissions = approvals.Approvals(house.store.permissions, law=compose.permission_law(settings, folder))
            machine = toolset.build_shell_tools(house.processes, settings, spec.folders)
            if capabilities.terminal:
                terminals = client_terminals.ClientTerminals(client, spec.session_id)
                environment = toolset.command_environment(settings)
                in_terminal = shell.shell(spec.folders, environment, terminals.run)
                machine = [in_terminal if each.spec.name == in_terminal.spec.name else each for each in machine]

            project = client_files.file_tools_for(
                client, spec.session_id, capabilities, spec.folders, off_limits=off_limits
            )
            making = house.agent_factory(
                permissions, project, [*machine, plans.TOOL], servers, folder=folder, source=SOURCE, reviews=True
            )
            opened = await stack.enter_async_context(
                runtime.Runtime(
                    house.store, making.agent, prompt_commands=servers, models=house.models, approvals=permissions
                )
            )
            self.runtimes.append(opened)
            stack.callback(self.runtimes.remove, opened)
            yield opened


async def serve(
    wire: channel.EditorChannel, settings: config.Settings, *, database: str | None = None, model: str | None = None
) -> None:
    """Serve one editor until it disconnects."""
    runtimes = list[runtime.Runtime]()

    def poke(conversation_id: str) -> None:
        for each in runtimes:
            each.check_inbox(conversation_id)

    async with AsyncExitStack() as stack:
        housed = compose.open_services(settings, poke, database=database, model=model, more=[plans.TOOL])
        house = await stack.enter_async_context(housed)
        stack.push_async_callback(compose.cancel, await compose.watch_processes(house.processes))
        if house.notice:
            logger.warning("%s", house.notice)
        program = EditorProgram(house, wire, runtimes)
        await server.serve(server.EditorServer(program), wire)
