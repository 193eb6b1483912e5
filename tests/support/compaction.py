"""Conversations that are long enough to compact, and summarizers for them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import AIAgent, AsyncSessionDB, content_parts, types
from holdfast.compaction import base, summary
from holdfast.model import ScriptedModel, tokens
from holdfast.model import base as models
from tests.support import agents

WINDOW = 8_000


def brief_summary(request: base.SummaryRequest) -> str:
    """Return a summary that is accepted."""
    return "In short. " + " ".join(request.must_keep)


def blocked_summary() -> tuple[Callable[[base.SummaryRequest], Awaitable[str]], asyncio.Event, asyncio.Event]:
    """Return a summary function, the event set when it starts and the event it waits for."""
    started, proceed = asyncio.Event(), asyncio.Event()

    async def summarize(request: base.SummaryRequest) -> str:
        started.set()
        await proceed.wait()
        return brief_summary(request)

    return summarize, started, proceed


class FakeSummarizer:
    """A summarizer that records its requests and answers with the given function."""

    name = "writer"

    def __init__(self, answer: Callable[[base.SummaryRequest], Any] | None = None) -> None:
        self.requests: list[base.SummaryRequest] = []
        self._answer = answer or brief_summary

    async def summarize(self, request: base.SummaryRequest) -> str:
        self.requests.append(request)
        answer = self._answer(request)
        return await answer if asyncio.iscoroutine(answer) else answer


def compacting_agent(
    db: AsyncSessionDB, summarizer: Any = None, *, model: models.Model | None = None, **given: Any
) -> AIAgent:
    """Return an agent of the conversation `talk` whose context window `fill` exceeds."""
    given = {"session_id": "talk", **given}
    model = model or ScriptedModel(["ok"] * 99, window=WINDOW)
    return agents.agent(db, model, summarizer=summarizer or FakeSummarizer(), **given)


async def compact(
    db: AsyncSessionDB, summarizer: Any = None, *, force: bool = False, keep_exchanges: int | None = None, **given: Any
) -> base.CompactionResult:
    """Compact with a new agent. A summarizer may be given as a function of the request."""
    writer = FakeSummarizer(summarizer) if inspect.isroutine(summarizer) else summarizer
    agent = compacting_agent(db, writer, **given)
    return await agent.compress_context(force=force, keep_exchanges=keep_exchanges)


async def steal_lease(db: AsyncSessionDB) -> None:
    """Take the lease of the running compaction from its holder."""
    (held,) = await db.leases()
    await db.acquire_lease("talk", "compact", held.holder)


async def append_questions(db: AsyncSessionDB, count: int = 40, text: str = "And pier {}? ", windy: int = 12) -> None:
    """Append long questions without answers."""
    for number in range(count):
        await db.append_message("talk", role="user", content=text.format(number) + "It is windy there. " * windy)


class GrowingMeter(tokens.Meter):
    """A meter to which every summary is too long."""

    def of(self, message: types.Message) -> int:
        written = message.uid == "summary" and message.content != summary.MARK
        return 10**6 if written else super().of(message)


SUMMARY_USAGE = types.Usage(1_000, 50, cost=0.25)


def priced_reply(request: models.Request) -> models.Reply:
    """Return a summary that is accepted and costs `SUMMARY_USAGE`."""
    asked = content_parts.text(request.messages[0].content)
    kept = asked.partition("word for word:\n")[2].partition("\n\n")[0]
    return models.Reply((content_parts.Text(f"In short.\n{kept}"),), usage=SUMMARY_USAGE)


def priced_summarizer(*script: Any) -> summary.ModelSummarizer:
    """Return a summarizer whose model gives these replies; by default, one priced summary."""
    return summary.ModelSummarizer(ScriptedModel(script or [priced_reply], name="small/model", window=100_000))


async def fill(db: AsyncSessionDB, exchanges: int = 40, name: str = "talk", owner: str = "") -> None:
    """Create a conversation with this many long exchanges."""
    await db.create_session(name, source="test", owner=owner)
    for number in range(exchanges):
        asked = f"Question {number}: what about the harbour at pier {number}? " + "It is windy there. " * 8
        answered = f"Answer {number}: pier {number} is closed. " + "The boats stay in. " * 8
        await db.append_messages(
            name, [types.NewMessage(role="user", content=asked), types.NewMessage(role="assistant", content=answered)]
        )
