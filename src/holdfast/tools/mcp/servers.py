"""The MCP servers of an agent: their connections, their tools, and their prompts as commands.

A server is started when it is needed, started again after it has ended, and left alone for a while if it ends too
often. Its tools stay in the list meanwhile: a request begins with the tools, so a provider's prompt cache holds as long
as they are the same. The list changes only between turns, if a server has announced a change or has started late.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import shlex
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from holdfast import errors, installation, types
from holdfast.tools import base
from holdfast.tools.mcp import inventory, names, settings

if TYPE_CHECKING:
    from holdfast.tools.mcp import server_connection

logger = logging.getLogger("holdfast.tools")

START_TIMEOUT_SECONDS = 30.0
LIST_TIMEOUT_SECONDS = 15.0
MAX_ENDS, ENDS_WITHIN_SECONDS = 3, 300.0
"""After so many ends within this time a server is left alone."""
BACKOFF_SECONDS = (0.0, 1.0, 3.0)
FIRST_TURN_SECONDS = 5.0
"""Seconds after the start during which the first turn waits for servers."""
REFRESH_SECONDS = 2.0
MAX_TOOLS = 100
"""Of all servers. Providers accept about 128 tools, including the built-in ones."""
MAX_SUMMARY, MAX_LINE = 200, 200

State = Literal["waiting", "starting", "ready", "down"]


class McpServer:
    """One server. A single task runs `run`, which opens and closes the connection; other tasks may call the rest."""

    def __init__(
        self,
        config: settings.ServerConfig,
        folder: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        backoff: Sequence[float] = BACKOFF_SECONDS,
    ) -> None:
        self._config, self._folder, self._clock, self._backoff = config, folder, clock, backoff
        self.name = config.name
        self.state: State = "waiting"
        self.why = ""
        """Why it is down."""
        self.offers = inventory.Inventory()
        self.version = 0
        """Changes with `offers`; 0 until they are known."""
        self.stale = False
        """Whether the server has announced a change of its tools."""
        self.tried = asyncio.Event()
        """Set after the first start, successful or not."""
        self._requested, self._settled, self._over = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._connection: server_connection.ServerConnection | None = None
        self._ends: deque[float] = deque(maxlen=MAX_ENDS)

    # --- the task that owns the connection -----------------------------------------------------------

    async def run(self) -> None:
        """Start the server whenever it is needed, until cancelled."""
        while True:
            await self._requested.wait()
            self._requested.clear()
            self.state = "starting"
            await asyncio.sleep(self._backoff[min(self._recent_ends(), len(self._backoff) - 1)])
            try:
                await self._connect()
            finally:
                self._note_end()

    async def _connect(self) -> None:
        """Connect, and return when the connection has ended; `why` says why."""
        self._over.clear()
        if self._config.missing:
            self.why = f"it needs {', '.join(self._config.missing)} in the environment"
            return
        try:
            module = await asyncio.to_thread(load_sdk)
        except errors.PartMissing as error:
            self.why = str(error)
            return
        made: server_connection.ServerConnection = module.ServerConnection(
            self._config, self._folder, self._over.set, self._mark_stale
        )
        failure: BaseException | None = None
        try:
            await self._serve(made)
        except Exception as error:
            # A border: any error of the SDK or the server means only that the server is down.
            failure = error
            logger.debug("the MCP server %s", self.name, exc_info=True)
        finally:
            self.why = made.explain(failure)

    async def _serve(self, made: server_connection.ServerConnection) -> None:
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(START_TIMEOUT_SECONDS):
                    await stack.enter_async_context(made)
                    self._set_offers(await made.fetch_inventory())
            except TimeoutError:
                raise errors.ToolFailed(f"it was not ready within {START_TIMEOUT_SECONDS:.0f} s") from None
            self._connection, self.state = made, "ready"
            self.tried.set()
            self._settled.set()
            try:
                await self._over.wait()
            finally:
                self._connection = None

    def _note_end(self) -> None:
        # The lost connection of a running HTTP server does not count as its end; a failed connection does.
        if self.state != "ready" or self._config.url is None:
            self._ends.append(self._clock())
        self.state = "down"
        self.tried.set()
        if not self._requested.is_set():  # Otherwise callers wait for the next start.
            self._settled.set()
        logger.info("the MCP server %s is down: %s", self.name, self.why)

    # --- tools and prompts ---------------------------------------------------------------------------

    def request_start(self) -> None:
        """Have the server started, unless it runs or was left alone."""
        if self.state in ("waiting", "down") and self._recent_ends() < MAX_ENDS:
            self._settled.clear()
            self._requested.set()

    async def refresh(self) -> None:
        """Fetch a changed list again; if that fails, the old list stays."""
        connection = self._connection
        if not self.stale or connection is None:
            return
        self.stale = False
        try:
            async with asyncio.timeout(LIST_TIMEOUT_SECONDS):
                self._set_offers(await connection.fetch_inventory())
        except Exception as error:
            # The same border as above.
            logger.warning("the MCP server %s did not list its tools again: %s", self.name, connection.explain(error))
            logger.debug("the MCP server %s did not list its tools", self.name, exc_info=True)

    def _mark_stale(self) -> None:
        self.stale = True

    def _set_offers(self, offers: inventory.Inventory) -> None:
        if offers != self.offers or not self.version:
            self.offers = offers
            self.version += 1

    async def connect(self) -> server_connection.ServerConnection:
        """Return the connection, of a server that is started if necessary. Raise ToolFailed if there is none."""
        if self._connection is None or self._over.is_set():
            if self._recent_ends() >= MAX_ENDS:
                raise self._unavailable(
                    f"stopped {MAX_ENDS} times within {ENDS_WITHIN_SECONDS / 60:.0f} minutes and is left alone for a "
                    f"while. The last time: {self.why}"
                )
            if self.state != "starting":
                self._settled.clear()
                self._requested.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(START_TIMEOUT_SECONDS + sum(self._backoff)):
                    await self._settled.wait()
        if self._connection is None:
            raise self._unavailable(f"is not available: {self.why or 'it takes too long to start'}")
        return self._connection

    def _recent_ends(self) -> int:
        since = self._clock() - ENDS_WITHIN_SECONDS
        return sum(each > since for each in self._ends)

    def _unavailable(self, what: str) -> errors.ToolFailed:
        return errors.ToolFailed(f"The MCP server {names.one_line(self.name, 60)} {what.rstrip('.')}.")


def load_sdk() -> Any:
    """Import the module that uses the MCP SDK. Raise PartMissing if the SDK is not installed."""
    try:
        return importlib.import_module("holdfast.tools.mcp.server_connection")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("holdfast"):
            raise
        why = f"The support for MCP servers is not installed. Run: {installation.install_command('mcp')}"
        raise errors.PartMissing(why) from None


# --- all servers ---------------------------------------------------------------------------------------


class PromptCommand(msgspec.Struct, frozen=True):
    """A prompt as a command: `server:prompt`."""

    name: str
    help: str
    argument: str


class McpServers:
    """The servers of the settings. `async with` starts them in the background, and stops them."""

    def __init__(
        self,
        configs: Iterable[settings.ServerConfig],
        folder: str,
        *,
        patience: float = FIRST_TURN_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        backoff: Sequence[float] = BACKOFF_SECONDS,
    ) -> None:
        self.servers = [McpServer(each, folder, clock=clock, backoff=backoff) for each in configs]
        self._patience = patience
        self._tasks: list[asyncio.Task[None]] = []
        self._until = 0.0
        self._tools_of: tuple[int, ...] = ()
        self._tools: tuple[base.Tool, ...] = ()
        self._late = set[str]()
        self._refreshing = set[asyncio.Task[None]]()

    async def __aenter__(self) -> Self:
        self._until = asyncio.get_running_loop().time() + self._patience
        self._tasks = [asyncio.create_task(each.run()) for each in self.servers]
        for each in self.servers:
            each.request_start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [*self._tasks, *self._refreshing]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def wait_started(self, seconds: float) -> None:
        """Wait until each server has been started once or has failed, with a timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for each in self.servers:
                    await each.tried.wait()

    # --- tools ---------------------------------------------------------------------------------------

    async def offer(self) -> base.Offer:
        """Return the tools at the start of a turn: the same object as long as they do not change."""
        await self.wait_started(self._until - asyncio.get_running_loop().time())
        self._refreshing |= {asyncio.create_task(each.refresh()) for each in self.servers if each.stale}
        if self._refreshing:
            self._refreshing = (await asyncio.wait(self._refreshing, timeout=REFRESH_SECONDS))[1]
        for each in self.servers:
            if not each.version:
                each.request_start()
        versions = tuple(each.version for each in self.servers)
        if versions != self._tools_of:
            every = [_build_tool(each, tool) for each in self.servers for tool in each.offers.tools]
            self._tools_of, self._tools = versions, tuple(every[:MAX_TOOLS])
        return base.Offer(self._tools, tuple(self._remarks()))

    def _remarks(self) -> Iterable[str]:
        for each in self.servers:
            name = names.one_line(each.name, 60)
            if not each.version:
                self._late.add(each.name)
                why = f"is not available: {each.why}" if each.why else "has not started yet"
                yield f"The MCP server {name} {why}. Its tools are added when it is."
            elif each.name in self._late:
                yield f"The MCP server {name} is available now, with {len(each.offers.tools)} tools."
            if each.offers.left_out:
                which = names.one_line(", ".join(each.offers.left_out), 500)
                yield f"The MCP server {name} has tools that cannot be used: {which}."
        beyond = sum(len(each.offers.tools) for each in self.servers) - MAX_TOOLS
        if beyond > 0:
            yield f"{beyond} tools of MCP servers are left out: {MAX_TOOLS} is the limit. Choose with `tools`."

    # --- prompts -------------------------------------------------------------------------------------

    def listed(self) -> Sequence[PromptCommand]:
        """Return the prompts as commands."""
        return [
            PromptCommand(
                name, prompt.help or f"A prompt of the MCP server {names.one_line(each.name, 60)}.", _usage(prompt)
            )
            for name, (each, prompt) in self._prompts().items()
        ]

    async def text(self, name: str, argument: str) -> str | None:
        """Return the text of a prompt; None if there is no such command. Raise ToolFailed if that fails."""
        found = self._prompts().get(name)
        if found is None:
            return None
        each, prompt = found
        arguments = _parse_arguments(prompt, argument)
        text = await (await each.connect()).prompt(prompt.name, arguments)
        if not text.strip():
            raise errors.ToolFailed(f"The prompt {errors.quote(name)} is empty.")
        return text

    def _prompts(self) -> Mapping[str, tuple[McpServer, inventory.ServerPrompt]]:
        found: dict[str, tuple[McpServer, inventory.ServerPrompt]] = {}
        for each in self.servers:
            for prompt in each.offers.prompts:
                # Of two with the same typed name, the first is used.
                name = f"{names.prefix(each.name)}:{names.typed_name(prompt.name)}".lower()
                found.setdefault(name, (each, prompt))
        return found


