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
from holdfast.acp import channel, editor, files, plans, server, servers, terminals
from holdfast.agent import approvals, runtime
from holdfast.app import hands, running
from holdfast.store import async_db
from holdfast.tools import dangers, port

logger = logging.getLogger("holdfast.app")

SOURCE = "editor"
SEARCHING = 1.0
"""Seconds in which models have to be found to be offered."""


class House(NamedTuple):
    """What a server of sessions needs of the program."""

    house: running.House
    wire: channel.Channel
    doors: list[runtime.Runtime]
    late: terminals.Late

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
    async def door(self, place: server.Place, client: editor.Client) -> AsyncIterator[runtime.Runtime]:
        """A door for one session, closed with it."""
        house, settings, here = self.house, self.house.settings, place.folders[0]
        # Asked for each time: an editor may say it late, or again.
        offered = editor.offered(self.wire.offered)
        async with AsyncExitStack() as stack:
            others = await stack.enter_async_context(servers.opened(place.servers, here, settings.servers))
            own = hands.off_limits(settings, house.database, here)
            permissions = approvals.Approvals(house.store.permissions, law=running.law(settings, here))
            there = terminals.Terminals(client, place.session_id, self.late) if offered.terminal else None
            shell = terminals.tool(there, place.folders, hands.environment(settings), dangers.described)
            machine = hands.of_machine(house.processes, settings, place.folders)
            tools = [*(shell if each.spec.name == shell.spec.name else each for each in machine), plans.TOOL]

            def project(epoch: Callable[[], object]) -> list[port.Tool]:
                return files.tools(client, place.session_id, offered, place.folders, off_limits=own, epoch=epoch)

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
        housed = running.housed(settings, came_in, database=database, model=model, more=[plans.TOOL])
        house = await stack.enter_async_context(housed)
        stack.push_async_callback(running.stopped, await running.watched(house.processes))
        if house.notice:
            logger.warning("%s", house.notice)
        late = await stack.enter_async_context(terminals.Late())
        opened = await stack.enter_async_context(server.Server(House(house, wire, doors, late)))
        await server.attend(opened, wire)
