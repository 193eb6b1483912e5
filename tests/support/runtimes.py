"""A runtime over a scripted model, the events it emits, and conversations for slash commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast import AIAgent, AsyncSessionDB, events, types
from holdfast.model import ScriptedModel, base
from holdfast.runtime import runtime
from tests.support import agents


def open_runtime(
    db: AsyncSessionDB, model: base.Model | None = None, *, options: Mapping[str, Any] | None = None, **given: Any
) -> runtime.Runtime:
    """Open a runtime whose agents share a model; `options` are the runtime's, the other settings the agents'."""
    answering = model or ScriptedModel(["ok"] * 99)

    async def build(conversation_id: str) -> AIAgent:
        return agents.agent(db, answering, session_id=conversation_id, **given)

    return runtime.Runtime(db, build, **(options or {}))


async def events_until(stream: runtime.EventStream, kind: type[events.Event], count: int = 1) -> list[events.Emitted]:
    """Return the events up to the count-th event of this kind."""
    seen: list[events.Emitted] = []
    async for emitted in stream:
        seen.append(emitted)
        count -= isinstance(emitted.event, kind)
        if not count:
            break
    return seen


async def notice_text(stream: runtime.EventStream) -> str:
    """Return the text of the next notice."""
    notice = (await events_until(stream, events.Notice))[-1].event
    assert isinstance(notice, events.Notice)
    return notice.text


async def run_command(run: runtime.Runtime, line: str, conversation: str = "talk") -> Sequence[events.AnyEvent]:
    """Run a slash command and return the events it emitted, to all subscribers and to its sender."""
    with run.subscribe(conversation) as stream:
        own: list[events.AnyEvent] = []
        await run.send(conversation, events.Command(line), own.append)
        stream.put(None)
        return [*[emitted.event async for emitted in stream], *own]


async def answer_text(run: runtime.Runtime, line: str, conversation: str = "talk") -> str:
    """Run a command and return the text of its only event, after its level if it is a notice."""
    (event,) = await run_command(run, line, conversation)
    if isinstance(event, events.Notice):
        return f"{event.level}: {event.text}"
    assert isinstance(event, events.Answer), event
    return event.text


async def add_exchanges(db: AsyncSessionDB, count: int, name: str = "talk") -> None:
    """Create a conversation of questions and answers: q1 a1 q2 a2 …"""
    await db.create_session(name, source="test", title=f"The {name}")
    for number in range(1, count + 1):
        question = types.NewMessage(role="user", content=f"q{number}")
        answer = types.NewMessage(role="assistant", content=f"a{number}")
        await db.append_messages(name, [question, answer])


async def compact(db: AsyncSessionDB, cut_seq: int, name: str = "talk") -> None:
    """Compact a conversation up to this message."""
    lease = await db.acquire_lease(name, "compact")
    await db.commit_compaction(lease, summary="In short.", cut_seq=cut_seq)
    await db.release_lease(lease)


async def context_texts(db: AsyncSessionDB, name: str = "talk") -> list[str]:
    """Return the texts of the messages in the context."""
    return [str(each.content) for each in await db.context(name) if each.seq]
