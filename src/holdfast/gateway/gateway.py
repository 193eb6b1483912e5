"""A gateway: platforms, door, router, desks and senders, started and stopped by one `async with`.

Stopping takes nothing more in, lets what runs come to its end for a while, and leaves the rest to whoever runs next.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from holdfast import errors
from holdfast.agent import commands
from holdfast.gateway import gateway_context, inbound, metrics, outbox, pairing_codes, router, runtimes
from holdfast.gateway import platform as gateway_platform
from holdfast.model import base as models
from holdfast.store import async_db

logger = logging.getLogger("holdfast.gateway")

AGAIN, SELDOM = 1.0, 60.0
"""Seconds until a platform that failed is run again, twice as many each time."""
ANOTHER = (
    "gateway.profile: this store belongs to the profile {kept}, and the settings say {wanted}. Set `gateway.profile` "
    "to {kept}, or give this gateway a store of its own (--db, or HOLDFAST_DB)."
)
DRAIN = 5.0
"""Seconds that what is due is still sent when a gateway stops."""


class Gateway:
    """Everything between platforms and agents, in one process; any number of them may work on one store."""

    def __init__(
        self,
        db: async_db.AsyncSessionDB,
        make: runtimes.Make,
        platforms: Sequence[gateway_platform.Platform],
        *,
        settings: gateway_context.Settings | None = None,
        profile: str = "main",
        guards: Sequence[gateway_platform.Guard] = (),
        is_admin: gateway_platform.IsAdmin = gateway_context.nobody,
        may_speak: gateway_platform.IsAdmin = gateway_context.everybody,
        shared: Callable[[gateway_platform.Came], bool] = inbound.never,
        grace: float = 0.0,
        most_desks: int = runtimes.MOST,
        clock: Callable[[], float] = time.time,
        meter: metrics.Meter | None = None,
    ) -> None:
        self.meter = meter or metrics.Meter()
        self.platforms = {each.name: each for each in platforms}
        self.grace = grace
        told = {name: pairing_codes.telling(db, each) for name, each in self.platforms.items()}
        self.senders = outbox.Senders(db, told, clock)
        self.desks = runtimes.Desks(make, most=most_desks)
        home = gateway_context.House(
            db,
            self.desks,
            self.platforms,
            {},
            settings or gateway_context.Settings(),
            is_admin,
            self.senders.wake,
            clock,
            self.meter,
            profile,
            {name: gateway_platform.abilities(each) for name, each in self.platforms.items()},
            may_speak,
        )
        self._db, self._profile = db, profile
        self.router = router.Router(home)
        self.door = inbound.Door(
            db,
            self.router.poke,
            profile=profile,
            guards=guards,
            shared=shared,
            goes_out=self.senders.wake,
            counted=self.meter.came,
            ask=self._ask,
            withdraw=self.router.withdraw,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._receiving: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        """Raises SettingInvalid where the store belongs to another profile."""
        await self._belong()
        self._tasks = [asyncio.create_task(self.router.run()), asyncio.create_task(self.senders.run())]
        self._receiving = [asyncio.create_task(self._received(each)) for each in self.platforms.values()]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def ready(self) -> None:
        """Until every platform that can say so receives."""
        await asyncio.gather(
            *(each.listening() for each in self.platforms.values() if isinstance(each, gateway_platform.Listens))
        )

    async def failed(self) -> None:
        """Until a part of it fails that must not, and raises what that raised; for ever, where all is well."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def stop(self) -> None:
        """In this order: nothing comes in, nothing is begun, what is due goes out. What is left is in the store."""
        await _stopped(self._receiving)
        try:
            await self.router.stop(self.grace)
            await self.senders.drain(DRAIN if self.grace else 0.0)
        finally:
            await _stopped(self._tasks)
            await self.desks.close()

    async def _ask(self, owner: str, request: models.Request) -> models.Reply:
        async with self.desks.at(owner) as runtime:
            return await runtime.ask(request)

    async def _belong(self) -> None:
        """One store, one profile: any gateway of a store works on any chat of it, with its own tools and rules, and
        sends what goes out by a platform of that name."""
        wanted = self._profile
        kept = await self._db.admin.get_or_set_profile(wanted)
        if kept != wanted:
            raise errors.SettingInvalid(ANOTHER.format(kept=errors.shown(kept), wanted=errors.shown(wanted)))

    async def _received(self, platform: gateway_platform.Platform) -> None:
        """Have a platform receive, again and again: what goes wrong with one stops no other."""
        pause = AGAIN
        await self._shown(platform)
        while True:
            began = time.monotonic()
            try:
                await platform.run(self.door)
                return
            except Exception:
                logger.exception("%s stopped receiving; it is tried again in %.0f s", platform.name, pause)
            pause = AGAIN if time.monotonic() - began > SELDOM else pause
            await asyncio.sleep(pause)
            pause = min(2 * pause, SELDOM)

    async def _shown(self, platform: gateway_platform.Platform) -> None:
        if not isinstance(platform, gateway_platform.Commands):
            return
        try:
            await platform.commands([each for each in commands.COMMANDS.values() if "chat" in each.places])
        except Exception:
            # They work all the same; nobody is shown them.
            logger.exception("%s does not show the commands", platform.name)


async def _stopped(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a part of the gateway had failed", exc_info=error)
    tasks.clear()
