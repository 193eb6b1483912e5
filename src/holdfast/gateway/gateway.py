"""A gateway: platforms, inbound handler, router, runtimes and senders, started and stopped by one `async with`.

Stopping accepts no more messages, gives running turns some time to end, and leaves the rest to the next process.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from holdfast import errors, safe_text
from holdfast.agent import commands
from holdfast.gateway import gateway_context, inbound, metrics, outbox, router, routes, runtimes
from holdfast.gateway import platform as gateway_platform
from holdfast.gateway import settings as gateway_settings
from holdfast.model import base as models
from holdfast.store import async_db

logger = logging.getLogger("holdfast.gateway")

MIN_RESTART, MAX_RESTART = 1.0, 60.0
"""Seconds until a platform that failed is run again, doubled each time."""
OTHER_PROFILE = (
    "gateway.profile: this store belongs to the profile {kept}, but the settings say {wanted}. Set `gateway.profile` "
    "to {kept}, or use another store (--db, or HOLDFAST_DB)."
)
READY_SECONDS = 20.0
"""The seconds after which the gateway is ready without the platforms that have not connected."""
CANCEL_SECONDS = 10.0
"""The seconds after which a task that did not end is cancelled again."""
MAX_ERROR = 300
"""The longest text of an error in the log, in columns."""
DRAIN_SECONDS = 5.0
"""How long due messages are still sent when a gateway stops."""


class Gateway:
    """Everything between platforms and agents in one process. Several gateways may share a store."""

    def __init__(
        self,
        db: async_db.AsyncSessionDB,
        factory: runtimes.RuntimeFactory,
        platforms: Sequence[gateway_platform.Platform],
        *,
        settings: gateway_settings.GatewaySettings | None = None,
        checks: Sequence[gateway_platform.AdmissionCheck] = (),
        is_admin: gateway_platform.SenderCheck = gateway_context.is_never,
        may_speak: gateway_platform.SenderCheck = gateway_context.is_always,
        is_shared: Callable[[gateway_platform.Incoming], bool] = inbound.is_never_shared,
        max_runtimes: int = runtimes.MAX_RUNTIMES,
        clock: Callable[[], float] = time.time,
        meter: metrics.GatewayMetrics | None = None,
        save_file: gateway_context.SaveFile | None = None,
    ) -> None:
        settings = settings or gateway_settings.GatewaySettings()
        self.metrics = meter or metrics.GatewayMetrics()
        self.platforms = {each.name: each for each in platforms}
        self.connecting = set[str]()
        """The platforms that `wait_ready` did not wait for."""
        self.grace = settings.grace
        self.senders = {
            name: outbox.Sender(
                db, each, clock, poll_seconds=settings.poll, retry_seconds=settings.retry, may_speak=may_speak
            )
            for name, each in self.platforms.items()
        }
        self.runtimes = runtimes.RuntimePool(factory, max_runtimes=max_runtimes)
        context = gateway_context.GatewayContext(
            db,
            self.runtimes,
            self.platforms,
            settings,
            is_admin,
            self._wake_sender,
            clock,
            self.metrics,
            {name: gateway_platform.find_abilities(each) for name, each in self.platforms.items()},
            may_speak,
            save_file,
        )
        self._db, self._profile = db, settings.profile
        self.router = router.Router(context)
        self.handler = inbound.InboundHandler(
            db,
            self.router.notify,
            profile=settings.profile,
            checks=checks,
            is_shared=is_shared,
            wake_sender=self._wake_sender,
            count=self.metrics.count_inbound,
            ask=self._ask_model,
            remember_days=settings.remember,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._receiving: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        """Start. Raises SettingInvalid if the store belongs to another profile."""
        await self._check_profile()
        self._tasks = [asyncio.create_task(self.router.run())]
        self._tasks += [asyncio.create_task(each.run()) for each in self.senders.values()]
        self._receiving = [asyncio.create_task(self._receive(each)) for each in self.platforms.values()]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def wait_ready(self, seconds: float = READY_SECONDS) -> None:
        """Wait until every platform that reports it receives messages. One that cannot connect does not stop others."""

        async def wait(name: str, each: gateway_platform.ReportsReady) -> None:
            try:
                async with asyncio.timeout(seconds):
                    await each.wait_ready()
            except TimeoutError:
                self.connecting.add(name)
                logger.warning("%s is not ready after %.0f s; the gateway continues without it", name, seconds)

        reporting = self.platforms.items()
        await asyncio.gather(
            *(wait(name, each) for name, each in reporting if isinstance(each, gateway_platform.ReportsReady))
        )

    async def wait_failed(self) -> None:
        """Wait until the router or a sender fails, and raise its error."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def stop(self) -> None:
        """Stop receiving, then stop beginning turns, then send what is due. The rest stays in the store."""
        await _cancel(self._receiving)
        try:
            await self.router.stop(self.grace)
            if self.grace:
                await asyncio.gather(*(each.drain(DRAIN_SECONDS) for each in self.senders.values()))
        finally:
            await _cancel(self._tasks)
            await self.runtimes.close()
            await self._close_platforms()

    async def _close_platforms(self) -> None:
        for each in self.platforms.values():
            try:
                if isinstance(each, gateway_platform.HasConnections):
                    await each.close()
            except Exception:
                # The border to a platform.
                logger.exception("%s failed to close its connections", each.name)

    def _wake_sender(self, platform: str) -> None:
        """Let the sender of this platform look for due messages, if this process has one."""
        if platform in self.senders:
            self.senders[platform].wake()

    async def _ask_model(self, identity: str, request: models.Request) -> models.Reply:
        async with self.runtimes.use(routes.Principal(identity, identity)) as runtime:
            return await runtime.ask(request)

    async def _check_profile(self) -> None:
        """A store has one profile, because every gateway of a store processes all of its chats."""
        wanted = self._profile
        kept = await self._db.admin.get_or_set_profile(wanted)
        if kept != wanted:
            raise errors.SettingInvalid(OTHER_PROFILE.format(kept=errors.quote(kept), wanted=errors.quote(wanted)))

    async def _receive(self, platform: gateway_platform.Platform) -> None:
        """Run a platform, again after each failure; a failure affects no other platform."""
        pause, has_commands = MIN_RESTART, False
        while True:
            began = time.monotonic()
            has_commands = has_commands or await self._show_commands(platform)
            try:
                await platform.run(self.handler)
                return
            except Exception as error:  # noqa: BLE001 -- the border to a platform
                pause = MIN_RESTART if time.monotonic() - began > MAX_RESTART else pause
                wait = max(pause, gateway_platform.requested_pause(error))
                _log_failure(error, "%s stopped receiving; restarting in %.0f s", platform.name, wait)
            await asyncio.sleep(wait)
            pause = min(2 * pause, MAX_RESTART)

    async def _show_commands(self, platform: gateway_platform.Platform) -> bool:
        """Let a platform list the commands; return whether it succeeded."""
        try:
            if not isinstance(platform, gateway_platform.ShowsCommands):
                return True
            await platform.show_commands([each for each in commands.COMMANDS.values() if "chat" in each.places])
        except Exception as error:  # noqa: BLE001 -- the border to a platform; its list of commands is optional
            _log_failure(error, "%s failed to show the commands", platform.name)
            return False
        return True


def _log_failure(error: Exception, message: str, *arguments: object) -> None:
    """Log an error of a platform. Only a probable defect has a traceback: services raise errors of their own."""
    is_defect = type(error).__module__ == "builtins" and not isinstance(error, OSError)
    text = safe_text.clip(" ".join(str(error).split()), MAX_ERROR)
    shown = text if isinstance(error, errors.HoldfastError) else f"{type(error).__name__}: {text}".removesuffix(": ")
    logger.warning(f"{message}: %s", *arguments, shown, exc_info=is_defect)


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    pending = set(tasks)
    while pending:
        # Again after a while: `asyncio.wait_for` of Python 3.11 can swallow a cancellation.
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=CANCEL_SECONDS)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a part of the gateway had failed", exc_info=error)
    tasks.clear()
