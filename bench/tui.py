"""The full screen: how long until the end of a conversation is on it, by how long the conversation is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

from textual.strip import Strip

from bench import timing
from bench.figures import Figure, at_most
from bench.scale import Scale
from holdfast import AIAgent, AsyncSessionDB, SessionDB, types
from holdfast.agent import runtime
from holdfast.model import ScriptedModel
from holdfast.terminal import app

FEW = 100
"""Enough to fill the screen and what is drawn around it."""
REPLY = "The **{n}th** answer:\n\n- one thing\n- `another`\n\n```python\nprint({n})\n```\n"


def figures(scale: Scale, folder: Path) -> Iterator[Figure]:
    yield from asyncio.run(_opened(scale, folder))


async def _opened(scale: Scale, folder: Path) -> list[Figure]:
    async with AsyncSessionDB(SessionDB(folder / "store.db")) as db:
        sizes = {"few": FEW, "many": scale.screen_log}
        for name, size in sizes.items():
            await _filled(db, name, size)
        painted: dict[str, list[float]] = {name: [] for name in sizes}
        jumped: list[float] = []
        for number in range(scale.screens + 1):
            for name, size in sizes.items():
                first, jump = await _once(db, name, size)
                if number:  # The first loads what all of them need.
                    painted[name].append(first)
                    jumped += [jump] if name == "many" else []
    middle = timing.medians(painted)
    beside = (f"of {FEW} messages", middle["few"] * 1e3)
    many = f"{scale.screen_log:,}-message conversation"
    return [
        Figure("tui.first", f"first paint of a {many}", "ms", middle["many"] * 1e3, beside, at_most(1.25)),
        Figure("tui.top", f"from the end of a {many} to its first message", "ms", timing.median(jumped) * 1e3),
    ]


async def _filled(db: AsyncSessionDB, name: str, size: int) -> None:
    await db.create_session(name, source="bench")
    said = [
        types.NewMessage(role="user", content=f"question {n}")
        if n % 2
        else types.NewMessage(role="assistant", content=REPLY.format(n=n))
        for n in range(1, size + 1)
    ]
    for start in range(0, size, 1000):
        await db.append_messages(name, said[start : start + 1000])


async def _once(db: AsyncSessionDB, name: str, size: int) -> tuple[float, float]:
    """From the making of the screen to its last message, and from there to the first one."""

    async def build(conversation_id: str) -> AIAgent:
        return AIAgent(db=db, model=ScriptedModel([]), session_id=conversation_id, skip_context_files=True)

    async with runtime.Runtime(db, build) as door:
        began = time.perf_counter()
        screen = app.FullScreen(door, app.Opening(name, "bench", "/dev/null/none"))
        last = _drawn(screen, f"print({size})")
        async with screen.run_test(size=(120, 40)):
            first = await last - began
            top, began = _drawn(screen, "question 1"), time.perf_counter()
            screen.transcript.action_to_top()
            return first, await top - began


def _drawn(screen: app.FullScreen, text: str) -> asyncio.Future[float]:
    """When a row that ends with this is first drawn."""
    found: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    draw = type(screen.transcript).render_line

    def drawing(y: int) -> Strip:
        strip = draw(screen.transcript, y)
        if not found.done() and strip.text.rstrip().endswith(text):
            found.set_result(time.perf_counter())
        return strip

    screen.transcript.render_line = drawing  # type: ignore[method-assign]
    return found