def _build_tool(each: McpServer, tool: inventory.ServerTool) -> base.Tool:
    """Build a tool of a server. Every call needs a permission, even if the server calls the tool read-only."""

    async def run(arguments: base.Arguments) -> base.Plan:
        given = msgspec.json.encode(arguments).decode()
        whole = f"{each.name}: {tool.name} {given}"
        summary = names.one_line(whole, MAX_SUMMARY)
        detail = "" if summary == whole else _format_call(tool.name, given)
        act = base.Act(tool=tool.spec.name, kind="reach", summary=summary, detail=detail)

        async def go() -> types.Content:
            return await (await each.connect()).call(tool.name, arguments, base.current().say)

        return base.Plan(act, go)

    return base.Tool(tool.spec, run)


def _format_call(tool: str, given: str) -> str:
    """Return everything that would be sent, for approval. Unprintable characters are escaped as in JSON."""
    lines = msgspec.json.format(f"[{msgspec.json.encode(tool).decode()},{given}]", indent=1).split("\n")[1:-1]
    shown = ("".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line[1:]) for line in lines)
    # Front ends limit the number of lines, so a line has a limited length.
    return "\n".join(line[at : at + MAX_LINE] for line in shown for at in range(0, len(line), MAX_LINE))


def _usage(prompt: inventory.ServerPrompt) -> str:
    named = ((names.typed_name(name), required) for name, required in prompt.arguments)
    return " ".join(f"{name}=…" if required else f"[{name}=…]" for name, required in named)


def _parse_arguments(prompt: inventory.ServerPrompt, argument: str) -> dict[str, str]:
    """Parse `name=value` pairs, quoted as in a shell. Text without names is the first argument."""
    known = {names.typed_name(name): name for name, _ in prompt.arguments}
    given: dict[str, str] = {}
    if argument and known:
        try:
            pieces = [piece.partition("=") for piece in shlex.split(argument)]
        except ValueError:
            raise errors.ToolFailed("A quotation mark is not closed.") from None
        if all(equals and name in known for name, equals, _ in pieces):
            given = {known[name]: value for name, _, value in pieces}
        else:
            given = {next(iter(known.values())): argument}
    elif argument:
        raise errors.ToolFailed("This prompt takes no arguments.")
    missing = [names.typed_name(name) for name, required in prompt.arguments if required and name not in given]
    if missing:
        raise errors.ToolFailed(f"Missing: {', '.join(missing)}. Usage: {_usage(prompt)}.")
    return given
