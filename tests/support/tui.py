"""A person before the full screen, in this process: keys and mouse by Textual's pilot, a model that says what it is
told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from textual.pilot import Pilot
from textual.widgets import Static

from holdfast import AsyncSessionDB, events, types
from holdfast.agent import approvals
from holdfast.tui import app
from tests.support import agents
from tests.support import approvals as house
from tests.support.chat import Dictated


class Seat:
    """What tests do and see."""

    def __init__(self, home: house.House, screen: app.FullScreen, pilot: Pilot[None], model: Dictated) -> None:
        self.home, self.screen, self.pilot, self.model = home, screen, pilot, model

    async def type(self, words: str, *keys: str) -> None:
        self.screen.prompt.put(words)
        await self.pilot.press(*(keys or ("enter",)))

    async def until(self, happened: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not happened():
                await asyncio.sleep(0.002)

    async def ask(self, asked: events.ApprovalAsked) -> None:
        """Let a tool ask."""
        pending = approvals.PendingApproval(asked, (), asyncio.get_running_loop().create_future())
        self.home.door.approvals._pending["talk", asked.request_id] = pending
        await self.screen.show_event(asked)

    @property
    def shown(self) -> str:
        return "\n".join(self.screen.transcript.visible_rows)

    def line(self, name: str) -> str:
        return str(self.screen.screen_stack[0].query_one(f"#{name}", Static).content)

    async def sees(self, *texts: str) -> str:
        """The transcript, once all this is on the screen."""
        try:
            await self.until(lambda: all(each in self.shown for each in texts))
        except TimeoutError:
            raise AssertionError(f"{texts} is not in:\n{self.shown}") from None
        return self.shown

    async def idles(self) -> None:
        await self.until(lambda: not self.home.door.running("talk") and self.screen._turn_seq is None)


@asynccontextmanager
async def seated(
    db: AsyncSessionDB, size: tuple[int, int] = (80, 24), history: str = "/dev/null/none", **given: Any
) -> AsyncIterator[Seat]:
    home = house.House(db, [], **given)
    home.model = model = Dictated()
    async with home.door:
        screen = app.FullScreen(home.door, app.ScreenOptions("talk", "a/b", history))
        screen.approval.grace_seconds = 0.0
        async with screen.run_test(size=size) as pilot:
            yield Seat(home, screen, pilot, model)


@asynccontextmanager
async def sat(past: Callable[[AsyncSessionDB], Awaitable[None]] | None = None, **given: Any) -> AsyncIterator[Seat]:
    """Open the full screen on a store of its own, after `past` has written to it."""
    async with agents.store() as db:
        if past is not None:
            await past(db)
        async with seated(db, **given) as seat:
            yield seat


def long(count: int, uneven: bool = False) -> Callable[[AsyncSessionDB], Awaitable[None]]:
    """A conversation of so many messages, the older ones far taller than the last where it is `uneven`."""

    async def made(db: AsyncSessionDB) -> None:
        await db.create_session("talk", source="test")
        roles: tuple[types.Role, ...] = ("user", "assistant")
        said = [
            types.NewMessage(
                role=roles[n % 2],
                content=f"number {n + 1} of many" + "\n\nand more" * (n % 9 if uneven and n < count - 40 else 0),
            )
            for n in range(count)
        ]
        for start in range(0, count, 1000):
            await db.append_messages("talk", said[start : start + 1000])

    return made
