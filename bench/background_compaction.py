"""Latency that a concurrent compaction adds to turns: with a slow model, and with the extractive summary."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from bench import timing
from bench.figures import Figure, at_most
from bench.scale import Scale
from holdfast import AIAgent, AsyncSessionDB, SessionDB, types
from holdfast.agent import settings
from holdfast.compaction import base, summary
from holdfast.model import ScriptedModel
from holdfast.model import base as models

TOKENS_A_MESSAGE = 200
MANY = 10_000_000
WORDS = (
    "harbour", "pier", "boat", "wind", "tide", "rope", "mast", "crew", "port", "chart", "lamp", "storm", "sail", "deck",
    "anchor", "engine", "route", "map", "fog", "signal", "keeper", "buoy", "cargo", "ferry",
)  # fmt: skip


class _Slow:
    """A model that takes half a minute for a summary."""

    name, window = "slow", 200_000

    async def stream(self, _: models.Request) -> AsyncGenerator[models.Delta, None]:
        await asyncio.sleep(30)
        yield models.FinishDelta("stop")

    async def close(self) -> None:
        pass


class _Silent:
    """A summarizer that returns no text, so that the extractive summary is used."""

    async def summarize(self, _: base.SummaryRequest) -> str:
        return ""


async def figures(scale: Scale, folder: Path) -> list[Figure]:
    return [await _summary(scale, folder), await _extract(scale, folder)]


async def _summary(scale: Scale, folder: Path) -> Figure:
    """Compare turns during a summary of 30 seconds with turns without one."""
    said = list(map(_message_text, range(scale.extracted)))
    slow = summary.ModelSummarizer(_Slow())
    async with AsyncSessionDB(SessionDB(folder / "summary.db")) as db:
        calm = await _agent(db, "calm", said, slow, MANY)
        full = await _agent(db, "full", said, slow, TOKENS_A_MESSAGE * scale.extracted)
        # Both have counted their context, and the summary is under way.
        await _turn(calm)
        await _turn(full)
        taken: dict[str, list[float]] = {"calm": [], "full": []}
        for _ in range(min(scale.turns, 60)):
            taken["calm"].append(await _turn(calm))
            taken["full"].append(await _turn(full))
        assert len(await db.sessions("full")) == 1  # The summary is not finished.
        await full.close()
    return _added("agent.summary", "added to a turn by a concurrent 30 s summary", taken)


async def _extract(scale: Scale, folder: Path) -> Figure:
    """Compare turns during the extractive summary of a full window with turns without one."""
    said = list(map(_message_text, range(scale.extracted)))
    async with AsyncSessionDB(SessionDB(folder / "extract.db")) as db:
        calm = await _agent(db, "calm", said, _Silent(), MANY)
        full = await _agent(db, "full", said, _Silent(), TOKENS_A_MESSAGE * scale.extracted)
        size = await full.context_tokens()
        # Both have counted their context, and the extract is under way.
        await _turn(calm)
        await _turn(full)
        taken: dict[str, list[float]] = {"calm": [], "full": []}
        while full.in_use or not taken["full"]:
            taken["full"].append(await _turn(full))
        for _ in range(min(scale.turns, 60)):
            taken["calm"].append(await _turn(calm))
        assert len(await db.sessions("full")) == 2
    return _added("agent.extract", f"added to a turn by a concurrent extract of {size:,} tokens", taken)


async def _agent(
    db: AsyncSessionDB, name: str, said: Sequence[str], summarizer: base.Summarizer, window: int
) -> AIAgent:
    messages = [types.NewMessage(role=("user", "assistant")[n % 2], content=text) for n, text in enumerate(said)]  # type: ignore[arg-type]
    await db.create_session(name, source="bench")
    await db.append_messages(name, messages)
    model = ScriptedModel(["Fine."] * 10_000, window=window)
    return AIAgent(db=db, model=model, session_id=name, compaction=settings.CompactionSettings(summarizer=summarizer))


async def _turn(agent: AIAgent) -> float:
    began = time.perf_counter()
    assert (await agent.run_conversation("ok")).completed
    return time.perf_counter() - began


def _added(key: str, name: str, taken: dict[str, list[float]]) -> Figure:
    calm = timing.median(taken["calm"])
    added = (timing.median(taken["full"]) - calm) * 1e3
    worst = (max(taken["full"]) - calm) * 1e3
    return Figure(key, name, "ms", max(added, 0.001), None, at_most(50, "value"), {"worst": worst})


def _message_text(number: int) -> str:
    """Return a text of about 160 tokens with facts to keep; the same for the same number."""
    chance = random.Random(number)
    words = [chance.choice(WORDS) + ("." if chance.random() < 0.1 else "") for _ in range(118)]
    asked = f"Please check pier {number}? " if number % 2 == 0 else ""
    return f"{asked}{' '.join(words)} See src/app/file{number}.py; ticket ABC-{number} costs {number * 7}.50 euros."
