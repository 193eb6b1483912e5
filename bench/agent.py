"""The agent without the time of the model: the cost of a turn with a model that answers at once, and of start-up."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench import background_compaction, mcp_servers, provider, timing
from bench.figures import Figure, at_most
from bench.scale import Scale
from holdfast import AIAgent, AsyncSessionDB, SessionDB, types
from holdfast.model import OpenAIModel, ScriptedModel

WRITES_A_TURN = 4
_TWENTY_TURNS = """
import asyncio, os, sys
from holdfast import config, events
from holdfast.app import compose

async def main():
    async with compose.start(config.load()) as all:
        for _ in range(20):
            result = await all.runtime.submit("talk", events.Submit("Tell me something."))
            assert result.completed, result
    with open("/proc/self/status") as file:
        print(next(line.split()[1] for line in file if line.startswith("VmHWM")))

asyncio.run(main())
"""


def figures(scale: Scale, folder: Path) -> Iterator[Figure]:
    yield from asyncio.run(_turns(scale, folder))
    yield asyncio.run(mcp_servers.figures(scale, folder))
    yield from asyncio.run(background_compaction.figures(scale, folder))
    yield from _starting(scale, folder)


async def _turns(scale: Scale, folder: Path) -> list[Figure]:
    rounds, few, many = scale.turns, 10, scale.turn_log
    with provider.serve() as fake:
        model = OpenAIModel("bench", base_url=fake.base_url, key="none", window=1_000_000)
        db = AsyncSessionDB(SessionDB(folder / "store.db"))
        short, long = await _conversation(db, model, "short", few), await _conversation(db, model, "long", many)
        scripted = AIAgent(db=db, model=ScriptedModel(["Fine."] * 10_000), session_id="own")
        bare: list[float] = []
        taken: dict[str, list[float]] = {"short": [], "long": [], "scripted": []}
        agents = {"short": short, "long": long, "scripted": scripted}
        for number in range(rounds + 5):
            for name, agent in agents.items():
                began = time.perf_counter()
                result = await agent.run_conversation("And then?")
                assert result.completed, result
                if number >= 5:
                    taken[name].append(time.perf_counter() - began)
            bare.append(await asyncio.to_thread(_writes, db.db))
        await model.close()
        await db.close()
    middle = timing.medians(taken)
    floor = (f"{WRITES_A_TURN} appends of the store", timing.median(bare) * 1e3)
    wire = ("at 10 messages", middle["short"] * 1e3)
    return [
        Figure(
            "agent.turn", "a later turn, model in process", "ms", middle["scripted"] * 1e3, floor, at_most(4, "value")
        ),
        Figure("agent.wire", "a later turn, with the request on the wire", "ms", middle["short"] * 1e3, floor),
        Figure(
            "agent.flat", f"the same at {many:,} messages in the log", "ms", middle["long"] * 1e3, wire, at_most(1.25)
        ),
    ]


async def _conversation(db: AsyncSessionDB, model: OpenAIModel, name: str, size: int) -> AIAgent:
    """Return an agent with a conversation of this length, of which all but ten messages are compacted."""
    past = [types.NewMessage(role=("user", "assistant")[n % 2], content=f"message {n} " * 20) for n in range(size)]  # type: ignore[arg-type]
    await db.create_session(name, source="bench")
    for start in range(0, size, 1000):
        await db.append_messages(name, past[start : start + 1000])
    if size > 10:
        work = await db.acquire_lease(name, "compact")
        await db.commit_compaction(work, summary="What was said before.", cut_seq=size - 10)
    return AIAgent(db=db, model=model, session_id=name)


def _writes(db: SessionDB) -> float:
    def append() -> None:
        for _ in range(WRITES_A_TURN):
            db.append_message("floor", role="user", content="x", create=types.NewConversation(source="bench"))

    return timing.measure_seconds(append)


def _starting(scale: Scale, folder: Path) -> Iterator[Figure]:
    """Measure the time from the start of a process to its first request, and its memory after twenty turns."""
    home = folder / "home"
    home.mkdir(mode=0o700)
    program = Path(sys.executable).parent / "holdfast"
    with provider.serve() as fake:
        env = fake.environment(str(home))
        taken = []
        for _ in range(max(2, scale.starts // 5)):
            began = time.monotonic()
            done = subprocess.Popen([program, "-p", "Hello"], env=env, cwd=home, stdout=subprocess.PIPE)
            taken.append(fake.next_request() - began)
            assert done.communicate()[0].strip() == b"Fine."
        yield Figure(
            "agent.first", "start to first request, one shot", "s", timing.median(taken), None, at_most(0.9, "value")
        )
        printed = subprocess.run(
            [sys.executable, "-c", _TWENTY_TURNS], env=env, cwd=home, check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        yield Figure("agent.memory", "memory after 20 turns", "MB", int(printed) / 1024, None, at_most(70, "value"))
