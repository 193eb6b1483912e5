"""The agent for editors, with the store, the model and the tools of this program under it.

Each session has a door of its own: it works in its own folder, with the rules as they hold there, with what its editor
offers, and with the servers of tools that its editor brought. The store and the models are the same for all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from holdfast import config
from holdfast.acp import channel, client_files, client_terminals, mcp_servers, plans, server
from holdfast.acp import client as acp_client
from holdfast.agent import approvals
from holdfast.app import compose, toolset
from holdfast.runtime import runtime
from holdfast.store import async_db
from holdfast.tools import base
from holdfast.tools.permissions import risks

logger = logging.getLogger("holdfast.app")

SOURCE = "editor"
SEARCHING = 1.0
"""Seconds in which models have to be found to be offered."""


class House(NamedTuple):
    """What a server of sessions needs of the program."""

    house: compose.House
    wire: channel.Channel
    doors: list[runtime.Runtime]
    late: client_terminals.Late

    @property
    def db(self) -> async_db.AsyncSessionDB:
        return self.house.store

    async def models(self) -> Sequence[str]:
        try:
            async with asyncio.timeout(SEARCHING):
                return await self.house.models.listed()
        except TimeoutError:
            return []

    @asynccontextmanager
    async def door(self, place: server.Place, client: acp_client.Client) -> AsyncIterator[runtime.Runtime]:
        """A door for one session, closed with it."""
        house, settings, here = self.house, self.house.settings, place.folders[0]
        # Asked for each time: an editor may say it late, or again.
        offered = acp_client.offered(self.wire.offered)
        async with AsyncExitStack() as stack:
            others = await stack.enter_async_context(mcp_servers.opened(place.servers, here, settings.servers))
            own = toolset.off_limits(settings, house.database, here)
            permissions = approvals.Approvals(house.store.permissions, law=compose.law(settings, here))
            there = client_terminals.Terminals(client, place.session_id, self.late) if offered.terminal else None
            shell = client_terminals.tool(there, place.folders, toolset.environment(settings), risks.describe)
            machine = toolset.of_machine(house.processes, settings, place.folders)
            tools = [*(shell if each.spec.name == shell.spec.name else each for each in machine), plans.TOOL]

            def project(epoch: Callable[[], object]) -> list[base.Tool]:
                return client_files.tools(client, place.session_id, offered, place.folders, off_limits=own, epoch=epoch)

            making = house.making(permissions, project, tools, others, folder=here, source=SOURCE, reviews=True)
            door = await stack.enter_async_context(
                runtime.Runtime(house.store, making.agent, words=others, models=house.models, approvals=permissions)
            )
            self.doors.append(door)
            stack.callback(self.doors.remove, door)
            yield door


async def serve(
    wire: channel.Channel, settings: config.Settings, *, database: str | None = None, model: str | None = None
) -> None:
    """Serve one editor until it is gone."""
    doors = list[runtime.Runtime]()

    def came_in(conversation_id: str) -> None:
        for door in doors:
            door.poke(conversation_id)

    async with AsyncExitStack() as stack:
        housed = compose.housed(settings, came_in, database=database, model=model, more=[plans.TOOL])
        house = await stack.enter_async_context(housed)
        stack.push_async_callback(compose.stopped, await compose.watched(house.processes))
        if house.notice:
            logger.warning("%s", house.notice)
        late = await stack.enter_async_context(client_terminals.Late())
        opened = await stack.enter_async_context(server.Server(House(house, wire, doors, late)))
        await server.attend(opened, wire)
