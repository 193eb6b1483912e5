"""A person at a terminal, in this process: a chat with a model that says what it is told, and a screen to look at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import PipeInput, create_pipe_input

from holdfast import AsyncSessionDB, types
from holdfast.chat import chat, input_line, renderer
from holdfast.model import ScriptedModel, base
from tests.support import approvals
from tests.support.screen import Screen

STOP, LEAVE, ENTER = "\x03", "\x04", "\r"


class Dictated(ScriptedModel):
    """Says what is put into `words`, as it comes; None ends a reply, a command calls the shell with it."""

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
        self.words.put_nowait(types.ToolCall(f"c{len(self.requests)}", "shell", cast("Any", command)))

    @property
    def told(self) -> list[str]:
        """What people said to it, as of its last request."""
        return [str(each.content) for each in self.requests[-1].messages if each.role == "user"]


class Paper:
    """The screen, with or without colours."""

    def __init__(self, screen: Screen, colour: bool) -> None:
        self.out, self.colour = cast("Any", screen), colour

    def style(self, line: str, *names: str) -> str:
        return f"\x1b[2m{line}\x1b[0m" if self.colour and names else line


class Sitting:
    """What tests do and see."""

    def __init__(self, home: approvals.House, source: PipeInput, screen: Screen, colour: bool, history: str) -> None:
        self.home, self.source, self.screen = home, source, screen
        self.model = Dictated()
        home.model = self.model
        device = input_line.TerminalDevice(
            source, renderer.TerminalOutput(cast("Any", screen), lambda: Size(screen.size.rows, screen.size.columns))
        )
        opening = chat.ChatOptions("talk", "Holdfast", "a/b", history)
        self.chat = chat.Chat(home.door, Paper(screen, colour), opening, device=device)
        self.ended = asyncio.create_task(self.chat.run())

    @property
    def prompt(self) -> input_line.PromptLine:
        front = self.chat._terminal
        assert isinstance(front, input_line.PromptLine)
        return front

    def type(self, keys: str) -> None:
        self.source.send_text(keys)

    @property
    def line(self) -> str:
        """What stands at the prompt, and the line under it."""
        return self.screen.shown[len(self.screen.above) :].strip("\n")

    async def until(self, happened: Callable[[], object]) -> None:
        while not happened():
            if self.ended.done():
                self.ended.result()
                assert happened(), self.screen.shown
            await asyncio.sleep(0.002)

    async def sees(self, *texts: str) -> str:
        """The screen, once all this is on it."""
        try:
            async with asyncio.timeout(60):
                await self.until(lambda: all(each in self.screen.shown for each in texts))
        except TimeoutError:
            raise AssertionError(f"{texts} is not in:\n{self.screen.shown}") from None
        return self.screen.shown

    async def idles(self) -> str:
        await self.until(lambda: self.line.startswith(">") and "answering" not in self.line)
        return self.screen.shown


@asynccontextmanager
async def sitting(
    db: AsyncSessionDB, columns: int = 60, rows: int = 20, *, colour: bool = True, history: str = "/dev/null/none"
) -> AsyncIterator[Sitting]:
    home = approvals.House(db, [])
    with create_pipe_input() as source:
        async with home.door:
            sits = Sitting(home, source, Screen(columns, rows), colour, history)
            try:
                await sits.sees("> ")
                yield sits
            finally:
                sits.ended.cancel()
                await asyncio.wait([sits.ended])
