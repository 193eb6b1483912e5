"""Tasks of processes in which an agent takes turns, compacts or delivers a notice, and may be killed or stopped."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncGenerator, Callable
from typing import Any

from holdfast import AIAgent, AsyncSessionDB, content_parts, events, types
from holdfast.agent import settings
from holdfast.app import process_records
from holdfast.compaction.base import SummaryRequest
from holdfast.model import ScriptedModel, base
from holdfast.runtime import runtime
from holdfast.store.db import SessionDB
from tests.faults import zygote
from tests.support import agents as stages
from tests.support import compaction, messages

TURN_OPERATIONS = ("acquire", "append", "release", "title", "model", "tool")
COMPACTION_OPERATIONS = ("acquire", "budget", "commit", "release")
NOTICE_OPERATIONS = ("process", "inbox", "acquire", "append", "release")
QUESTION, ANSWER, NOTICE = "What do both say?", "Both say yes.", "process 1 ended with 0"
WINDOW = 6_000


def begin(db: SessionDB, conversation: str) -> None:
    """A conversation with a past."""
    db.append_message(conversation, role="user", content="Hello.", create=types.NewConversation(source="test"))
    db.append_message(conversation, role="assistant", content="Good day.")


class Playing:
    """Calls two tools, then answers; checks every request as the strictest provider would."""

    name = "playing/model"
    window = 100_000

    def __init__(self, reach: Callable[[str], None]) -> None:
        self.reach = reach

    async def stream(self, request: base.Request) -> AsyncGenerator[base.Delta, None]:
        problems = messages.order_errors(request.messages)
        assert not problems, problems
        if request.messages[-1].role == "user":
            yield base.ContentDelta("Let me ask.")
            for index, name in enumerate(("left", "right")):
                yield base.ToolCallDelta(index, f"call_{name}_{request.messages[-1].seq}", name, "{}")
            yield base.UsageDelta(types.Usage(10, 5))
            self.reach("model.calls")
            yield base.FinishDelta("calls")
            return
        yield base.ContentDelta("Both ")
        self.reach("model.answers")
        yield base.ContentDelta("say yes.")
        yield base.UsageDelta(types.Usage(20, 5))
        yield base.FinishDelta("stop")

    async def close(self) -> None:
        pass


def turn_agent(db: AsyncSessionDB, model: base.Model, conversation: str) -> AIAgent:
    async def run(_: dict[str, Any]) -> str:
        if isinstance(model, Playing):
            model.reach("tool.works")
        await asyncio.sleep(0)
        return "yes"

    return stages.agent(
        db, model, session_id=conversation, tools=[stages.tool(name, run) for name in ("left", "right")]
    )


def take(
    db: SessionDB, conversation: str, uid: str, reach: Callable[[str], None] = lambda _: None
) -> events.TurnResult:
    """One turn, from opening to closing the store."""

    async def turn() -> events.TurnResult:
        async with AsyncSessionDB(db) as shared:
            return await turn_agent(shared, Playing(reach), conversation).run_conversation(QUESTION, uid=uid)

    return asyncio.run(turn())


def take_turn(stage: zygote.Stage) -> dict[str, Any]:
    """A task: one turn."""
    result = take(stage.open(), stage.args["conversation"], stage.args["uid"], stage.reach)
    return {"exit": result.exit_reason, "answer": result.final_response}


def echo_model(window: int = 100_000) -> ScriptedModel:
    """Answers with the last thing the user said, if the question is there and nothing came between."""

    def answer(request: base.Request) -> list[base.Delta]:
        assert not messages.order_errors(request.messages)
        assert request.messages[-1].role == "user"
        text = content_parts.text(request.messages[-1].content)
        return [base.ContentDelta(f"re {text}"), base.FinishDelta("stop")]

    return ScriptedModel(itertools.repeat(answer), name="echo/model", window=window)


def summarizer(calls: str = "", dies: bool = False) -> compaction.FakeSummarizer:
    """Says in short what must be kept, after a moment in which others may write.

    With a path, a byte is added to that file for every call, which then fails, or its process is killed.
    """

    async def summarize(request: SummaryRequest) -> str:
        await asyncio.sleep(0)
        if calls:
            with open(calls, "ab") as file:
                file.write(b".")
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
            raise ZeroDivisionError
        return compaction.brief_summary(request)

    return compaction.FakeSummarizer(summarize)


def fill(db: Any, conversation: str, exchanges: int, owner: str = "") -> None:
    for number in range(exchanges):
        asked = f"Question {number}: what about pier {number}? " + "It is windy there. " * 8
        create = types.NewConversation(source="fault", owner=owner)
        db.append_message(conversation, role="user", content=asked, uid=f"q{number}", create=create)
        db.append_message(conversation, role="assistant", content=f"Answer {number}. " + "Boats stay in. " * 8)


def compact(stage: zygote.Stage) -> dict[str, Any]:
    """A task: one attempt, at the same moment as others."""
    writer = summarizer(stage.args.get("calls", ""), "dies" in stage.args)
    given: dict[str, Any] = {"compaction": settings.CompactionSettings(summarizer=writer), "attempts": 1}
    if stage.order.clock:
        given["clock"] = zygote.Clock(stage.order.clock)

    async def attempt() -> dict[str, Any]:
        async with AsyncSessionDB(stage.open()) as db:
            one = AIAgent(ScriptedModel([], window=WINDOW), db=db, session_id=stage.args["conversation"], **given)
            had = len(await one.context_cache.messages())
            made = await one.compress_context(force="force" in stage.args)
            return {"outcome": str(made.outcome), "session": one.session_id, "kept": len(made.messages) == had}

    stage.barrier.wait()
    return asyncio.run(attempt())


def compaction_problems(db: SessionDB, conversation: str) -> list[str]:
    """Return the losses, forks and violations after agents compacted."""
    found = [f"{bad.promise} {bad.detail}" for bad in db.admin.fsck().violations]
    sessions = db.sessions(conversation)
    found += [f"{each.id} has siblings" for each in sessions if len(db.continuations(each.id)) > 1]
    context = db.context(conversation)
    after = [message.seq for message in context if message.seq > context.cut_seq]
    if after != list(range(context.cut_seq + 1, context.last_seq + 1)):
        found.append("the context misses messages after the cut")
    if db.get_compression_lock_holder(conversation) is not None:
        found.append("the lock is still held")
    return found + messages.order_errors(context)


def deliver_notice(stage: zygote.Stage) -> bool:
    """Report the end of a process and have the notice answered; return whether this report was the first."""

    async def program() -> bool:
        async with AsyncSessionDB(stage.open()) as db:

            async def build(conversation_id: str) -> AIAgent:
                return turn_agent(db, echo_model(), conversation_id)

            async with runtime.Runtime(db, build) as run:
                book = process_records.ProcessRecords(db, run.check_inbox)
                first = await book.ended(stage.args["process"], "exited", 0, NOTICE)
                with run.subscribe(stage.args["conversation"]):
                    await run.deliver(stage.args["conversation"])
                    while await db.mail.inbox_entries(stage.args["conversation"]):
                        await asyncio.sleep(0.002)
                return first

    stage.barrier.wait()
    return asyncio.run(program())


def notice_problems(db: SessionDB, conversation: str) -> list[Any]:
    """Return the problems of a delivered notice: it is in the log once, answered once and settled."""
    said = [(each.role, content_parts.text(each.content)) for each in db.transcript(conversation)[2:]]
    found: list[Any] = [] if said == [("user", NOTICE), ("assistant", f"re {NOTICE}")] else [said]
    found += [each.key for each in db.mail.inbox_entries(conversation)]
    found += [each.state for each in db.processes.all(conversation) if each.state != "exited"]
    return found + [f"{bad.promise} {bad.detail}" for bad in db.admin.fsck().violations]
