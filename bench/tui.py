"""The full screen: time to the first paint by the length of the conversation, and time per frame."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

from textual.app import App, ComposeResult
from textual.strip import Strip
from textual.widgets import Static

from bench import timing
from bench.figures import Figure, at_most
from bench.scale import Scale
from holdfast import AIAgent, AsyncSessionDB, SessionDB, events, types
from holdfast.model import ScriptedModel
from holdfast.runtime import runtime
from holdfast.tui import app, entry_rows, live_turn

FEW = 100
"""Enough to fill the screen and the rows drawn around it."""
HEAVY = 60
"""Messages of a conversation with long answers, long tool results and three compactions."""
CALLS, PARAGRAPHS = 300, 1_500
"""The tool calls and paragraphs of a running turn."""
REPLY = "The **{n}th** answer:\n\n- one thing\n- `another`\n\n```python\nprint({n})\n```\n"


def figures(scale: Scale, folder: Path) -> Iterator[Figure]:
    yield from asyncio.run(_measure(scale, folder))


async def _measure(scale: Scale, folder: Path) -> list[Figure]:
    async with AsyncSessionDB(SessionDB(folder / "store.db")) as db:
        sizes = {"few": FEW, "many": scale.screen_log, "heavy": HEAVY}
        for name, size in (("few", FEW), ("many", scale.screen_log)):
            await _fill(db, name, size)
        await _fill_heavy(db)
        painted: dict[str, list[float]] = {name: [] for name in (*sizes, "floor")}
        jumped: list[float] = []
        for number in range(scale.screens + 1):
            empty = await _floor()
            painted["floor"] += [empty] if number else []
            for name, size in sizes.items():
                first, jump = await _open_once(db, name, size)
                if number:  # The first round loads shared modules.
                    painted[name].append(first)
                    jumped += [jump] if name == "many" else []
    middle = timing.medians(painted)
    baseline = (f"of {FEW} messages", middle["few"] * 1e3)
    many = f"{scale.screen_log:,}-message conversation"
    return [
        Figure("tui.first", f"first paint of a {many}", "ms", middle["many"] * 1e3, baseline, at_most(1.25)),
        Figure(
            "tui.floor",
            "the same, relative to an empty screen",
            "ms",
            middle["many"] * 1e3,
            ("floor", middle["floor"] * 1e3),
        ),
        Figure("tui.heavy", f"first paint of {HEAVY} long answers and calls", "ms", middle["heavy"] * 1e3, baseline),
        Figure(
            "tui.frame",
            f"a frame of a turn of {CALLS} calls and {PARAGRAPHS:,} paragraphs",
            "ms",
            _frame() * 1e3,
            ("between two frames", app.FRAME_SECONDS * 1e3),
            at_most(1),
        ),
        Figure("tui.top", f"from the end of a {many} to its first message", "ms", timing.median(jumped) * 1e3),
    ]


async def _fill(db: AsyncSessionDB, name: str, size: int) -> None:
    await db.create_session(name, source="bench")
    said = [
        types.NewMessage(role="user", content=f"question {n}")
        if n % 2
        else types.NewMessage(role="assistant", content=REPLY.format(n=n))
        for n in range(1, size + 1)
    ]
    for start in range(0, size, 1000):
        await db.append_messages(name, said[start : start + 1000])


async def _fill_heavy(db: AsyncSessionDB) -> None:
    """Store questions, each with a tool call, a long result and a long answer, and compact every fifth time."""
    await db.create_session("heavy", source="bench")
    for n in range(1, HEAVY + 1, 3):
        call = types.ToolCall(f"c{n}", "shell", {"command": f"make {n}"})
        said = [
            types.NewMessage(role="user", content=f"question {n}"),
            types.NewMessage(role="assistant", content=f"Let me see.\n\n{'ünd so weiter ' * 800}", tool_calls=(call,)),
            types.NewMessage(role="tool", content="a line of output\n" * 5_000, tool_call_id=call.id),
        ]
        await db.append_messages("heavy", said)
        if n % 15 == 1 and n > 1:
            work = await db.acquire_lease("heavy", "compact")
            await db.commit_compaction(work, summary="## Goal\n\nGo on.", cut_seq=n - 1)
    await db.append_message("heavy", role="assistant", content=REPLY.format(n=HEAVY))


def _frame() -> float:
    """Return the seconds to draw a frame late in a long turn."""
    turn, pen = live_turn.LiveTurn(lambda: "bench"), entry_rows.RowFormat(120)
    turn.handle(events.TurnStarted("talk", "talk", "a paste\n" * 1_000, 1))
    for number in range(CALLS):
        turn.handle(events.ToolStarted(str(number), "shell", "{}"))
        turn.handle(events.ToolFinished(str(number), "shell", True, "done"))
    turn.handle(events.ReasoningDelta("thinking of it " * 4_000))
    turn.rows(pen, set())
    for number in range(PARAGRAPHS):
        turn.handle(events.TextDelta(f"paragraph {number} **bold**\n\n"))
    turn.rows(pen, set())
    taken = []
    for _ in range(20):
        began = time.perf_counter()
        turn.handle(events.TextDelta("word "))
        turn.rows(pen, set())
        taken.append(time.perf_counter() - began)
    return timing.median(taken)


async def _open_once(db: AsyncSessionDB, name: str, size: int) -> tuple[float, float]:
    """Return the seconds until the last message is drawn, and from there until the first one is."""

    async def build(conversation_id: str) -> AIAgent:
        return AIAgent(db=db, model=ScriptedModel([]), session_id=conversation_id)

    async with runtime.Runtime(db, build) as door:
        began = time.perf_counter()
        screen = app.FullScreen(door, app.ScreenOptions(name, "bench", "/dev/null/none"))
        last = _when_drawn(screen, f"print({size})")
        async with screen.run_test(size=(120, 40)):
            first = await last - began
            top, began = _when_drawn(screen, " question 1"), time.perf_counter()
            screen.transcript.action_to_top()
            return first, await top - began


class Empty(App[None]):
    """The minimum that Textual can draw: one line."""

    def __init__(self) -> None:
        super().__init__()
        self.painted: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def compose(self) -> ComposeResult:
        yield Line()


class Line(Static):
    """A line that records when it is drawn."""

    def render_line(self, y: int) -> Strip:
        app = self.app
        if isinstance(app, Empty) and not app.painted.done():
            app.painted.set_result(time.perf_counter())
        return super().render_line(y)


async def _floor() -> float:
    """Return the seconds from the creation of an empty screen to its first line."""
    began = time.perf_counter()
    screen = Empty()
    async with screen.run_test(size=(120, 40)):
        return await screen.painted - began


def _when_drawn(screen: app.FullScreen, text: str) -> asyncio.Future[float]:
    """Return a future with the time at which a row that ends with this text is first drawn."""
    found: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    draw = type(screen.transcript).render_line

    def drawing(y: int) -> Strip:
        strip = draw(screen.transcript, y)
        if not found.done() and strip.text.rstrip().endswith(text):
            found.set_result(time.perf_counter())
        return strip

    screen.transcript.render_line = drawing  # type: ignore[method-assign]
    return found
