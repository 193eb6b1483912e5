"""What the tests of commands share: a house to give them in, and what came of one."""

from __future__ import annotations

from typing import Any

from holdfast import AIAgent, AsyncSessionDB, events, types
from holdfast.model import ScriptedModel, base
from holdfast.runtime import runtime
from tests.support import agents
from tests.support.runtimes import run_command

__all__ = ["compacted", "door", "exchanges", "said", "view"]


def door(db: AsyncSessionDB, model: base.Model | None = None, **given: Any) -> runtime.Runtime:
    answering = model or ScriptedModel(["ok"] * 99)

    async def build(conversation_id: str) -> AIAgent:
        return agents.agent(db, answering, session_id=conversation_id)

    return runtime.Runtime(db, build, **given)


async def said(run: runtime.Runtime, line: str, conversation: str = "talk") -> str:
    """The one sentence a command has to say, marked where it is a refusal."""
    (event,) = await run_command(run, line, conversation)
    if isinstance(event, events.Notice):
        return f"{event.level}: {event.text}"
    assert isinstance(event, events.Answer), event
    return event.text


async def exchanges(db: AsyncSessionDB, count: int, name: str = "talk") -> None:
    """A conversation of questions and answers: q1 a1 q2 a2 …"""
    await db.create_session(name, source="test", title=f"The {name}")
    for number in range(1, count + 1):
        await db.append_messages(
            name,
            [
                types.NewMessage(role="user", content=f"q{number}"),
                types.NewMessage(role="assistant", content=f"a{number}"),
            ],
        )


async def compacted(db: AsyncSessionDB, cut_seq: int, name: str = "talk") -> None:
    lease = await db.acquire_lease(name, "compact")
    await db.commit_compaction(lease, summary="In short.", cut_seq=cut_seq)
    await db.release_lease(lease)


async def view(db: AsyncSessionDB, name: str = "talk") -> list[str]:
    """The words the model is shown."""
    return [str(each.content) for each in await db.context(name) if each.seq]
