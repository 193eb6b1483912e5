"""The full-screen app in this process: keys and mouse by Textual's pilot, and a dictated model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from textual.pilot import Pilot
from textual.widgets import Input, Static

from holdfast import AsyncSessionDB, events, types
from holdfast.agent import approvals
from holdfast.tui import app, conversation_list
from tests.support import agents, polling
from tests.support.approvals import ApprovalRuntime
from tests.support.chat import DictatedModel

Setup = Callable[[AsyncSessionDB], Awaitable[None]]


class TuiDriver:
    """A running app on the conversation `talk`."""

    def __init__(self, home: ApprovalRuntime, app: app.FullScreen, pilot: Pilot[None], model: DictatedModel) -> None:
        self.home, self.app, self.pilot, self.model = home, app, pilot, model
        self.db, self.runtime, self.shell = home.db, home.door, home.shell

    async def type(self, words: str, *keys: str) -> None:
        """Write words at the prompt and press keys, Enter without any."""
        self.app.prompt.put(words)
        await self.pilot.press(*(keys or ("enter",)))

    async def until(self, condition: Callable[[], object], what: str = "the condition") -> None:
        await polling.until_async(condition, what)

    async def ask(self, asked: events.ApprovalAsked) -> None:
        """Show an approval request."""
        pending = approvals.PendingApproval(asked, (), asyncio.get_running_loop().create_future())
        self.runtime.approvals._pending["talk", asked.request_id] = pending
        await self.app.show_event(asked)

    async def open_list(self) -> Input:
        """Open the list of conversations and return its filter."""
        await self.pilot.press("ctrl+o")
        await self.until(lambda: isinstance(self.app.screen, conversation_list.ConversationScreen))
        await self.until(lambda: self.app.screen.query("#lineage") and isinstance(self.app.focused, Input))
        return self.app.screen.query_one(Input)

    @property
    def shown(self) -> str:
        return "\n".join(self.app.transcript.visible_rows)

    def text_of(self, name: str) -> str:
        return str(self.app.screen_stack[0].query_one(f"#{name}", Static).content)

    async def wait_for(self, *texts: str) -> str:
        """Return the visible transcript when it has all these texts."""
        await self.until(lambda: all(each in self.shown for each in texts), f"{texts} in the transcript")
        return self.shown

    async def wait_idle(self) -> None:
        await self.until(lambda: not self.runtime.running("talk") and self.app._turn_seq is None)


@asynccontextmanager
async def open_tui(
    setup: Setup | None = None, size: tuple[int, int] = (80, 24), history: str = "/dev/null/none", **given: Any
) -> AsyncIterator[TuiDriver]:
    """Open the app on a new store, after `setup` has written to it."""
    async with agents.store() as db:
        if setup is not None:
            await setup(db)
        home = ApprovalRuntime(db, [], **given)
        home.model = model = DictatedModel()
        async with home.door:
            screen = app.FullScreen(home.door, app.ScreenOptions("talk", "a/b", history))
            screen.approval.grace_seconds = 0.0
            async with screen.run_test(size=size) as pilot:
                yield TuiDriver(home, screen, pilot, model)


def numbered(count: int, uneven: bool = False) -> Setup:
    """Return a setup that stores this many messages; if uneven, the older ones are far taller than the last."""

    async def store(db: AsyncSessionDB) -> None:
        roles: tuple[types.Role, ...] = ("user", "assistant")
        texts = [
            f"number {n + 1} of many" + "\n\nand more" * (n % 9 if uneven and n < count - 40 else 0)
            for n in range(count)
        ]
        await db.create_session("talk", source="test")
        for start in range(0, count, 1000):
            part = enumerate(texts[start : start + 1000])
            await db.append_messages("talk", [types.NewMessage(role=roles[n % 2], content=text) for n, text in part])

    return store


async def two_conversations(db: AsyncSessionDB) -> None:
    """Store `talk` with four messages and `other` with thirty."""
    await numbered(4)(db)
    await db.create_session("other", source="test")
    await db.append_messages("other", [types.NewMessage(role="user", content=f"other {n}") for n in range(30)])
