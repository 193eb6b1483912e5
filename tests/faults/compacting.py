"""Agents that compact one conversation in processes of their own, while others talk in it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from holdfast import AIAgent, AsyncSessionDB, types
from holdfast.agent import settings
from holdfast.compaction import base
from holdfast.model import ScriptedModel
from holdfast.store.db import SessionDB
from tests.faults import turns, zygote

WINDOW = 6_000


class Brief:
    """Says in short what must be kept, after a moment in which others may write."""

    name = "brief"

    async def summarize(self, request: base.SummaryRequest) -> str:
        await asyncio.sleep(0)
        return "In short. " + " ".join(request.must_keep)


def fill(db: Any, conversation: str, exchanges: int, begin: int = 0) -> None:
    for number in range(begin, begin + exchanges):
        asked = f"Question {number}: what about pier {number}? " + "It is windy there. " * 8
        create = types.NewConversation(source="fault")
        db.append_message(conversation, role="user", content=asked, uid=f"q{number}", create=create)
        db.append_message(conversation, role="assistant", content=f"Answer {number}. " + "Boats stay in. " * 8)


def agent(db: AsyncSessionDB, conversation: str) -> AIAgent:
    model = ScriptedModel(["ok"] * 99, window=WINDOW)
    return AIAgent(
        db=db, model=model, session_id=conversation, compaction=settings.CompactionSettings(summarizer=Brief())
    )


def compact(stage: zygote.Stage) -> dict[str, Any]:
    """One attempt, at the same moment as others."""

    async def attempt() -> dict[str, Any]:
        async with AsyncSessionDB(stage.open()) as db:
            one = agent(db, stage.args["conversation"])
            had = len(await one.context_cache.messages())
            made = await one.compress_context(force=bool(stage.args.get("force")))
            return {"outcome": str(made.outcome), "session": one.session_id, "kept": len(made.messages) == had}

    if stage.barrier is not None:
        stage.barrier.wait()
    return asyncio.run(attempt())


def crowd(stage: zygote.Stage) -> dict[str, Any]:
    """The even ones compact, the odd ones append, all at once."""
    if stage.index % 2 == 0:
        return compact(stage)
    stage.barrier.wait()
    with stage.open() as db:
        for number in range(stage.args["appends"]):
            uid = f"{stage.args['round']}:{stage.index}:{number}"
            db.append_message(stage.args["conversation"], role="user", content=f"said {uid}", uid=uid)
    return {"outcome": "appended"}


def wrongs(db: SessionDB, conversation: str, said: Sequence[str]) -> list[str]:
    """What is lost, forked or broken after agents compacted while others wrote."""
    found = [f"{bad.promise} {bad.detail}" for bad in db.admin.fsck().violations]
    logged = [message.uid for message in db.transcript(conversation)]
    found += [f"{uid} is in the log {logged.count(uid)} times" for uid in said if logged.count(uid) != 1]
    sessions = db.sessions(conversation)
    found += [f"{each.id} has siblings" for each in sessions if len(db.continuations(each.id)) > 1]
    context = db.context(conversation)
    after = [message.seq for message in context if message.seq > context.cut_seq]
    if after != list(range(context.cut_seq + 1, context.last_seq + 1)):
        found.append("the context misses messages after the cut")
    if db.get_compression_lock_holder(conversation) is not None:
        found.append("the lock is still held")
    return found + turns.invalid(context)
