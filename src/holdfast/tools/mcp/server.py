"""One server: started when it is wanted, started again when it died, left alone when it dies too often.

Its connection is opened and closed by one task, the owner, as the protocol's library wants it. Everybody else
waits for the owner to say that the server is ready, and then asks directly.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Literal

from holdfast import errors, types
from holdfast.tools import base
from holdfast.tools.mcp import catalog, names, settings

if TYPE_CHECKING:
    from holdfast.tools.mcp import client

logger = logging.getLogger("holdfast.tools")

INSTALL = "servers of tools need another part: pip install 'holdfast[mcp]'"
STARTING = 30.0
LISTING = 15.0
DEATHS, WITHIN = 3, 300.0
BACKOFF = (0.0, 1.0, 3.0)

State = Literal["waiting", "starting", "ready", "down"]


class Server:
    """A server of tools. `run` is the owner's; everything else may be called by anybody."""

    def __init__(
        self,
        wanted: settings.Wanted,
        folder: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        backoff: Sequence[float] = BACKOFF,
    ) -> None:
        self._wanted, self._folder, self._clock, self._backoff = wanted, folder, clock, backoff
        self.name = wanted.name
        self.state: State = "waiting"
        self.why = ""
        """Why it is down."""
        self.offers = catalog.Listing()
        self.version = 0
        """Changes with what is offered; 0 while that is not known."""
        self.stale = False
        """Whether it said that it offers something else now."""
        self.tried = asyncio.Event()
        """Set when the first start came to an end, good or bad."""
        self._asked_for, self._settled, self._over = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._connection: client.Connection | None = None
        self._deaths: deque[float] = deque(maxlen=DEATHS)

    # --- the owner -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Have the server there whenever it is wanted, until cancelled."""
        while True:
            await self._asked_for.wait()
            self._asked_for.clear()
            self.state = "starting"
            await asyncio.sleep(self._backoff[min(self._recent(), len(self._backoff) - 1)])
            try:
                await self._served()
            finally:
                self._down()

    async def _served(self) -> None:
        """From its start to its end."""
        self._over.clear()
        if self._wanted.missing:
            self.why = f"it needs {', '.join(self._wanted.missing)} in the environment"
            return
        try:
            part = await asyncio.to_thread(loaded)
        except errors.PartMissing as error:
            self.why = str(error)
            return
        made: client.Connection = part.Connection(self._wanted, self._folder, self._over.set, self._changed)
        why: BaseException | None = None
        try:
            await self._spoken(made)
        except Exception as error:
            # The border to code that is not ours: whatever it raises, the server is down, and that is all.
            why = error
            logger.debug("the MCP server %s", self.name, exc_info=True)
        finally:
            self.why = made.why(why)

    async def _spoken(self, made: client.Connection) -> None:
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(STARTING):
                    await stack.enter_async_context(made)
                    self._take(await made.listed())
            except TimeoutError:
                raise errors.ToolFailed(f"it was not ready within {STARTING:.0f} s") from None
            self._connection, self.state = made, "ready"
            self.tried.set()
            self._settled.set()
            try:
                await self._over.wait()
            finally:
                self._connection = None

    def _down(self) -> None:
        """What it offers stays, and the next call starts it again."""
        # An address that was there did not die: a connection ended. Only not to be reached counts against it.
        if self.state != "ready" or self._wanted.url is None:
            self._deaths.append(self._clock())
        self.state = "down"
        self.tried.set()
        if not self._asked_for.is_set():  # Else whoever asked meanwhile waits for the next start.
            self._settled.set()
        logger.info("the MCP server %s is down: %s", self.name, self.why)

    # --- what it offers ------------------------------------------------------------------------------

    def want(self) -> None:
        """Have it started, unless it is there or was given up for now."""
        if self.state in ("waiting", "down") and self._recent() < DEATHS:
            self._settled.clear()
            self._asked_for.set()

    async def refresh(self) -> None:
        """Have it list again what it said has changed; where that fails, what was listed stays."""
        now = self._connection
        if not self.stale or now is None:
            return
        self.stale = False
        try:
            async with asyncio.timeout(LISTING):
                self._take(await now.listed())
        except Exception as error:
            # The same border: a list that cannot be had is no reason to do without the one there is.
            logger.warning("the MCP server %s did not list its tools again: %s", self.name, now.why(error))
            logger.debug("why", exc_info=True)

    def _changed(self) -> None:
        self.stale = True

    def _take(self, offers: catalog.Listing) -> None:
        if offers != self.offers or not self.version:
            self.offers = offers
            self.version += 1

    # --- asking --------------------------------------------------------------------------------------

    async def call(self, tool: str, arguments: base.Arguments, say: Callable[[str], None]) -> types.Content:
        """What a tool answered; ToolFailed with what it said, or with why it could not be asked."""
        return await (await self._ready()).call(tool, arguments, say)

    async def prompt(self, prompt: str, arguments: dict[str, str]) -> str:
        """The text a prompt stands for; ToolFailed where it cannot be had."""
        return await (await self._ready()).prompt(prompt, arguments)

    async def _ready(self) -> client.Connection:
        """The connection, of a server that is started for it where need be."""
        if self._connection is None or self._over.is_set():
            if self._recent() >= DEATHS:
                raise self._absent(
                    f"stopped {DEATHS} times within {WITHIN / 60:.0f} minutes and is left alone for a while. "
                    f"The last time: {self.why}"
                )
            if self.state != "starting":
                self._settled.clear()
                self._asked_for.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(STARTING + sum(self._backoff)):
                    await self._settled.wait()
        if self._connection is None:
            raise self._absent(f"is not there: {self.why or 'it takes too long to start'}")
        return self._connection

    def _recent(self) -> int:
        """How often it ended lately."""
        since = self._clock() - WITHIN
        return sum(each > since for each in self._deaths)

    def _absent(self, what: str) -> errors.ToolFailed:
        return errors.ToolFailed(f"The MCP server {names.line(self.name, 60)} {what.rstrip('.')}.")


def loaded() -> Any:
    """What speaks the protocol. It takes a second to load, so that is done beside the work, and only where needed."""
    try:
        return importlib.import_module("holdfast.tools.mcp.client")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("holdfast"):
            raise
        raise errors.PartMissing(INSTALL) from None
