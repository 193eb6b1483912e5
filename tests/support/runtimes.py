"""A runtime over a scripted model, and the events it emits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast import AIAgent, AsyncSessionDB, events
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
