"""A turn as something a process can be killed or stopped in: two tools at once, an answer, a title.

The model is scripted, the store and the processes are real. Whoever comes after must find a history that
every provider accepts, with the user's message in it once.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from holdfast import AIAgent, AsyncSessionDB, content_parts, events, types
from holdfast.model import base
from holdfast.store.db import SessionDB
from holdfast.tools import base as tools
from tests.faults import zygote
from tests.support import agents as stages

OPERATIONS = ("acquire", "append", "release", "title")
QUESTION, ANSWER = "What do both say?", "Both say yes."


class Playing:
    """Calls two tools, then answers; checks every request as the strictest provider would."""

    name = "playing/model"
    window = 100_000

    def __init__(self, die_while: str = "") -> None:
        self._die_while = die_while

    async def stream(self, request: base.Request) -> AsyncGenerator[base.Delta, None]:
        problems = invalid(request.messages)
        assert not problems, problems
        if request.messages[-1].role == "user":
            yield base.ContentDelta("Let me ask.")
            for index, name in enumerate(("left", "right")):
                yield base.ToolCallDelta(index, f"call_{name}_{request.messages[-1].seq}", name, "{}")
            yield base.UsageDelta(types.Usage(10, 5))
            self.perhaps_die("calling")
            yield base.FinishDelta("calls")
            return
        yield base.ContentDelta("Both ")
        self.perhaps_die("saying")
        yield base.ContentDelta("say yes.")
        yield base.UsageDelta(types.Usage(20, 5))
        yield base.FinishDelta("stop")

    def perhaps_die(self, where: str) -> None:
        if where == self._die_while:
            os.kill(os.getpid(), signal.SIGKILL)

    async def close(self) -> None:
        pass


def invalid(messages: Sequence[types.Message]) -> list[str]:
    """What a strict provider would refuse: results not next to their calls, calls without results, a wrong start."""
    found, open_calls = [], set[str]()
    if messages and messages[0].role != "user":
        found.append("does not begin with the user")
    for message in messages:
        if message.role == "tool":
            if message.tool_call_id not in open_calls:
                found.append(f"message {message.seq} is a result of nothing before it")
            open_calls.discard(message.tool_call_id or "")
        elif open_calls:
            found.append(f"message {message.seq} comes before the results of {sorted(open_calls)}")
            open_calls = set()
        if message.role == "assistant":
            open_calls = {call.id for call in message.tool_calls}
    if open_calls:
        found.append(f"ends without the results of {sorted(open_calls)}")
    return found


def agent(db: AsyncSessionDB, model: base.Model, conversation: str, **given: Any) -> AIAgent:
    playing = model if isinstance(model, Playing) else Playing()

    async def left(_: dict[str, Any]) -> str:
        playing.perhaps_die("working")
        return "yes"

    async def right(_: dict[str, Any]) -> str:
        await asyncio.sleep(0)
        return "yes"

    specs = [(types.ToolSpec(name, name, {}), run) for name, run in (("left", left), ("right", right))]
    offered = [tools.Tool(spec, run, parallel=True) for spec, run in specs]
    return stages.agent(db, model, session_id=conversation, tools=offered, **given)


async def _turn(db: SessionDB, model: base.Model, conversation: str, uid: str, **given: Any) -> events.TurnResult:
    async with AsyncSessionDB(db) as shared:
        return await agent(shared, model, conversation, **given).run_conversation(QUESTION, uid=uid)


def take(db: SessionDB, conversation: str, uid: str, die_while: str = "", **given: Any) -> events.TurnResult:
    """One turn, from opening to closing the store."""
    return asyncio.run(_turn(db, Playing(die_while), conversation, uid, **given))


def talk(stage: zygote.Stage) -> dict[str, Any]:
    """A turn in a process of its own."""
    args = stage.args
    result = take(stage.open(), args["conversation"], args["uid"], args.get("die_while", ""))
    return {"exit": result.exit_reason, "answer": result.final_response, "session": result.session_id}


class Echo:
    """Answers with the last thing the user said, if the question is there and nothing came between."""

    name = "echo/model"
    window = 100_000

    async def stream(self, request: base.Request) -> AsyncGenerator[base.Delta, None]:
        assert not invalid(request.messages)
        assert request.messages[-1].role == "user"
        yield base.ContentDelta(f"re {content_parts.text(request.messages[-1].content)}")
        yield base.FinishDelta("stop")

    async def close(self) -> None:
        pass


def chat(stage: zygote.Stage) -> list[str]:
    """Many turns of one process in a conversation that others talk in as well; what it was answered."""

    async def chatting() -> list[str]:
        async with AsyncSessionDB(stage.open()) as db:
            one = agent(db, Echo(), stage.args["conversation"])
            texts = [f"{stage.index}:{number}" for number in range(stage.args["turns"])]
            return [(await one.run_conversation(text, uid=text)).final_response for text in texts]

    stage.barrier.wait()
    return asyncio.run(chatting())
