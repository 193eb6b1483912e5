"""All servers of tools together: what an agent gets of them, and their prompts as commands.

What is offered changes only between turns, and only when a server has said that it did, or came late: a request
begins with the tools, so a provider's prompt cache holds for as long as they are the same, byte for byte. A server
that died keeps its place: its tools stay in the list, and the next call starts it.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

import msgspec

from holdfast import errors, types
from holdfast.tools import base
from holdfast.tools.mcp import catalog, names, server, settings

PATIENCE = 5.0
"""How long after the start the first turn waits for servers that are not there yet."""
MOST_TOOLS = 100
"""In all: providers take some 128, and there are others."""
REFRESHING = 2.0
SUMMARY, WIDTH = 200, 200


class Standing(msgspec.Struct, frozen=True):
    """A prompt as a command: `server:prompt`."""

    name: str
    help: str
    argument: str


class Servers:
    """The servers settings name. `async with` starts them beside everything else, and ends them."""

    def __init__(
        self,
        wanted: Iterable[settings.Wanted],
        folder: str,
        *,
        patience: float = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
        backoff: Sequence[float] = server.BACKOFF,
    ) -> None:
        self.servers = [server.Server(each, folder, clock=clock, backoff=backoff) for each in wanted]
        self._patience = patience
        self._owners: list[asyncio.Task[None]] = []
        self._until = 0.0
        self._made: tuple[tuple[int, ...], tuple[base.Tool, ...], int] = ((), (), 0)
        self._late = set[str]()
        self._refreshing = set[asyncio.Task[None]]()

    async def __aenter__(self) -> Self:
        self._until = asyncio.get_running_loop().time() + self._patience
        self._owners = [asyncio.create_task(each.run()) for each in self.servers]
        for each in self.servers:
            each.want()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        under_way = [*self._owners, *self._refreshing]
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way)

    async def tried(self, seconds: float) -> None:
        """Until each server was started once, or could not be; no longer than this."""
        waiting = [asyncio.ensure_future(each.tried.wait()) for each in self.servers if not each.tried.is_set()]
        if not waiting:
            return
        try:
            await asyncio.wait(waiting, timeout=max(0.0, seconds))
        finally:
            for each in waiting:
                each.cancel()

    # --- tools ---------------------------------------------------------------------------------------

    async def offered(self) -> base.Offer:
        """What there is at the start of a turn. The tools are the same object for as long as they are the same."""
        await self.tried(self._until - asyncio.get_running_loop().time())
        self._refreshing |= {asyncio.create_task(each.refresh()) for each in self.servers if each.stale}
        if self._refreshing:
            self._refreshing = (await asyncio.wait(self._refreshing, timeout=REFRESHING))[1]
        for each in self.servers:
            if not each.version:
                each.want()
        tools, beyond = self._tools()
        return base.Offer(tools, tuple(self._remarks(beyond)))

    def _tools(self) -> tuple[tuple[base.Tool, ...], int]:
        """The tools of all, and how many were too many."""
        versions = tuple(each.version for each in self.servers)
        if versions != self._made[0]:
            every = [_tool(each, listed) for each in self.servers for listed in each.offers.tools]
            self._made = (versions, tuple(every[:MOST_TOOLS]), max(0, len(every) - MOST_TOOLS))
        return self._made[1:]

    def _remarks(self, beyond: int) -> Iterable[str]:
        for each in self.servers:
            name = names.line(each.name, 60)
            if not each.version:
                self._late.add(each.name)
                why = f"is not there: {each.why}" if each.why else "is not there yet"
                yield f"The MCP server {name} {why}. Its tools come when it is."
            elif each.name in self._late:
                yield f"The MCP server {name} is there now, with {len(each.offers.tools)} tools."
            if each.offers.left_out:
                which = names.line(", ".join(each.offers.left_out), 500)
                yield f"The MCP server {name} has tools that cannot be used: {which}."
        if beyond:
            yield f"{beyond} tools of MCP servers are too many, and left out: `tools` of a server says which to take."

    # --- prompts -------------------------------------------------------------------------------------

    def listed(self) -> Sequence[Standing]:
        """The prompts there are, as commands."""
        return [
            Standing(name, prompt.help or f"A prompt of the MCP server {names.line(each.name, 60)}.", _usage(prompt))
            for name, (each, prompt) in self._prompts().items()
        ]

    async def text(self, name: str, argument: str) -> str | None:
        """What a command stands for; None where there is no such command. ToolFailed where it cannot be had."""
        found = self._prompts().get(name)
        if found is None:
            return None
        each, prompt = found
        said = await each.prompt(prompt.name, _arguments(prompt, argument))
        if not said.strip():
            raise errors.ToolFailed(f"The prompt {errors.quote(name)} is empty.")
        return said

    def _prompts(self) -> Mapping[str, tuple[server.Server, catalog.Prompt]]:
        found: dict[str, tuple[server.Server, catalog.Prompt]] = {}
        for each in self.servers:
            for prompt in each.offers.prompts:
                # Of two that are typed alike, the first one listed is meant.
                found.setdefault(f"{names.prefix(each.name)}:{names.word(prompt.name)}".lower(), (each, prompt))
        return found


def _tool(each: server.Server, listed: catalog.Listed) -> base.Tool:
    """A tool of a server. How harmless the server says it is changes nothing: each call needs a permission."""

    async def run(arguments: base.Arguments) -> base.Plan:
        given = msgspec.json.encode(arguments).decode()
        whole = f"{each.name}: {listed.name} {given}"
        summary = names.line(whole, SUMMARY)
        detail = "" if summary == whole else _detail(listed.name, given)
        act = base.Act(tool=listed.spec.name, kind="reach", summary=summary, detail=detail)

        async def go() -> types.Content:
            return await each.call(listed.name, arguments, base.current().say)

        return base.Plan(act, go)

    return base.Tool(listed.spec, run)


def _detail(tool: str, given: str) -> str:
    """Everything that would be sent: nobody can permit what is not shown. What cannot be seen is spelled as in JSON."""
    lines = msgspec.json.format(f"[{msgspec.json.encode(tool).decode()},{given}]", indent=1).split("\n")[1:-1]
    shown = ("".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line[1:]) for line in lines)
    # Whoever shows only so many lines must be able to count on what a line is.
    return "\n".join(line[at : at + WIDTH] for line in shown for at in range(0, len(line), WIDTH))


def _usage(prompt: catalog.Prompt) -> str:
    named = (f"{names.word(name)}=…" if needed else f"[{names.word(name)}=…]" for name, needed in prompt.arguments)
    return " ".join(named)


def _arguments(prompt: catalog.Prompt, said: str) -> dict[str, str]:
    """`name=value` pairs, quoted as in a shell; where no name is given, all of it is the first argument."""
    known = {names.word(name): name for name, _ in prompt.arguments}
    given: dict[str, str] = {}
    if said and known:
        try:
            pieces = [piece.partition("=") for piece in shlex.split(said)]
        except ValueError:
            raise errors.ToolFailed("A quotation mark is not closed.") from None
        if all(equals and name in known for name, equals, _ in pieces):
            given = {known[name]: value for name, _, value in pieces}
        else:
            given = {next(iter(known.values())): said}
    elif said:
        raise errors.ToolFailed("This prompt takes nothing after it.")
    missing = [names.word(name) for name, needed in prompt.arguments if needed and name not in given]
    if missing:
        raise errors.ToolFailed(f"Missing: {', '.join(missing)}. It takes {_usage(prompt)}.")
    return given
