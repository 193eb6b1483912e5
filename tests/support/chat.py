"""A chat in this process: a pipe for keys, an emulated terminal, and a model that says what a test dictates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from prompt_toolkit.input import PipeInput, create_pipe_input

from holdfast import content_parts, types
from holdfast.chat import chat, input_line, renderer
from holdfast.model import ScriptedModel, base
from tests.support import agents, approvals, polling
from tests.support.screen import Screen

STOP, LEAVE, ENTER = "\x03", "\x04", "\r"


class DictatedModel(ScriptedModel):
    """Streams the texts put into `words`; None ends a reply, a tool call ends it with that call."""

    def __init__(self, window: int = 200_000) -> None:
        super().__init__(window=window)
        self.words: asyncio.Queue[str | types.ToolCall | None] = asyncio.Queue()

    async def stream(self, request: base.Request) -> AsyncGenerator[base.Delta, None]:
        self.requests.append(request)
        while isinstance(said := await self.words.get(), str):
            yield base.ContentDelta(said)
        if said is not None:
            yield base.ToolCallDelta(0, said.id, said.name, f'{{"command": "{said.arguments}"}}')
        yield base.FinishDelta("stop" if said is None else "calls")

    def say(self, *words: str | None) -> None:
        for each in words:
            self.words.put_nowait(each)

    def run(self, command: str) -> None:
        """Call the shell with a command."""
        self.words.put_nowait(types.ToolCall(f"c{len(self.requests)}", "shell", cast("Any", command)))


class Paper:
    """The output of a chat, with or without colours."""

    def __init__(self, screen: Any, colour: bool = False) -> None:
        self.out, self.colour = screen, colour

    def style(self, line: str, *names: str) -> str:
        return f"\x1b[2m{line}\x1b[0m" if self.colour and names else line


class ChatDriver:
    """A running chat on the conversation `talk`."""

    def __init__(
        self, home: approvals.ApprovalRuntime, source: PipeInput, screen: Screen, colour: bool, history: str
    ) -> None:
        self.home, self._source, self.screen = home, source, screen
        self.db, self.runtime, self.shell = home.db, home.door, home.shell
        home.model = self.model = DictatedModel()
        output = renderer.TerminalOutput(cast("Any", screen), lambda: screen.size)
        device = input_line.TerminalDevice(source, output)
        options = chat.ChatOptions("talk", "Holdfast", "a/b", history)
        self.chat = chat.Chat(home.door, Paper(screen, colour), options, device=device)
        self.session = self.chat.session
        self.ended = asyncio.create_task(self.chat.run())

    @property
    def prompt(self) -> input_line.PromptLine:
        terminal = self.chat._terminal
        assert isinstance(terminal, input_line.PromptLine)
        return terminal

    def type(self, keys: str) -> None:
        self._source.send_text(keys)

    def enter(self, *lines: str) -> None:
        """Type lines, each with Enter."""
        self.type("".join(f"{line}{ENTER}" for line in lines))

    @property
    def shown(self) -> str:
        return self.screen.shown

    @property
    def line(self) -> str:
        """The prompt and the line under it."""
        return self.shown[len(self.screen.above) :].strip("\n")

    async def messages(self) -> list[tuple[str, str]]:
        """Return role and first part of the stored messages, without tool results."""
        log = [each for each in await self.db.transcript("talk") if each.role != "tool"]
        return [(each.role, content_parts.text(each.content).partition("\n[")[0]) for each in log]

    async def until(self, condition: Callable[[], object], what: str = "the condition") -> None:
        """Wait until the condition holds; an error of the chat is raised."""
        await polling.until_async(lambda: self.ended.done() or condition(), what)
        if not condition():
            self.ended.result()
            raise AssertionError(self.shown)

    async def wait_for(self, *texts: str) -> str:
        """Return the screen when it shows all these texts."""
        await self.until(lambda: all(each in self.shown for each in texts), f"{texts} on the screen")
        return self.shown

    async def wait_idle(self) -> str:
        await self.until(lambda: self.line.startswith(">") and "answering" not in self.line)
        return self.shown


@asynccontextmanager
async def open_chat(
    columns: int = 60, rows: int = 20, *, colour: bool = True, history: str = "/dev/null/none", **given: Any
) -> AsyncIterator[ChatDriver]:
    """Open a chat on a new store."""
    async with agents.store() as db:
        home = approvals.ApprovalRuntime(db, [], **given)
        with create_pipe_input() as source:
            async with home.door:
                driver = ChatDriver(home, source, Screen(columns, rows), colour, history)
                try:
                    await driver.wait_for("> ")
                    yield driver
                finally:
                    driver.ended.cancel()
                    await asyncio.wait([driver.ended])
